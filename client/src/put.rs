//! Storing objects: the bytes are streamed as they come, with checksums made on the way, and never held as a whole.
//!
//! A put changes nothing until its trailer is sent, so an attempt that is given up leaves the old object. It is
//! repeated on its own only while that is safe: see [`Client::put`] and [`Client::put_bytes`].

use std::{io, pin::pin, time::Duration};

use bytes::{Bytes, BytesMut};
use stripeset_proto::{
    ErrorKind, limits,
    v1::{self, put_object_request::Part},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;

use crate::{Client, Error, ObjectInfo, objects::object, retry::Repeat};

/// Messages read from the source and not yet taken by the connection. With one, nothing of the source is read before
/// the header has left, which is how a put knows that it can begin again.
const MESSAGES_WAITING_MAX: usize = 1;

/// What to tell the server before the bytes of a put.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// Length in bytes, if known: space is then checked before the first byte is sent, and a source of another
    /// length is refused.
    pub size_bytes: Option<u64>,
    /// Fail with `AlreadyExists` instead of replacing an object.
    pub create_only: bool,
}

impl Client {
    /// Stores all that `source` gives as object `name`, replacing the whole object atomically: readers see the old
    /// bytes or the new ones. When this returns, the object is durable.
    ///
    /// Holds two messages of 256 KiB in memory at most. Tried again as long as nothing was read from `source`.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong name or if `source` fails (the I/O error is the source); `Full` and `Busy` as
    /// the server says; `Unknown` if the connection broke, in which case the object is the old or the new one.
    ///
    /// ```
    /// # use stripeset_client::Client;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// # let client = Client::connect(cluster.endpoint()).await?;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("a");
    /// # std::fs::write(&path, vec![7; 1_000_000])?;
    /// let file = tokio::fs::File::open(path).await?;
    /// let object = client.put("backups/monday", file).await?;
    /// assert_eq!(object.size_bytes, 1_000_000);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn put(&self, name: &str, source: impl AsyncRead + Unpin) -> Result<ObjectInfo, Error> {
        self.put_with(name, source, PutOptions::default()).await
    }

    /// As [`put`](Self::put), with options.
    ///
    /// # Errors
    /// As [`put`](Self::put), and those that the options ask for.
    ///
    /// ```
    /// # use stripeset_client::{Client, ErrorKind, PutOptions};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// # let client = Client::connect(cluster.endpoint()).await?;
    /// let once = PutOptions { size_bytes: Some(5), create_only: true };
    /// client.put_with("a", &b"first"[..], once.clone()).await?;
    /// let error = client.put_with("a", &b"again"[..], once).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn put_with(
        &self,
        name: &str,
        source: impl AsyncRead + Unpin,
        options: PutOptions,
    ) -> Result<ObjectInfo, Error> {
        let header = v1::PutObjectHeader {
            name: name.to_owned(),
            size_bytes: options.size_bytes,
            create_only: options.create_only,
        };
        self.put_source(header, Source::Reader { reader: source, buffer: BytesMut::new(), begun: false })
            .await
    }

    /// Stores `bytes` as object `name`, as [`put`](Self::put) does, without copying them. Tried again whenever that
    /// may help: putting the same bytes twice does no harm.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// ```
    /// # use stripeset_client::Client;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// # let client = Client::connect(cluster.endpoint()).await?;
    /// let object = client.put_bytes("a", "12345").await?;
    /// assert_eq!(object.size_bytes, 5);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn put_bytes(&self, name: &str, bytes: impl Into<Bytes>) -> Result<ObjectInfo, Error> {
        let all = bytes.into();
        let size_bytes = Some(all.len() as u64);
        let header = v1::PutObjectHeader { name: name.to_owned(), size_bytes, create_only: false };
        self.put_source(header, Source::<&[u8]>::Bytes { all, given: 0 }).await
    }

    async fn put_source<R: AsyncRead + Unpin>(
        &self,
        header: v1::PutObjectHeader,
        mut source: Source<R>,
    ) -> Result<ObjectInfo, Error> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let error = match self.put_once(header.clone(), &mut source).await {
                Ok(info) => return Ok(info),
                Err(error) => error,
            };
            let repeat = source.repeat();
            let delay = self.settings.retry.delay(repeat, attempts, &error).filter(|_| source.rewind());
            match delay {
                Some(delay) => sleep(delay).await,
                None => return Err(error),
            }
        }
    }

    async fn put_once<R: AsyncRead + Unpin>(
        &self,
        header: v1::PutObjectHeader,
        source: &mut Source<R>,
    ) -> Result<ObjectInfo, Error> {
        let idle = self.settings.idle_deadline;
        let mut service = self.objects();
        let (sender, receiver) = mpsc::channel(MESSAGES_WAITING_MAX);
        let mut call = pin!(service.put_object(ReceiverStream::new(receiver)));
        // The answer may come first: an error, and then the rest of the source need not be read.
        let answer = tokio::select! {
            answer = &mut call => answer,
            fed = feed(sender, header, source, idle) => {
                // Leaving here without a trailer sent drops the call, and the object stays as it was.
                fed?;
                match timeout(idle, call).await {
                    Ok(answer) => answer,
                    Err(_) => return Err(Error::deadline("all bytes are sent, but no answer came", idle)),
                }
            }
        };
        object(answer.map_err(|status| self.error(status))?.into_inner().object)
    }
}

/// Sends header, data and trailer as fast as the connection takes them. Returns early, without an error, if the call
/// has ended: its answer says why.
async fn feed<R: AsyncRead + Unpin>(
    sender: mpsc::Sender<v1::PutObjectRequest>,
    header: v1::PutObjectHeader,
    source: &mut Source<R>,
    idle: Duration,
) -> Result<(), Error> {
    let mut part = Part::Header(header);
    let (mut size_bytes, mut crc) = (0, 0);
    loop {
        let last = matches!(part, Part::Trailer(_));
        if sender.send(v1::PutObjectRequest { part: Some(part) }).await.is_err() || last {
            return Ok(());
        }
        // Room before bytes: what is read is sent at once, and the wait for the server is told from that for the
        // source, which may take as long as it likes.
        match timeout(idle, sender.reserve()).await {
            Ok(Ok(_room)) => {}
            Ok(Err(_)) => return Ok(()),
            Err(_) => return Err(Error::deadline("the server took no more bytes of the put", idle)),
        }
        let piece = match source.next().await {
            Ok(piece) => piece,
            Err(error) => {
                let message = format!("cannot read the bytes to put: {error}");
                return Err(Error::new(ErrorKind::InvalidArgument, message).with_source(error));
            }
        };
        part = if piece.is_empty() {
            Part::Trailer(v1::PutObjectTrailer { size_bytes, crc32c: Some(crc) })
        } else {
            size_bytes += piece.len() as u64;
            crc = crc32c::crc32c_append(crc, &piece);
            // No checksum of its own: the trailer's covers every byte, and nothing is visible before it was compared.
            Part::Data(v1::PutObjectData { data: piece, crc32c: None })
        };
    }
}

/// Where the bytes of a put come from.
enum Source<R> {
    /// Something that can be read once.
    Reader { reader: R, buffer: BytesMut, begun: bool },
    /// Bytes in memory, which can be given as often as needed.
    Bytes { all: Bytes, given: usize },
}

impl<R: AsyncRead + Unpin> Source<R> {
    /// The next message's bytes: as many as a message takes, except at the end; empty after it.
    async fn next(&mut self) -> io::Result<Bytes> {
        match self {
            Source::Reader { reader, buffer, begun } => {
                *begun = true;
                buffer.reserve(limits::OBJECT_DATA_BYTES);
                while buffer.len() < limits::OBJECT_DATA_BYTES {
                    let room = (limits::OBJECT_DATA_BYTES - buffer.len()) as u64;
                    if (&mut *reader).take(room).read_buf(buffer).await? == 0 {
                        break;
                    }
                }
                Ok(buffer.split().freeze())
            }
            Source::Bytes { all, given } => {
                let end = all.len().min(*given + limits::OBJECT_DATA_BYTES);
                let piece = all.slice(*given..end);
                *given = end;
                Ok(piece)
            }
        }
    }

    fn repeat(&self) -> Repeat {
        match self {
            Source::Reader { .. } => Repeat::Refused,
            Source::Bytes { .. } => Repeat::Always,
        }
    }

    /// Goes back to the beginning; false if that cannot be done.
    fn rewind(&mut self) -> bool {
        match self {
            Source::Reader { begun, .. } => !*begun,
            Source::Bytes { given, .. } => {
                *given = 0;
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pieces<R: AsyncRead + Unpin>(source: &mut Source<R>) -> Vec<Bytes> {
        let mut pieces = Vec::new();
        loop {
            let piece = source.next().await.unwrap();
            if piece.is_empty() {
                return pieces;
            }
            pieces.push(piece);
        }
    }

    #[tokio::test]
    async fn every_message_but_the_last_is_full_however_the_source_gives_its_bytes() {
        let full = limits::OBJECT_DATA_BYTES;
        for length in [0, 1, full - 1, full, full + 1, 3 * full + 5] {
            let all: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            let (mut writer, reader) = tokio::io::duplex(1000);
            let bytes = all.clone();
            tokio::spawn(async move { tokio::io::AsyncWriteExt::write_all(&mut writer, &bytes).await });
            let mut dripping = Source::Reader { reader, buffer: BytesMut::new(), begun: false };
            let mut held = Source::<&[u8]>::Bytes { all: all.clone().into(), given: 0 };
            let (dripped, held) = (pieces(&mut dripping).await, pieces(&mut held).await);
            assert_eq!(dripped, held, "{length}");
            assert_eq!(dripped.concat(), all);
            assert!(dripped.iter().rev().skip(1).all(|piece| piece.len() == full));
        }
    }

    #[tokio::test]
    async fn a_source_begins_again_only_if_it_can() {
        let mut held = Source::<&[u8]>::Bytes { all: Bytes::from_static(b"abc"), given: 0 };
        held.next().await.unwrap();
        assert!(held.rewind());
        assert_eq!(held.next().await.unwrap(), "abc");
        let mut reader = Source::Reader { reader: &b"abc"[..], buffer: BytesMut::new(), begun: false };
        assert!(reader.rewind());
        reader.next().await.unwrap();
        assert!(!reader.rewind());
    }
}
