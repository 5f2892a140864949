//! Standard output: a table for people or exactly one JSON document, and no panic when nobody reads it any more.

use std::io::{self, Write, stdout};

use serde::Serialize;

use crate::{arguments::Format, failure::Failure};

/// Where a command's result goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    format: Format,
}

impl Output {
    pub(crate) fn new(format: Format) -> Self {
        Output { format }
    }

    pub(crate) fn is_json(self) -> bool {
        self.format == Format::Json
    }

    /// Prints the result of a command: `document` as JSON, or what `text` makes for people.
    pub(crate) fn show(
        self,
        document: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        let mut printed = match self.format {
            Format::Table => text(),
            Format::Json => match serde_json::to_string_pretty(document) {
                Ok(json) => json,
                Err(error) => return Err(Failure::failed(format!("cannot write JSON: {error}"))),
            },
        };
        if !printed.is_empty() && !printed.ends_with('\n') {
            printed.push('\n');
        }
        print(&printed).map(|_read| ())
    }
}

/// Writes to standard output at once. False if whoever read it has had enough, which is no failure of ours.
pub(crate) fn print(text: &str) -> Result<bool, Failure> {
    let mut out = stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::failed(format!("cannot write to standard output: {error}"))),
    }
}
