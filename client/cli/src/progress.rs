//! Progress bars: on stderr, and only if that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over `length` bytes; a counter if the length is not known. Draws nothing unless stderr is a terminal.
pub(crate) fn bytes(what: &str, length: Option<u64>) -> ProgressBar {
    let (bar, template) = match length {
        Some(length) => {
            (ProgressBar::new(length), "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
        }
        None => (ProgressBar::new_spinner(), "{msg} {bytes} {bytes_per_sec}"),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.with_message(what.to_owned())
}
