//! Reading objects: a reader that checks every checksum, goes on where a broken connection cut it off, and never
//! ends early without saying so.
//!
//! Invariants of [`ObjectReader`]:
//! 1. No byte is handed out before the checksum of its message was right.
//! 2. The end is reached only after exactly as many bytes as the server announced; for a whole object, only if they
//!    have the object's checksum.
//! 3. All bytes are of one generation of the object.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::{Stream, TryStreamExt};
use stripeset_proto::{
    ErrorKind,
    v1::{self, get_object_response::Part},
};
use tokio::{
    io::{AsyncRead, ReadBuf},
    time::{Instant, Sleep, sleep},
};
use tonic::{Request, Streaming};

use crate::{Client, Error, ObjectInfo, objects::object, retry::Repeat};

/// Most bytes that [`ObjectReader::bytes`] sets aside before the first has come.
const RESERVE_BYTES_MAX: u64 = 64 * 1024 * 1024;

impl Client {
    /// Opens object `name` for reading, from its first byte to its last.
    ///
    /// # Errors
    /// `NotFound` if there is none. Errors while reading come from the reader.
    ///
    /// ```
    /// # use stripeset_client::Client;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// # let client = Client::connect(cluster.endpoint()).await?;
    /// client.put_bytes("a", "12345").await?;
    /// let mut reader = client.get("a").await?;
    /// let mut file = tokio::io::sink();
    /// assert_eq!(tokio::io::copy(&mut reader, &mut file).await?, 5);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get(&self, name: &str) -> Result<ObjectReader, Error> {
        self.get_range(name, 0, None).await
    }

    /// Opens `length` bytes of object `name` from byte `offset` on; without a length, all up to the end. A range that
    /// reaches past the end is cut there.
    ///
    /// # Errors
    /// `NotFound` if there is no such object, `InvalidArgument` if `offset` is above its size.
    ///
    /// ```
    /// # use stripeset_client::Client;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// # let client = Client::connect(cluster.endpoint()).await?;
    /// client.put_bytes("a", "0123456789").await?;
    /// assert_eq!(client.get_range("a", 3, 4).await?.bytes().await?, "3456");
    /// assert_eq!(client.get_range("a", 7, None).await?.bytes().await?, "789");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get_range(
        &self,
        name: &str,
        offset: u64,
        length: impl Into<Option<u64>>,
    ) -> Result<ObjectReader, Error> {
        let request =
            v1::GetObjectRequest { name: name.to_owned(), offset_bytes: offset, length_bytes: length.into() };
        let opened = open(self.clone(), request).await?;
        Ok(ObjectReader {
            idle: Box::pin(sleep(self.settings.idle_deadline)),
            client: self.clone(),
            object: opened.object,
            offset: opened.offset,
            length: opened.length,
            reached: 0,
            crc: 0,
            state: State::Streaming(Box::new(opened.stream)),
            waiting: false,
            resumed: 0,
            rest: Bytes::new(),
        })
    }
}

/// The bytes of an object, as a [`Stream`] of [`Bytes`] and as an [`AsyncRead`].
///
/// ```
/// # use stripeset_client::Client;
/// use tokio_stream::StreamExt;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
/// # let client = Client::connect(cluster.endpoint()).await?;
/// client.put_bytes("a", vec![1; 1_000_000]).await?;
/// let mut reader = client.get("a").await?;
/// let mut ones = 0;
/// while let Some(bytes) = reader.next().await {
///     ones += bytes?.iter().filter(|byte| **byte == 1).count();
/// }
/// assert_eq!(ones, 1_000_000);
/// # Ok(())
/// # }
/// ```
pub struct ObjectReader {
    client: Client,
    object: ObjectInfo,
    offset: u64,
    length: u64,
    reached: u64,
    crc: u32,
    state: State,
    idle: Pin<Box<Sleep>>,
    /// The caller was told to wait, and `idle` runs since then.
    waiting: bool,
    /// Times that the stream was opened again since bytes last came.
    resumed: u32,
    /// What `AsyncRead` has taken from the stream and not yet given.
    rest: Bytes,
}

enum State {
    Streaming(Box<Streaming<v1::GetObjectResponse>>),
    Resuming(Pin<Box<dyn Future<Output = Result<Opened, Error>> + Send>>),
    Ended,
}

/// A stream whose header was read.
struct Opened {
    stream: Streaming<v1::GetObjectResponse>,
    object: ObjectInfo,
    offset: u64,
    length: u64,
}

async fn open(client: Client, request: v1::GetObjectRequest) -> Result<Opened, Error> {
    // No grpc-timeout: it would hold for the whole stream.
    let send = |_left| {
        let mut service = client.objects();
        let request = Request::new(request.clone());
        async move {
            let mut stream = service.get_object(request).await?.into_inner();
            let first = stream.message().await?;
            Ok((stream, first))
        }
    };
    let (stream, first) = client.attempt(Repeat::Always, send).await?;
    let Some(Part::Header(header)) = first.and_then(|message| message.part) else {
        return Err(Error::incomplete("header before the bytes"));
    };
    Ok(Opened {
        stream,
        object: object(header.object)?,
        offset: header.offset_bytes,
        length: header.length_bytes,
    })
}

impl ObjectReader {
    /// The object as it was when the read began.
    ///
    /// ```
    /// # use stripeset_client::Client;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// # let client = Client::connect(cluster.endpoint()).await?;
    /// client.put_bytes("a", "0123456789").await?;
    /// let reader = client.get_range("a", 3, 4).await?;
    /// assert_eq!(reader.object().size_bytes, 10);
    /// assert_eq!((reader.offset(), reader.length()), (3, 4));
    /// # Ok(())
    /// # }
    /// ```
    pub fn object(&self) -> &ObjectInfo {
        &self.object
    }

    /// First byte of the range that is read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length of the range in bytes, cut at the end of the object.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Reads all that is left into memory.
    ///
    /// # Errors
    /// `DataLoss` if the bytes cannot be had, `Stale` if the object was replaced and the connection broke while it
    /// was read, and those of the transport.
    ///
    /// ```
    /// # use stripeset_client::Client;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// # let client = Client::connect(cluster.endpoint()).await?;
    /// client.put_bytes("a", "12345").await?;
    /// assert_eq!(client.get("a").await?.bytes().await?, "12345");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn bytes(mut self) -> Result<Bytes, Error> {
        let Some(first) = self.try_next().await? else { return Ok(Bytes::new()) };
        let Some(second) = self.try_next().await? else { return Ok(first) };
        let left = self.length - self.reached + (first.len() + second.len()) as u64;
        let mut all = BytesMut::with_capacity(left.min(RESERVE_BYTES_MAX) as usize);
        all.extend_from_slice(&first);
        all.extend_from_slice(&second);
        while let Some(piece) = self.try_next().await? {
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    }

    /// Invariants 1 and 2 for one message.
    fn check(&mut self, message: v1::GetObjectResponse) -> Result<Bytes, Failure> {
        let Some(Part::Data(data)) = message.part else {
            return Err(Error::incomplete("bytes after the header").into());
        };
        if crc32c::crc32c(&data.data) != data.crc32c {
            let at = self.offset + self.reached;
            let message =
                format!("bytes of {:?} from {at} on were damaged on their way here", self.object.name);
            return Err(Failure {
                error: Error::new(ErrorKind::Internal, message),
                resume: Some(Repeat::Damaged),
            });
        }
        if data.data.len() as u64 > self.length - self.reached {
            let message = format!("the server sent more than the {} bytes it announced", self.length);
            return Err(Error::new(ErrorKind::Internal, message).into());
        }
        self.reached += data.data.len() as u64;
        if self.is_whole() {
            self.crc = crc32c::crc32c_append(self.crc, &data.data);
        }
        Ok(data.data)
    }

    /// Invariant 2, at the end.
    fn check_end(&self) -> Result<(), Error> {
        if self.reached != self.length {
            let (reached, length) = (self.reached, self.length);
            let message =
                format!("the read of {:?} ended after {reached} of {length} bytes", self.object.name);
            return Err(Error::new(ErrorKind::Internal, message));
        }
        if self.is_whole() && self.crc != self.object.crc32c {
            let (name, stored, read) = (&self.object.name, self.object.crc32c, self.crc);
            let message =
                format!("object {name:?} has crc32c {stored:#010x}, but the bytes read have {read:#010x}");
            return Err(Error::new(ErrorKind::DataLoss, message));
        }
        Ok(())
    }

    fn is_whole(&self) -> bool {
        self.offset == 0 && self.length == self.object.size_bytes
    }

    /// Opens the stream again for the bytes not yet handed out, if that may help.
    fn resume(&mut self, Failure { error, resume }: Failure) -> Result<State, Error> {
        self.resumed += 1;
        let policy = &self.client.settings.retry;
        let Some(delay) = resume.and_then(|repeat| policy.delay(repeat, self.resumed, &error)) else {
            return Err(error);
        };
        let client = self.client.clone();
        let request = v1::GetObjectRequest {
            name: self.object.name.clone(),
            offset_bytes: self.offset + self.reached,
            length_bytes: Some(self.length - self.reached),
        };
        Ok(State::Resuming(Box::pin(async move {
            sleep(delay).await;
            open(client, request).await
        })))
    }

    /// Invariant 3.
    fn accept(&self, opened: Opened) -> Result<State, Error> {
        if opened.object.generation != self.object.generation {
            let message = format!(
                "the connection broke while {:?} was read, and the object was replaced since: read it anew",
                self.object.name
            );
            return Err(Error::new(ErrorKind::Stale, message));
        }
        if opened.offset != self.offset + self.reached || opened.length != self.length - self.reached {
            return Err(Error::new(
                ErrorKind::Internal,
                "the server sends another range than the one asked for",
            ));
        }
        Ok(State::Streaming(Box::new(opened.stream)))
    }

    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        loop {
            match &mut self.state {
                State::Ended => return Poll::Ready(None),
                State::Resuming(opening) => {
                    let opened = ready!(opening.as_mut().poll(context))?;
                    self.state = self.accept(opened)?;
                }
                State::Streaming(stream) => {
                    let checked = match ready!(Pin::new(&mut **stream).poll_next(context)) {
                        Some(Ok(message)) => self.check(message),
                        Some(Err(status)) => {
                            let error = self.client.error(status);
                            Err(Failure { error, resume: Some(Repeat::Always) })
                        }
                        None => {
                            self.check_end()?;
                            return Poll::Ready(None);
                        }
                    };
                    match checked {
                        Ok(bytes) if bytes.is_empty() => {}
                        Ok(bytes) => {
                            self.resumed = 0;
                            return Poll::Ready(Some(Ok(bytes)));
                        }
                        Err(failure) => self.state = self.resume(failure)?,
                    }
                }
            }
        }
    }
}

/// A read that went wrong, and when opening it again may help.
struct Failure {
    error: Error,
    resume: Option<Repeat>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure { error, resume: None }
    }
}

impl Stream for ObjectReader {
    type Item = Result<Bytes, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let reader = &mut *self;
        if !reader.rest.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut reader.rest))));
        }
        let limit = reader.client.settings.idle_deadline;
        if !reader.waiting {
            // Time that the caller took is not the server's.
            reader.idle.as_mut().reset(Instant::now() + limit);
            reader.waiting = true;
        }
        let item = match reader.poll_step(context) {
            Poll::Ready(item) => item,
            Poll::Pending => {
                ready!(reader.idle.as_mut().poll(context));
                Some(Err(Error::deadline("no more bytes came", limit)))
            }
        };
        reader.waiting = false;
        if !matches!(item, Some(Ok(_))) {
            reader.state = State::Ended;
        }
        Poll::Ready(item)
    }
}

impl AsyncRead for ObjectReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.rest.is_empty() {
            match ready!(self.as_mut().poll_next(context)) {
                Some(Ok(bytes)) => self.rest = bytes,
                Some(Err(error)) => return Poll::Ready(Err(error.into())),
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest[..length]);
        self.rest.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl std::fmt::Debug for ObjectReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectReader")
            .field("object", &self.object)
            .field("offset", &self.offset)
            .field("length", &self.length)
            .field("reached", &self.reached)
            .finish_non_exhaustive()
    }
}
