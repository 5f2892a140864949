//! `ObjectService`.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use stripeset_proto::{
    Error, ErrorKind, limits,
    v1::{self, object_service_server::ObjectService, put_object_request::Part},
};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use super::{Shared, detached};
use crate::{
    array::Array,
    objects::{get::ObjectReader, info, put::ObjectWriter},
};

/// Messages of a get that wait for the connection.
const GET_MESSAGES_MAX: usize = 4;

/// Longest silence of a client in the middle of a put. After it, what it holds is given back.
const PUT_IDLE_LIMIT: Duration = Duration::from_secs(300);

/// Serves `stripeset.v1.ObjectService`.
pub struct ObjectHandler {
    /// What it shares with the other handlers.
    pub shared: Arc<Shared>,
}

#[tonic::async_trait]
impl ObjectService for ObjectHandler {
    async fn put_object(
        &self,
        request: Request<Streaming<v1::PutObjectRequest>>,
    ) -> Result<Response<v1::PutObjectResponse>, Status> {
        let array = self.shared.serving()?;
        let object = detached(put(array, request.into_inner())).await?;
        Ok(Response::new(v1::PutObjectResponse { object: Some(object) }))
    }

    type GetObjectStream =
        std::pin::Pin<Box<dyn Stream<Item = Result<v1::GetObjectResponse, Status>> + Send>>;

    async fn get_object(
        &self,
        request: Request<v1::GetObjectRequest>,
    ) -> Result<Response<Self::GetObjectStream>, Status> {
        let reader = ObjectReader::begin(self.shared.serving()?, request.into_inner())?;
        let (messages, answers) = mpsc::channel(GET_MESSAGES_MAX);
        tokio::spawn(reader.send(messages));
        let answers = ReceiverStream::new(answers).map(|message| message.map_err(Status::from));
        Ok(Response::new(Box::pin(answers)))
    }

    async fn stat_object(
        &self,
        request: Request<v1::StatObjectRequest>,
    ) -> Result<Response<v1::StatObjectResponse>, Status> {
        let object = self.shared.serving()?.stat(&request.into_inner().name)?;
        Ok(Response::new(v1::StatObjectResponse { object: Some(object) }))
    }

    async fn list_objects(
        &self,
        request: Request<v1::ListObjectsRequest>,
    ) -> Result<Response<v1::ListObjectsResponse>, Status> {
        let (array, request) = (self.shared.serving()?, request.into_inner());
        // Up to a thousand look-ups, some of which may have to go to the file: not on the thread that serves others.
        let page = tokio::task::spawn_blocking(move || {
            array.list(&request.prefix, &request.start_after, request.limit)
        });
        let page = match page.await {
            Ok(page) => page?,
            Err(error) => return Err(Error::new(ErrorKind::Internal, error.to_string()).into()),
        };
        let objects = page.objects.iter().map(|(name, object, allocated)| info(name, *object, *allocated));
        Ok(Response::new(v1::ListObjectsResponse { objects: objects.collect(), truncated: page.truncated }))
    }

    async fn delete_object(
        &self,
        request: Request<v1::DeleteObjectRequest>,
    ) -> Result<Response<v1::DeleteObjectResponse>, Status> {
        let (array, request) = (self.shared.serving()?, request.into_inner());
        let object = detached(async move { array.delete(request.name).await }).await?;
        Ok(Response::new(v1::DeleteObjectResponse { object: Some(object) }))
    }
}

/// Takes the stream of a put to its end. Whatever goes wrong on the way, nothing of the put remains.
async fn put(
    array: Arc<Array>,
    mut stream: Streaming<v1::PutObjectRequest>,
) -> Result<v1::ObjectInfo, Error> {
    let Some(Part::Header(header)) = next(&mut stream).await? else {
        return Err(Error::invalid("a put begins with a header"));
    };
    let mut writer = ObjectWriter::begin(array, header)?;
    match take_data(&mut writer, &mut stream).await {
        Ok(trailer) => writer.finish(trailer, now_millis()).await,
        Err(error) => {
            writer.abandon().await;
            Err(error)
        }
    }
}

async fn take_data(
    writer: &mut ObjectWriter,
    stream: &mut Streaming<v1::PutObjectRequest>,
) -> Result<v1::PutObjectTrailer, Error> {
    loop {
        match next(stream).await? {
            Some(Part::Data(data)) => {
                if data.data.len() > limits::OBJECT_DATA_BYTES_MAX {
                    let (length, limit) = (data.data.len(), limits::OBJECT_DATA_BYTES_MAX);
                    return Err(Error::invalid(format!(
                        "a message of {length} bytes: at most {limit} are allowed"
                    )));
                }
                if let Some(told) = data.crc32c {
                    check_data(&data.data, told, writer.size())?;
                }
                writer.write(data.data).await?;
            }
            Some(Part::Trailer(trailer)) => {
                if next(stream).await?.is_some() {
                    return Err(Error::invalid("something follows the trailer of a put"));
                }
                return Ok(trailer);
            }
            Some(Part::Header(_)) => return Err(Error::invalid("a second header in a put")),
            None => {
                let size = writer.size();
                return Err(Error::invalid(format!(
                    "the put ended after {size} bytes without a trailer: nothing was stored"
                )));
            }
        }
    }
}

fn check_data(data: &[u8], told: u32, offset: u64) -> Result<(), Error> {
    let came = crc32c::crc32c(data);
    if came == told {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "bytes from offset {offset} on have crc32c {came:08x}, the message says {told:08x}: damaged on the way"
    )))
}

async fn next(stream: &mut Streaming<v1::PutObjectRequest>) -> Result<Option<Part>, Error> {
    match tokio::time::timeout(PUT_IDLE_LIMIT, stream.message()).await {
        Ok(Ok(Some(v1::PutObjectRequest { part: Some(part) }))) => Ok(Some(part)),
        Ok(Ok(Some(_))) => Err(Error::invalid("a message of a put without a part")),
        Ok(Ok(None)) => Ok(None),
        Ok(Err(status)) => Err(status.into()),
        Err(_) => {
            let message = format!("nothing came for {PUT_IDLE_LIMIT:?} in the middle of a put");
            Err(Error::new(ErrorKind::DeadlineExceeded, message))
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place where the coordinator reads the wall clock")]
fn now_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
