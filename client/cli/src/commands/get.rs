//! `get`: an object, or a part of it, becomes a file or goes to standard output.
//!
//! A regular file is replaced atomically: the bytes go to a temporary file beside it, which takes its name once they
//! are all there, checked and on disk. Whatever goes wrong before that leaves the old file as it was.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use indicatif::ProgressBar;
use serde::Serialize;
use stripeset_client::{Client, ObjectReader};
use tempfile::NamedTempFile;
use tokio::{
    fs::File,
    io::{AsyncWrite, AsyncWriteExt},
};
use tokio_stream::StreamExt;

use super::json::ObjectRow;
use crate::{arguments::GetArguments, failure::Failure, output::Output, progress, quantity::show_size};

#[derive(Serialize)]
struct Got {
    object: ObjectRow,
    local: String,
    offset: u64,
    length: u64,
}

pub(super) async fn run(endpoint: &str, arguments: GetArguments, output: Output) -> Result<(), Failure> {
    let GetArguments { name, local, offset, length } = arguments;
    let to_stdout = local == Path::new("-");
    if to_stdout && output.is_json() {
        return Err(Failure::usage(
            "with --output json standard output is one JSON document: give a file, not -",
        ));
    }
    let target = if to_stdout { Target::Stdout } else { Target::find(&local)? };
    let client = Client::connect(endpoint).await?;
    let reader = client.get_range(&name, offset, length).await?;
    let got = Got {
        object: ObjectRow::from(reader.object()),
        local: local.display().to_string(),
        offset: reader.offset(),
        length: reader.length(),
    };
    let bar = progress::bytes(&name, Some(reader.length()));
    let end = target.write(reader, &bar).await;
    bar.finish_and_clear();
    end?;
    if to_stdout {
        return Ok(());
    }
    output.show(&got, || format!("wrote {} ({} of {name})", got.local, show_size(got.length)))
}

/// Where the bytes go.
enum Target {
    Stdout,
    /// Written as it is: a device, a pipe.
    Special(PathBuf),
    /// Replaced as a whole: a regular file, which may not be there yet.
    Regular {
        path: PathBuf,
        permissions: Permissions,
    },
}

impl Target {
    fn find(local: &Path) -> Result<Target, Failure> {
        let metadata = match fs::metadata(local) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // What the process's umask leaves of these.
                let permissions = Permissions::from_mode(0o666);
                return Ok(Target::Regular { path: local.to_owned(), permissions });
            }
            Err(error) => return Err(cannot_write(local, error)),
        };
        if metadata.is_dir() {
            return Err(Failure::usage(format!("{} is a folder: give the name of a file", local.display())));
        }
        if !metadata.is_file() {
            return Ok(Target::Special(local.to_owned()));
        }
        // Through a symbolic link: the file it leads to is replaced, and the link stays.
        let path = fs::canonicalize(local).map_err(|error| cannot_write(local, error))?;
        Ok(Target::Regular { path, permissions: metadata.permissions() })
    }

    async fn write(self, reader: ObjectReader, bar: &ProgressBar) -> Result<(), Failure> {
        match self {
            Target::Stdout => match copy(reader, tokio::io::stdout(), bar).await {
                Err(Ending::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                Err(Ending::Write(error)) => {
                    Err(Failure::failed(format!("cannot write to standard output: {error}")))
                }
                Err(Ending::Read(error)) => Err(error.into()),
                Ok(_) => Ok(()),
            },
            Target::Special(path) => {
                let file = File::options().write(true).open(&path).await;
                let file = file.map_err(|error| cannot_write(&path, error))?;
                copy(reader, file, bar).await.map(|_| ()).map_err(|ending| ending.failure(&path))
            }
            Target::Regular { path, permissions } => replace(reader, &path, permissions, bar).await,
        }
    }
}

async fn replace(
    reader: ObjectReader,
    path: &Path,
    permissions: Permissions,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // Removed when it is dropped, which is what happens on every way out of here but the last one.
    let temporary =
        tempfile::Builder::new().prefix(".stripeset-get-").permissions(permissions).tempfile_in(folder);
    let temporary = temporary.map_err(|error| cannot_write(path, error))?;
    let file = temporary.as_file().try_clone().map_err(|error| cannot_write(path, error))?;
    let file = copy(reader, File::from_std(file), bar).await.map_err(|ending| ending.failure(path))?;
    file.sync_all().await.map_err(|error| cannot_write(path, error))?;
    rename(temporary, path, folder).map_err(|error| cannot_write(path, error))
}

/// Gives the file its name, durably: the name is in the folder, so the folder is synced too.
fn rename(temporary: NamedTempFile, path: &Path, folder: &Path) -> io::Result<()> {
    temporary.persist(path)?;
    fs::File::open(folder)?.sync_all()
}

/// Why a copy ended early.
enum Ending {
    Read(stripeset_client::Error),
    Write(io::Error),
}

impl Ending {
    fn failure(self, path: &Path) -> Failure {
        match self {
            Ending::Read(error) => error.into(),
            Ending::Write(error) => cannot_write(path, error),
        }
    }
}

async fn copy<W: AsyncWrite + Unpin>(
    mut reader: ObjectReader,
    mut writer: W,
    bar: &ProgressBar,
) -> Result<W, Ending> {
    while let Some(bytes) = reader.next().await {
        let bytes = bytes.map_err(Ending::Read)?;
        writer.write_all(&bytes).await.map_err(Ending::Write)?;
        bar.inc(bytes.len() as u64);
    }
    writer.flush().await.map_err(Ending::Write)?;
    Ok(writer)
}

fn cannot_write(path: &Path, error: io::Error) -> Failure {
    Failure::failed(format!("cannot write {}: {error}", path.display()))
}
