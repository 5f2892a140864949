//! The closed list of errors that stripeset shows to the outside, and their one mapping to gRPC status and back.
//!
//! Each kind says what the caller should do. Services have their own typed errors and turn them into [`Error`] at
//! their edge; only this file builds a [`tonic::Status`].

use std::{fmt, time::Duration};

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// `domain` of the `google.rpc.ErrorInfo` in every error of ours.
pub const DOMAIN: &str = "stripeset";

/// What the caller should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Fix the request.
    InvalidArgument,
    /// There is no such thing.
    NotFound,
    /// There is such a thing already.
    AlreadyExists,
    /// Fetch anew: what the request rests on has changed.
    Stale,
    /// Change the state first.
    Precondition,
    /// Make room first: the array is full.
    Full,
    /// Back off by the given delay, then retry: a limit is reached.
    Busy,
    /// Retry: too few members, or the service, answer at the moment.
    Unavailable,
    /// The time given was not enough. Retry with more.
    DeadlineExceeded,
    /// Neither done nor failed; the same request may be sent again.
    Unknown,
    /// Restore from elsewhere: the message says which bytes.
    DataLoss,
    /// Report it: a fault of stripeset.
    Internal,
}

/// All kinds, for tables and tests.
pub const KINDS: [ErrorKind; 12] = [
    ErrorKind::InvalidArgument,
    ErrorKind::NotFound,
    ErrorKind::AlreadyExists,
    ErrorKind::Stale,
    ErrorKind::Precondition,
    ErrorKind::Full,
    ErrorKind::Busy,
    ErrorKind::Unavailable,
    ErrorKind::DeadlineExceeded,
    ErrorKind::Unknown,
    ErrorKind::DataLoss,
    ErrorKind::Internal,
];

impl ErrorKind {
    /// The word that stands in `google.rpc.ErrorInfo.reason`.
    pub fn reason(self) -> &'static str {
        match self {
            ErrorKind::InvalidArgument => "INVALID_ARGUMENT",
            ErrorKind::NotFound => "NOT_FOUND",
            ErrorKind::AlreadyExists => "ALREADY_EXISTS",
            ErrorKind::Stale => "STALE",
            ErrorKind::Precondition => "PRECONDITION",
            ErrorKind::Full => "FULL",
            ErrorKind::Busy => "BUSY",
            ErrorKind::Unavailable => "UNAVAILABLE",
            ErrorKind::DeadlineExceeded => "DEADLINE_EXCEEDED",
            ErrorKind::Unknown => "UNKNOWN_OUTCOME",
            ErrorKind::DataLoss => "DATA_LOSS",
            ErrorKind::Internal => "INTERNAL",
        }
    }

    /// The gRPC status code.
    pub fn code(self) -> Code {
        match self {
            ErrorKind::InvalidArgument => Code::InvalidArgument,
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::AlreadyExists => Code::AlreadyExists,
            ErrorKind::Stale => Code::Aborted,
            ErrorKind::Precondition => Code::FailedPrecondition,
            ErrorKind::Full | ErrorKind::Busy => Code::ResourceExhausted,
            ErrorKind::Unavailable => Code::Unavailable,
            ErrorKind::DeadlineExceeded => Code::DeadlineExceeded,
            ErrorKind::Unknown => Code::Unknown,
            ErrorKind::DataLoss => Code::DataLoss,
            ErrorKind::Internal => Code::Internal,
        }
    }

    /// Whether sending the same request again may help without anyone changing anything.
    pub fn retry_helps(self) -> bool {
        matches!(
            self,
            ErrorKind::Busy | ErrorKind::Unavailable | ErrorKind::DeadlineExceeded | ErrorKind::Unknown
        )
    }
}

/// An error as the outside sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What to do.
    pub kind: ErrorKind,
    /// For people: what was given, what is allowed, what to do.
    pub message: String,
    /// For [`ErrorKind::Busy`] and [`ErrorKind::Unavailable`]: how long to wait before trying again.
    pub retry_after: Option<Duration>,
}

impl Error {
    /// An error without a delay.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), retry_after: None }
    }

    /// The request is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::InvalidArgument, message)
    }

    /// A limit is reached; try again after the delay.
    pub fn busy(message: impl Into<String>, retry_after: Duration) -> Self {
        Error { kind: ErrorKind::Busy, message: message.into(), retry_after: Some(retry_after) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<Error> for Status {
    #[expect(clippy::disallowed_methods, reason = "the one place that builds a status")]
    fn from(error: Error) -> Status {
        let mut details = ErrorDetails::new();
        details.set_error_info(
            error.kind.reason(),
            DOMAIN,
            std::collections::HashMap::<String, String>::new(),
        );
        if let Some(delay) = error.retry_after {
            details.set_retry_info(Some(delay));
        }
        Status::with_error_details(error.kind.code(), error.message, details)
    }
}

/// Reads a status of ours by its details; one from the transport or another server by its code.
impl From<Status> for Error {
    fn from(status: Status) -> Error {
        let details = status.get_error_details();
        let reason =
            details.error_info().filter(|info| info.domain == DOMAIN).map(|info| info.reason.as_str());
        let kind = match KINDS.into_iter().find(|kind| Some(kind.reason()) == reason) {
            Some(kind) => kind,
            None => kind_of_foreign(status.code()),
        };
        let retry_after = details.retry_info().and_then(|info| info.retry_delay);
        Error { kind, message: status.message().to_owned(), retry_after }
    }
}

fn kind_of_foreign(code: Code) -> ErrorKind {
    match code {
        Code::InvalidArgument | Code::OutOfRange => ErrorKind::InvalidArgument,
        Code::NotFound => ErrorKind::NotFound,
        Code::AlreadyExists => ErrorKind::AlreadyExists,
        Code::Aborted => ErrorKind::Stale,
        Code::FailedPrecondition | Code::PermissionDenied | Code::Unauthenticated | Code::Unimplemented => {
            ErrorKind::Precondition
        }
        Code::ResourceExhausted => ErrorKind::Busy,
        Code::Unavailable => ErrorKind::Unavailable,
        Code::DeadlineExceeded => ErrorKind::DeadlineExceeded,
        Code::DataLoss => ErrorKind::DataLoss,
        Code::Cancelled | Code::Unknown => ErrorKind::Unknown,
        Code::Ok | Code::Internal => ErrorKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_the_wire() {
        for kind in KINDS {
            let retry_after = (kind == ErrorKind::Busy).then(|| Duration::from_millis(250));
            let error = Error { kind, message: format!("about {kind:?}"), retry_after };
            let status = Status::from(error.clone());
            assert_eq!(status.code(), kind.code());
            assert_eq!(Error::from(status), error);
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a status of another server")]
    fn a_foreign_status_is_read_by_its_code() {
        assert_eq!(Error::from(Status::new(Code::Unavailable, "x")).kind, ErrorKind::Unavailable);
        assert_eq!(Error::from(Status::new(Code::ResourceExhausted, "x")).kind, ErrorKind::Busy);
    }
}
