//! `put`: one file, or standard input, becomes one object.

use std::{io, path::Path};

use stripeset_client::{Client, PutOptions};
use tokio::{fs::File, io::AsyncRead};

use super::json::ObjectRow;
use crate::{arguments::PutArguments, failure::Failure, output::Output, progress, quantity::show_size};

pub(super) async fn run(endpoint: &str, arguments: PutArguments, output: Output) -> Result<(), Failure> {
    let PutArguments { local, name } = arguments;
    // The file first: a wrong name is told even if nobody serves.
    let (source, size_bytes) = open(&local).await?;
    let client = Client::connect(endpoint).await?;
    let bar = progress::bytes(&name, size_bytes);
    let options = PutOptions { size_bytes, create_only: false };
    let object = client.put_with(&name, bar.wrap_async_read(source), options).await;
    bar.finish_and_clear();
    let object = object?;
    output.show(&ObjectRow::from(&object), || format!("stored {name} ({})", show_size(object.size_bytes)))
}

type Source = Box<dyn AsyncRead + Send + Unpin>;

/// The source and, for a regular file, its length in bytes.
async fn open(local: &Path) -> Result<(Source, Option<u64>), Failure> {
    if local == Path::new("-") {
        return Ok((Box::new(tokio::io::stdin()), None));
    }
    let cannot = |error: io::Error| {
        let message = format!("cannot read {}: {error}", local.display());
        match error.kind() {
            io::ErrorKind::NotFound => Failure::usage(message + ": give a file, or - for standard input"),
            _ => Failure::failed(message),
        }
    };
    let file = File::open(local).await.map_err(cannot)?;
    let metadata = file.metadata().await.map_err(cannot)?;
    if metadata.is_dir() {
        return Err(Failure::usage(format!("{} is a folder: put stores one file", local.display())));
    }
    Ok((Box::new(file), metadata.is_file().then_some(metadata.len())))
}
