//! Storing the demo's files and comparing what is read back with them, byte for byte, many at a time.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use indicatif::ProgressBar;
use stripeset_client::{Client, ErrorKind, PutOptions};
use tokio::{fs::File, io::AsyncReadExt, sync::Semaphore};

use super::files::SourceFile;

/// Small files in flight at once. A large file counts as several, because many large ones at once only take memory.
const IN_FLIGHT_MAX: u32 = 16;
const LARGE_BYTES: u64 = 1 << 20;
const LARGE_WEIGHT: u32 = 4;

/// What became of all files of one step.
#[derive(Debug, Default)]
pub(super) struct Transfer {
    pub(super) objects: u64,
    pub(super) bytes: u64,
    pub(super) failed: Vec<Failed>,
}

/// A file that could not be stored, or did not come back as it was.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) name: String,
    pub(super) reason: String,
    /// Bytes are lost or wrong, as opposed to not asked for.
    pub(super) lost: bool,
}

/// Stores all files.
pub(super) async fn store(client: &Client, files: &[SourceFile], bar: &ProgressBar) -> Transfer {
    each(files, async |file| {
        let failed = |reason: String| Failed { name: file.name.clone(), reason, lost: false };
        let source = File::open(&file.path).await.map_err(|error| failed(error.to_string()))?;
        let options = PutOptions { size_bytes: Some(file.bytes), create_only: true };
        let put = client.put_with(&file.name, bar.wrap_async_read(source), options).await;
        put.map(|object| object.size_bytes).map_err(|error| failed(error.message().to_owned()))
    })
    .await
}

/// Reads all files back and compares them with their sources.
pub(super) async fn compare(client: &Client, files: &[SourceFile], bar: &ProgressBar) -> Transfer {
    each(files, async |file| match compare_one(client, file, bar).await {
        Ok(bytes) => Ok(bytes),
        Err((reason, lost)) => Err(Failed { name: file.name.clone(), reason, lost }),
    })
    .await
}

async fn each(files: &[SourceFile], work: impl AsyncFn(&SourceFile) -> Result<u64, Failed>) -> Transfer {
    let in_flight = Semaphore::new(IN_FLIGHT_MAX as usize);
    let mut results = stream::iter(files)
        .map(|file| async {
            let weight = if file.bytes >= LARGE_BYTES { LARGE_WEIGHT } else { 1 };
            // Never closed, so the permit is always got.
            let _permit = in_flight.acquire_many(weight).await.ok();
            work(file).await
        })
        .buffer_unordered(IN_FLIGHT_MAX as usize);
    let mut transfer = Transfer::default();
    while let Some(result) = results.next().await {
        match result {
            Ok(bytes) => {
                transfer.objects += 1;
                transfer.bytes += bytes;
            }
            Err(failed) => transfer.failed.push(failed),
        }
    }
    transfer
}

async fn compare_one(client: &Client, file: &SourceFile, bar: &ProgressBar) -> Result<u64, (String, bool)> {
    let source = |error: std::io::Error| (format!("the source cannot be read any more: {error}"), false);
    let read =
        |error: stripeset_client::Error| (error.message().to_owned(), error.kind() == ErrorKind::DataLoss);
    let mut expected = File::open(&file.path).await.map_err(source)?;
    let mut reader = client.get(&file.name).await.map_err(read)?;
    let mut buffer = Vec::new();
    let mut compared = 0u64;
    while let Some(bytes) = reader.try_next().await.map_err(read)? {
        buffer.resize(bytes.len(), 0);
        if let Err(error) = expected.read_exact(&mut buffer).await {
            return Err(match error.kind() {
                std::io::ErrorKind::UnexpectedEof => ("it came back longer than its source".to_owned(), true),
                _ => source(error),
            });
        }
        if let Some(at) = first_difference(&buffer, &bytes) {
            return Err((format!("byte {} differs from the source", compared + at as u64), true));
        }
        compared += bytes.len() as u64;
        bar.inc(bytes.len() as u64);
    }
    match expected.read(&mut [0]).await.map_err(source)? {
        0 => Ok(compared),
        _ => Err((format!("it came back with {compared} bytes, its source has more"), true)),
    }
}

/// Where two slices of the same length first differ.
fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    if a == b { None } else { a.iter().zip(b).position(|(a, b)| a != b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_file_is_worked_on_once_and_failures_are_kept() {
        let file = |n: u64| SourceFile { path: "x".into(), name: n.to_string(), bytes: n << 18 };
        let files: Vec<_> = (0..100).map(file).collect();
        let transfer = each(&files, async |file| {
            tokio::task::yield_now().await;
            if file.name.ends_with('7') {
                return Err(Failed { name: file.name.clone(), reason: String::new(), lost: true });
            }
            Ok(file.bytes)
        })
        .await;
        assert_eq!((transfer.objects, transfer.failed.len()), (90, 10));
        let sevens: u64 = (0..10).map(|n| 10 * n + 7).sum();
        assert_eq!(transfer.bytes, (4950 - sevens) << 18);
    }

    #[test]
    fn the_first_difference_is_found() {
        assert_eq!(first_difference(b"abc", b"abc"), None);
        assert_eq!(first_difference(b"abc", b"aXX"), Some(1));
    }
}
