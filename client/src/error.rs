//! The one error type of the SDK: the closed list of kinds from the wire, and what went wrong on this side of it.
//!
//! Decides how failures of the transport are named; the kinds themselves, and what they ask of the caller, belong to
//! `stripeset_proto`.

use std::{error::Error as StdError, fmt, io, sync::Arc, time::Duration};

use stripeset_proto::ErrorKind;
use tonic::{ConnectError, Status, TimeoutExpired};

/// Why a call failed, and what to do about it.
///
/// ```
/// use stripeset_client::{Client, ErrorKind};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
/// let client = Client::connect(cluster.endpoint()).await?;
/// let error = client.stat("no such thing").await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// assert!(!error.retry_helps());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    retry_after: Option<Duration>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// For people: what was given, what is allowed, what to do.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// How long the server asks to wait before trying again, if it said so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Whether doing the same again may help without anyone changing anything. For [`ErrorKind::Unknown`] the first
    /// attempt may have been carried out after all.
    pub fn retry_helps(&self) -> bool {
        self.kind.retry_helps()
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), retry_after: None, source: None }
    }

    pub(crate) fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    pub(crate) fn deadline(what: &str, limit: Duration) -> Self {
        Error::new(ErrorKind::DeadlineExceeded, format!("{what} within {limit:?}"))
    }

    /// The answer lacks something that every server of ours sends.
    pub(crate) fn incomplete(what: &str) -> Self {
        Error::new(ErrorKind::Internal, format!("the server's answer is incomplete: no {what}"))
    }

    /// Reads a status of a call to `endpoint`. One that the server sent says its kind itself. One that the transport
    /// made is told apart by whether anything can have been sent.
    pub(crate) fn from_status(status: Status, endpoint: &str) -> Self {
        let Some(source) = status.source() else {
            let error = stripeset_proto::Error::from(status);
            return Error {
                kind: error.kind,
                message: error.message,
                retry_after: error.retry_after,
                source: None,
            };
        };
        if find::<ConnectError>(source).is_some() {
            return Error::unreachable(endpoint, source).with_source(status);
        }
        if find::<TimeoutExpired>(source).is_some() {
            let message = format!("no answer from {endpoint} within the call's deadline");
            return Error::new(ErrorKind::DeadlineExceeded, message).with_source(status);
        }
        let message = format!("the connection to {endpoint} broke: {}", innermost(source));
        Error::new(ErrorKind::Unknown, message).with_source(status)
    }

    /// No connection could be made.
    pub(crate) fn unreachable(endpoint: &str, cause: &(dyn StdError + 'static)) -> Self {
        let refused =
            find::<io::Error>(cause).is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        let (why, advice) = if refused {
            (
                "connection refused".to_owned(),
                "is the coordinator running? (`stripeset dev` starts a cluster here)",
            )
        } else {
            (innermost(cause), "is the address right, and is the coordinator running?")
        };
        Error::new(ErrorKind::Unavailable, format!("cannot reach {endpoint}: {why}: {advice}"))
    }
}

/// The first error of type `E` in the chain of sources that begins with `error`.
fn find<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    chain(error).find_map(|error| error.downcast_ref())
}

/// The last error in the chain of sources: the one that says what happened.
fn innermost(error: &(dyn StdError + 'static)) -> String {
    chain(error).last().map_or_else(String::new, |last| last.to_string())
}

fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| StdError::source(error))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}

/// For [`tokio::io::AsyncRead`] and whoever wants one error type for files and objects.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match error.kind {
            ErrorKind::InvalidArgument => io::ErrorKind::InvalidInput,
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
            ErrorKind::Full => io::ErrorKind::StorageFull,
            ErrorKind::DeadlineExceeded => io::ErrorKind::TimedOut,
            ErrorKind::DataLoss => io::ErrorKind::InvalidData,
            ErrorKind::Stale
            | ErrorKind::Precondition
            | ErrorKind::Busy
            | ErrorKind::Unavailable
            | ErrorKind::Unknown
            | ErrorKind::Internal => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transport(cause: impl StdError + Send + Sync + 'static) -> Status {
        Status::from_error(Box::new(cause))
    }

    #[test]
    fn a_status_of_the_server_keeps_its_kind() {
        let status = Status::from(stripeset_proto::Error::busy("full up", Duration::from_millis(30)));
        let error = Error::from_status(status, "http://a:1");
        assert_eq!((error.kind(), error.message()), (ErrorKind::Busy, "full up"));
        assert_eq!(error.retry_after(), Some(Duration::from_millis(30)));
    }

    #[test]
    fn a_failure_to_connect_is_told_from_a_connection_that_broke() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let error = Error::from_status(transport(ConnectError(Box::new(refused))), "http://a:1");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().starts_with("cannot reach http://a:1: connection refused"), "{error}");

        let broken = io::Error::new(io::ErrorKind::ConnectionReset, "reset by peer");
        let error = Error::from_status(transport(broken), "http://a:1");
        assert_eq!(error.kind(), ErrorKind::Unknown);
        assert!(error.message().contains("broke: reset by peer"), "{error}");
    }

    #[test]
    fn a_deadline_of_the_transport_is_a_deadline() {
        let error = Error::from_status(transport(TimeoutExpired(())), "http://a:1");
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    }
}
