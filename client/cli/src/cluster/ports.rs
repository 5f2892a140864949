//! Which ports the processes of a cluster on this machine listen on.
//!
//! The agents' addresses are part of the array, so their ports are chosen once and kept. They come from below the
//! range that the kernel takes ports for outgoing connections from: a port of that range is free today and some
//! connection's own tomorrow.

use std::{
    collections::BTreeSet,
    fs,
    hash::{BuildHasher, Hasher, RandomState},
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::failure::Failure;

/// First port that is considered.
const PORT_MIN: u16 = 10_000;

/// End of the range where the kernel does not say where its own begins: its default.
const KERNEL_FIRST: u16 = 32_768;

/// Random ports tried before giving up.
const TRIES_MAX: usize = 1000;

/// Processes of an earlier cluster in the same folder may still be on their way out.
const FREED_LIMIT: Duration = Duration::from_secs(3);
const FREED_POLL: Duration = Duration::from_millis(20);

/// So many different ports that are free now, on `host`, apart from `taken`.
pub(crate) fn choose(host: IpAddr, count: usize, taken: &[u16]) -> Result<Vec<u16>, Failure> {
    let end = kernel_first().max(PORT_MIN + 1);
    let mut chosen = BTreeSet::new();
    for _ in 0..TRIES_MAX.max(count * 10) {
        if chosen.len() == count {
            break;
        }
        let random = RandomState::new().build_hasher().finish();
        let port = PORT_MIN + (random % u64::from(end - PORT_MIN)) as u16;
        if !taken.contains(&port) && is_free(SocketAddr::new(host, port)).is_ok() {
            chosen.insert(port);
        }
    }
    if chosen.len() < count {
        return Err(Failure::failed(format!(
            "cannot find {count} free ports from {PORT_MIN} to {end} on {host}"
        )));
    }
    Ok(chosen.into_iter().collect())
}

/// Waits a little until all `addresses` are free, each of which belongs to the process named with it.
pub(crate) async fn until_free(addresses: &[(String, SocketAddr)]) -> Result<(), Failure> {
    let deadline = Instant::now() + FREED_LIMIT;
    for (name, address) in addresses {
        while let Err(error) = is_free(*address) {
            if Instant::now() >= deadline || error.kind() != io::ErrorKind::AddrInUse {
                let advice = match name.as_str() {
                    "coordinator" => "stop what uses it, or give another --listen",
                    _ => "its address is part of the array, so stop what uses it and try again",
                };
                return Err(Failure::failed(format!("{name} cannot listen on {address}: {error}: {advice}")));
            }
            sleep(FREED_POLL).await;
        }
    }
    Ok(())
}

fn is_free(address: SocketAddr) -> io::Result<()> {
    TcpListener::bind(address).map(drop)
}

fn kernel_first() -> u16 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(KERNEL_FIRST)
}

/// Where agents listen: on this machine alone.
pub(crate) const AGENT_HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_ports_differ_and_are_free() {
        let ports = choose(AGENT_HOST, 20, &[]).unwrap();
        let listeners: Vec<_> =
            ports.iter().map(|port| TcpListener::bind(SocketAddr::new(AGENT_HOST, *port)).unwrap()).collect();
        assert_eq!(listeners.len(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_taken_port_is_named() {
        let listener = TcpListener::bind((AGENT_HOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let error = until_free(&[("agent-2".to_owned(), address)]).await.unwrap_err();
        assert!(error.message.contains(&format!("agent-2 cannot listen on {address}")), "{}", error.message);
    }
}
