//! What the SDK does when the other side misbehaves: a server that follows a script answers, breaks off, damages
//! bytes, or says nothing.
//!
//! The server here decides what goes wrong; the tests decide what the caller must see of it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{Stream, TryStreamExt, stream};
use stripeset_client::{Client, ErrorKind, PutOptions, RetryPolicy};
use stripeset_proto::{
    Error,
    v1::{
        self, get_object_response::Part as Got, object_service_server::ObjectService,
        object_service_server::ObjectServiceServer, put_object_request::Part as Put,
    },
};
use tokio::io::AsyncReadExt;
use tonic::{Request, Response, Status, Streaming};

const BYTES: &[u8] = b"0123456789abcdef";
const GENERATION: u64 = 7;

/// One answer to a get.
#[derive(Clone, Debug)]
enum Answer {
    /// The range asked for, of this generation, in messages of 4 bytes.
    All(u64),
    /// As many bytes, then an error of this kind.
    Then(usize, ErrorKind),
    /// As many bytes, then a proper end.
    Short(usize),
    /// As many bytes, then four with a wrong checksum.
    Damaged(usize),
    /// All bytes, but the object's checksum is another one.
    WrongObject,
    /// As many bytes, then nothing, for ever.
    Silent(usize),
    /// No answer but an error of this kind.
    Refused(ErrorKind),
}

#[derive(Default)]
struct Script {
    gets: VecDeque<Answer>,
    puts: VecDeque<ErrorKind>,
    /// Offsets that were asked for.
    offsets: Vec<u64>,
    stored: Vec<Vec<u8>>,
    stats: u32,
    deletes: u32,
}

#[derive(Clone, Default)]
struct Server {
    script: Arc<Mutex<Script>>,
}

fn info(generation: u64, crc32c: u32) -> v1::ObjectInfo {
    let size_bytes = BYTES.len() as u64;
    v1::ObjectInfo { name: "a".to_owned(), size_bytes, crc32c, generation, ..Default::default() }
}

fn error(kind: ErrorKind) -> Status {
    Error { kind, message: format!("{kind:?} by script"), retry_after: None }.into()
}

fn data(bytes: &[u8], damage: u32) -> Result<v1::GetObjectResponse, Status> {
    let crc32c = crc32c::crc32c(bytes) ^ damage;
    let data = v1::GetObjectData { data: bytes.to_vec().into(), crc32c };
    Ok(v1::GetObjectResponse { part: Some(Got::Data(data)) })
}

fn answer(
    answer: Answer,
    request: &v1::GetObjectRequest,
) -> Result<Vec<Result<v1::GetObjectResponse, Status>>, Status> {
    let whole = crc32c::crc32c(BYTES);
    let start = request.offset_bytes as usize;
    let end = request.length_bytes.map_or(BYTES.len(), |length| BYTES.len().min(start + length as usize));
    let range = &BYTES[start..end];
    let (object, sent) = match &answer {
        Answer::Refused(kind) => return Err(error(*kind)),
        Answer::All(generation) => (info(*generation, whole), range.len()),
        Answer::WrongObject => (info(GENERATION, !whole), range.len()),
        Answer::Then(sent, _) | Answer::Short(sent) | Answer::Damaged(sent) | Answer::Silent(sent) => {
            (info(GENERATION, whole), *sent)
        }
    };
    let header = v1::GetObjectHeader {
        object: Some(object),
        offset_bytes: request.offset_bytes,
        length_bytes: range.len() as u64,
    };
    let mut messages = vec![Ok(v1::GetObjectResponse { part: Some(Got::Header(header)) })];
    messages.extend(range[..sent].chunks(4).map(|piece| data(piece, 0)));
    match answer {
        Answer::Then(_, kind) => messages.push(Err(error(kind))),
        Answer::Damaged(_) => messages.push(data(&range[sent..sent + 4], 1)),
        _ => {}
    }
    Ok(messages)
}

#[tonic::async_trait]
impl ObjectService for Server {
    async fn put_object(
        &self,
        request: Request<Streaming<v1::PutObjectRequest>>,
    ) -> Result<Response<v1::PutObjectResponse>, Status> {
        let mut stream = request.into_inner();
        let mut bytes = Vec::new();
        while let Some(message) = stream.message().await? {
            match message.part {
                Some(Put::Header(_)) => {
                    let refusal = self.script.lock().unwrap().puts.pop_front();
                    if let Some(kind) = refusal {
                        return Err(error(kind));
                    }
                }
                Some(Put::Data(data)) => {
                    // A checksum of its own is for whoever wants one; the trailer's covers every byte.
                    assert!(data.crc32c.is_none_or(|told| told == crc32c::crc32c(&data.data)));
                    bytes.extend_from_slice(&data.data);
                }
                Some(Put::Trailer(trailer)) => {
                    assert_eq!(trailer.size_bytes, bytes.len() as u64);
                    assert_eq!(trailer.crc32c, Some(crc32c::crc32c(&bytes)));
                    let mut object = info(GENERATION, 0);
                    object.size_bytes = bytes.len() as u64;
                    self.script.lock().unwrap().stored.push(bytes);
                    return Ok(Response::new(v1::PutObjectResponse { object: Some(object) }));
                }
                None => return Err(error(ErrorKind::InvalidArgument)),
            }
        }
        Err(error(ErrorKind::InvalidArgument))
    }

    type GetObjectStream = Pin<Box<dyn Stream<Item = Result<v1::GetObjectResponse, Status>> + Send>>;

    async fn get_object(
        &self,
        request: Request<v1::GetObjectRequest>,
    ) -> Result<Response<Self::GetObjectStream>, Status> {
        let request = request.into_inner();
        let next = {
            let mut script = self.script.lock().unwrap();
            script.offsets.push(request.offset_bytes);
            script.gets.pop_front().expect("an answer in the script")
        };
        let silent = matches!(next, Answer::Silent(_));
        let messages = stream::iter(answer(next, &request)?);
        if silent {
            return Ok(Response::new(Box::pin(stream::StreamExt::chain(messages, stream::pending()))));
        }
        Ok(Response::new(Box::pin(messages)))
    }

    async fn stat_object(
        &self,
        _request: Request<v1::StatObjectRequest>,
    ) -> Result<Response<v1::StatObjectResponse>, Status> {
        let mut script = self.script.lock().unwrap();
        script.stats += 1;
        if script.stats < 3 {
            return Err(error(if script.stats == 1 { ErrorKind::Unknown } else { ErrorKind::Busy }));
        }
        Ok(Response::new(v1::StatObjectResponse { object: Some(info(GENERATION, 0)) }))
    }

    async fn list_objects(
        &self,
        request: Request<v1::ListObjectsRequest>,
    ) -> Result<Response<v1::ListObjectsResponse>, Status> {
        let after = request.into_inner().start_after;
        let names: &[&str] = match after.as_str() {
            "" => &["a", "b"],
            "b" => &["c"],
            _ => &["c"],
        };
        let objects =
            names.iter().map(|name| v1::ObjectInfo { name: (*name).to_owned(), ..info(GENERATION, 0) });
        Ok(Response::new(v1::ListObjectsResponse { objects: objects.collect(), truncated: true }))
    }

    async fn delete_object(
        &self,
        _request: Request<v1::DeleteObjectRequest>,
    ) -> Result<Response<v1::DeleteObjectResponse>, Status> {
        let mut script = self.script.lock().unwrap();
        script.deletes += 1;
        Err(error(if script.deletes == 1 { ErrorKind::Busy } else { ErrorKind::Unknown }))
    }
}

async fn start(gets: impl IntoIterator<Item = Answer>) -> (Server, Client) {
    let server = Server::default();
    server.script.lock().unwrap().gets.extend(gets);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let service = ObjectServiceServer::new(server.clone());
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
    let quick =
        RetryPolicy { attempts_max: 4, backoff_first: Duration::from_millis(1), ..RetryPolicy::default() };
    let client = Client::builder(endpoint)
        .retry(quick)
        .idle_deadline(Duration::from_millis(300))
        .connect()
        .await
        .unwrap();
    (server, client)
}

async fn get(gets: impl IntoIterator<Item = Answer>) -> (Result<Vec<u8>, stripeset_client::Error>, Vec<u64>) {
    let (server, client) = start(gets).await;
    let result = match client.get("a").await {
        Ok(reader) => reader.bytes().await.map(|bytes| bytes.to_vec()),
        Err(error) => Err(error),
    };
    let offsets = server.script.lock().unwrap().offsets.clone();
    (result, offsets)
}

fn kind(result: Result<Vec<u8>, stripeset_client::Error>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[tokio::test]
async fn a_read_goes_on_where_it_was_cut_off() {
    use ErrorKind::{Busy, Unavailable, Unknown};
    let script = [
        Answer::Refused(Busy),
        Answer::Then(8, Unavailable),
        Answer::Then(0, Unknown),
        Answer::All(GENERATION),
    ];
    let (bytes, offsets) = get(script).await;
    assert_eq!(bytes.unwrap(), BYTES);
    assert_eq!(offsets, [0, 0, 8, 8]);
}

#[tokio::test]
async fn a_read_is_not_continued_in_another_generation() {
    let (bytes, _) = get([Answer::Then(8, ErrorKind::Unavailable), Answer::All(GENERATION + 1)]).await;
    assert_eq!(kind(bytes), ErrorKind::Stale);
}

#[tokio::test]
async fn damaged_bytes_are_asked_for_again_and_never_handed_out() {
    let (bytes, offsets) = get([Answer::Damaged(4), Answer::All(GENERATION)]).await;
    assert_eq!(bytes.unwrap(), BYTES);
    assert_eq!(offsets, [0, 4]);
    let (bytes, offsets) = get(vec![Answer::Damaged(0); 9]).await;
    assert_eq!(kind(bytes), ErrorKind::Internal);
    assert_eq!(offsets.len(), 4);
}

#[tokio::test]
async fn an_end_too_early_and_a_wrong_whole_are_errors() {
    assert_eq!(kind(get([Answer::Short(12)]).await.0), ErrorKind::Internal);
    assert_eq!(kind(get([Answer::WrongObject]).await.0), ErrorKind::DataLoss);
}

#[tokio::test]
async fn lost_bytes_are_not_asked_for_again() {
    let (bytes, offsets) = get([Answer::Then(4, ErrorKind::DataLoss)]).await;
    assert_eq!(kind(bytes), ErrorKind::DataLoss);
    assert_eq!(offsets, [0]);
}

#[tokio::test]
async fn a_server_that_falls_silent_is_given_up() {
    assert_eq!(kind(get([Answer::Silent(8)]).await.0), ErrorKind::DeadlineExceeded);
}

#[tokio::test]
async fn an_error_reaches_whoever_reads_it_as_a_file_and_then_it_is_over() {
    let (_server, client) = start([Answer::Short(12)]).await;
    let mut reader = client.get("a").await.unwrap();
    let mut bytes = Vec::new();
    let error = reader.read_to_end(&mut bytes).await.unwrap_err();
    assert!(error.to_string().contains("12 of 16 bytes"), "{error}");
    assert_eq!(bytes, &BYTES[..12]);
    assert!(reader.try_next().await.unwrap().is_none());
}

#[tokio::test]
async fn a_part_of_an_object_may_be_read_although_the_whole_is_wrong() {
    let (_server, client) = start([Answer::WrongObject]).await;
    let bytes = client.get_range("a", 4, 4).await.unwrap().bytes().await.unwrap();
    assert_eq!(&bytes[..], &BYTES[4..8]);
}

#[tokio::test]
async fn calls_that_change_nothing_are_repeated() {
    let (server, client) = start([]).await;
    assert_eq!(client.stat("a").await.unwrap().generation, GENERATION);
    assert_eq!(server.script.lock().unwrap().stats, 3);
}

#[tokio::test]
async fn a_delete_is_repeated_only_while_it_was_refused() {
    let (server, client) = start([]).await;
    assert_eq!(client.delete("a").await.unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(server.script.lock().unwrap().deletes, 2);
}

#[tokio::test]
async fn a_list_that_does_not_move_forward_is_an_error_and_not_endless() {
    let (_server, client) = start([]).await;
    let mut list = client.list("");
    let mut names = Vec::new();
    let error = loop {
        match list.try_next().await {
            Ok(object) => names.push(object.unwrap().name),
            Err(error) => break error,
        }
    };
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(error.kind(), ErrorKind::Internal);
}

#[tokio::test]
async fn bytes_in_memory_are_put_again_and_a_reader_is_not() {
    let (server, client) = start([]).await;
    let big = vec![5; 700_000];
    server.script.lock().unwrap().puts.extend([ErrorKind::Unknown, ErrorKind::Busy]);
    assert_eq!(client.put_bytes("a", big.clone()).await.unwrap().size_bytes, 700_000);

    server.script.lock().unwrap().puts.extend([ErrorKind::Unknown]);
    let error = client.put("a", &big[..]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    let stored = server.script.lock().unwrap().stored.clone();
    assert_eq!(stored, [big]);
}

#[tokio::test]
async fn a_source_that_fails_ends_the_put_without_a_trailer() {
    struct Failing;
    impl tokio::io::AsyncRead for Failing {
        fn poll_read(
            self: Pin<&mut Self>,
            _context: &mut std::task::Context<'_>,
            _buffer: &mut tokio::io::ReadBuf<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::task::Poll::Ready(Err(std::io::Error::other("the tape tore")))
        }
    }
    let (server, client) = start([]).await;
    let error = client.put_with("a", BYTES.chain(Failing), PutOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("the tape tore"), "{error}");
    assert!(server.script.lock().unwrap().stored.is_empty());
}

#[tokio::test]
async fn a_client_finds_its_server_again_and_says_when_it_is_gone() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let serve = |listener: std::net::TcpListener| {
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(
            tokio::net::TcpListener::from_std(listener).unwrap(),
        );
        let service = ObjectServiceServer::new(Server::default());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let server = tonic::transport::Server::builder().add_service(service);
        let task =
            tokio::spawn(server.serve_with_incoming_shutdown(incoming, async { stopped.await.unwrap() }));
        (stop, task)
    };
    let (stop, task) = serve(listener);
    let policy = RetryPolicy { backoff_first: Duration::from_millis(1), ..RetryPolicy::default() };
    let client = Client::builder(format!("http://{address}")).retry(policy).connect().await.unwrap();
    client.stat("a").await.unwrap();
    stop.send(()).unwrap();
    task.await.unwrap().unwrap();
    let error = client.stat("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("connection refused"), "{error}");

    let listener = std::net::TcpListener::bind(address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (_stop, _task) = serve(listener);
    client.stat("a").await.unwrap();
}
