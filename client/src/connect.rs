//! How a connection to a coordinator is set up: transport settings, and a clear word when it cannot be made.

use std::time::Duration;

use stripeset_proto::{ErrorKind, transport};
use tonic::transport::{Channel, Endpoint};

use crate::Error;

/// Checks what a user gave as endpoint and returns its settings.
pub(crate) fn endpoint(url: &str, connect_deadline: Duration) -> Result<Endpoint, Error> {
    let wrong = |why: &str| {
        let message = format!("endpoint {url:?} {why}: write it as http://HOST:PORT");
        Error::new(ErrorKind::InvalidArgument, message)
    };
    let endpoint = match Endpoint::from_shared(url.to_owned()) {
        Ok(endpoint) => endpoint,
        Err(error) => return Err(wrong("is not a URL").with_source(error)),
    };
    match endpoint.uri().scheme_str() {
        Some("http") => {}
        Some("https") => return Err(wrong("asks for TLS, which this version does not speak")),
        _ => return Err(wrong("has no scheme")),
    }
    if endpoint.uri().host().is_none_or(str::is_empty) {
        return Err(wrong("has no host"));
    }
    Ok(transport::endpoint(endpoint).connect_timeout(connect_deadline))
}

/// Connects, once. The channel connects again by itself when the connection breaks later.
pub(crate) async fn connect(url: &str, connect_deadline: Duration) -> Result<Channel, Error> {
    let endpoint = endpoint(url, connect_deadline)?;
    // The endpoint's own limit covers TCP alone; a peer that accepts and says nothing has to be bounded here.
    match tokio::time::timeout(connect_deadline, endpoint.connect()).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(Error::unreachable(url, &error).with_source(error)),
        Err(_) => Err(Error::new(
            ErrorKind::Unavailable,
            format!("cannot reach {url}: no answer within {connect_deadline:?}: is the address right?"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_endpoint_is_refused_with_the_right_way_to_write_it() {
        for url in ["", "127.0.0.1:7420", "http://", "ftp://a:1", "https://a:1", "http://a b"] {
            let error = endpoint(url, Duration::from_secs(1)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
            assert!(error.message().contains("http://HOST:PORT"), "{error}");
        }
        endpoint("http://127.0.0.1:7420", Duration::from_secs(1)).unwrap();
    }

    #[tokio::test]
    async fn nobody_there_is_said_so() {
        // Bound and dropped: nobody listens on it now.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let error = connect(&format!("http://127.0.0.1:{port}"), Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("connection refused: is the coordinator running?"), "{error}");
    }

    #[tokio::test]
    async fn a_peer_that_says_nothing_is_not_waited_for() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        // HTTP/2 lets a client go ahead before the server says anything, so the connection may well be made.
        let client = crate::Client::builder(url)
            .connect_deadline(Duration::from_millis(50))
            .call_deadline(Duration::from_millis(50))
            .connect()
            .await;
        let error = match client {
            Ok(client) => client.stat("a").await.unwrap_err(),
            Err(error) => error,
        };
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded), "{error}");
    }
}
