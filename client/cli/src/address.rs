//! Addresses as people write them.

use std::net::SocketAddr;

/// `HOST:PORT`, where the host may be a name. Returned as it was written.
pub(crate) fn parse(text: &str) -> Result<String, String> {
    let wrong = || format!("{text:?} is not an address: write HOST:PORT (127.0.0.1:7420)");
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let host_is_fine = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
        }
    };
    match port.parse::<u16>() {
        Ok(port) if host_is_fine && port > 0 => Ok(text.to_owned()),
        _ => Err(wrong()),
    }
}

/// `IP:PORT`, to listen on.
pub(crate) fn parse_socket(text: &str) -> Result<SocketAddr, String> {
    let wrong = |_| {
        format!("{text:?} is not an address to listen on: write IP:PORT (127.0.0.1:7420 or 0.0.0.0:7420)")
    };
    text.parse().map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for text in ["127.0.0.1:7420", "localhost:1", "[::1]:7420", "disk-3.rack_1.example:65535"] {
            assert_eq!(parse(text), Ok(text.to_owned()));
        }
        for text in
            ["", "localhost", ":7420", "a:", "a:0", "a:65536", "a:b", "::1:7420", "http://a:1", "a b:1"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse_socket("localhost:1").is_err());
        assert!(parse_socket("0.0.0.0:0").is_ok());
    }
}
