//! How `dev start` reaches a running `dev`: a Unix socket in the cluster's folder, one line each way.
//!
//! The path of such a socket may have 107 bytes at most, and a folder's may be longer. So both sides open the folder
//! and reach the socket through the number of the open folder.

use std::{
    fs::File,
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    time::timeout,
};

use crate::failure::Failure;

const NAME: &str = "control";

/// Longest request or answer in bytes.
const LINE_BYTES_MAX: u64 = 4096;

/// Longest wait for a request or an answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Where requests arrive.
#[derive(Debug)]
pub(crate) struct Control {
    listener: UnixListener,
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) line: String,
    stream: UnixStream,
}

impl Control {
    /// Listens in the folder `root`, which is locked: a socket that is there is a dead one's.
    pub(crate) fn listen(root: &Path) -> io::Result<Control> {
        match std::fs::remove_file(root.join(NAME)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let folder = File::open(root)?;
        Ok(Control { listener: UnixListener::bind(short_path(&folder))? })
    }

    /// The next request. One that cannot be read is passed over.
    pub(crate) async fn next(&self) -> Request {
        loop {
            let Ok((mut stream, _)) = self.listener.accept().await else {
                // Out of file descriptors, most likely: not now, but perhaps later.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            if let Ok(Ok(line)) = timeout(LIMIT, read_line(&mut stream)).await {
                return Request { line, stream };
            }
        }
    }
}

impl Request {
    /// Answers with one line. Whoever does not wait for it is not waited for.
    pub(crate) async fn answer(mut self, line: &str) {
        let _ = timeout(LIMIT, self.stream.write_all(format!("{line}\n").as_bytes())).await;
    }
}

/// Sends one line to the `dev` that runs in `root`, and returns its answer.
pub(crate) async fn ask(root: &Path, line: &str) -> Result<String, Failure> {
    let folder = match File::open(root) {
        Ok(folder) => folder,
        Err(error) => return Err(Failure::usage(format!("cannot open folder {}: {error}", root.display()))),
    };
    let mut stream = match UnixStream::connect(short_path(&folder)).await {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            let root = root.display();
            let message =
                format!("no `stripeset dev` runs in {root}: start one with `stripeset dev --dir {root}`");
            return Err(Failure::failed(message));
        }
        Err(error) => return Err(error.into()),
    };
    stream.write_all(format!("{line}\n").as_bytes()).await?;
    match timeout(LIMIT, read_line(&mut stream)).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Failure::failed(format!("the `stripeset dev` in {} does not answer", root.display()))),
    }
}

fn short_path(folder: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{NAME}", folder.as_raw_fd()))
}

async fn read_line(stream: &mut UnixStream) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut line).await?;
    match line.strip_suffix('\n') {
        Some(line) => Ok(line.to_owned()),
        None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the line has no end")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_folder_with_a_long_path_can_be_reached() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("a".repeat(200));
        std::fs::create_dir(&root).unwrap();
        let nobody = ask(&root, "x").await.unwrap_err();
        assert!(nobody.message.contains("no `stripeset dev` runs in"), "{}", nobody.message);
        let control = Control::listen(&root).unwrap();
        let (answer, ()) = tokio::join!(ask(&root, "start agent-1"), async {
            let request = control.next().await;
            assert_eq!(request.line, "start agent-1");
            request.answer("ok").await;
        });
        assert_eq!(answer.unwrap(), "ok");
        drop(control);
        // What a `dev` that was killed leaves behind is no hindrance.
        Control::listen(&root).unwrap();
    }
}
