//! How a command ends when it does not succeed: what is said, and the exit code.

use std::{error::Error, io, process::ExitCode};

use stripeset_client::ErrorKind;

/// Exit codes other than 0, as the command line promises them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// It was tried and failed.
    Failed = 1,
    /// What was asked for makes no sense.
    Usage = 2,
    /// There is no such object.
    NotFound = 3,
    /// Bytes are lost or wrong.
    DataLoss = 4,
}

/// A command that did not succeed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    /// For stderr; nothing is printed if empty, because all was said already.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Failure { code: Code::Failed, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure { code: Code::Usage, message: message.into() }
    }

    /// The output says what is wrong; only the exit code is left to tell.
    pub(crate) fn silent(code: Code) -> Self {
        Failure { code, message: String::new() }
    }

    /// Says it on stderr.
    pub(crate) fn report(self) -> ExitCode {
        if !self.message.is_empty() {
            eprintln!("stripeset: {}", self.message);
        }
        ExitCode::from(self.code as u8)
    }
}

impl From<stripeset_client::Error> for Failure {
    fn from(error: stripeset_client::Error) -> Self {
        // A local file that cannot be read makes the bytes invalid, not the command.
        let local = error.source().is_some_and(|source| source.is::<io::Error>());
        let code = match error.kind() {
            ErrorKind::InvalidArgument if !local => Code::Usage,
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::DataLoss => Code::DataLoss,
            _ => Code::Failed,
        };
        Failure { code, message: error.message().to_owned() }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        // An error of the SDK may come through an interface for files.
        match error.downcast::<stripeset_client::Error>() {
            Ok(error) => error.into(),
            Err(error) => Failure::failed(error.to_string()),
        }
    }
}
