//! [`Client`]: one connection to a coordinator, its deadlines, and how a call is sent and sent again.
//!
//! What each call means is next to it: `objects.rs`, `put.rs`, `get.rs`, `list.rs`, `array.rs`.

use std::{future::Future, sync::Arc, time::Duration};

use stripeset_proto::{limits, v1::object_service_client::ObjectServiceClient};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Request, Response, Status, transport::Channel};

use crate::{ArrayClient, Error, FaultClient, RetryPolicy, connect, retry::Repeat};

/// Stores and returns objects. Clones share one connection, which is made anew when it breaks.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) channel: Channel,
    pub(crate) settings: Arc<Settings>,
}

/// What a client was told.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) endpoint: String,
    connect_deadline: Duration,
    call_deadline: Duration,
    pub(crate) idle_deadline: Duration,
    pub(crate) retry: RetryPolicy,
}

/// Settings of a [`Client`] before it connects. Made by [`Client::builder`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    settings: Settings,
}

impl Client {
    /// Connects to the coordinator at `endpoint`, a URL such as `http://127.0.0.1:7420`, with default settings.
    ///
    /// # Errors
    /// `InvalidArgument` if that is not a URL of this kind, `Unavailable` if nobody answers there.
    ///
    /// ```
    /// # use stripeset_client::{Client, ErrorKind};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// let client = Client::connect(cluster.endpoint()).await?;
    ///
    /// let error = Client::connect("http://127.0.0.1:1").await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Unavailable);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(endpoint: impl Into<String>) -> Result<Client, Error> {
        Client::builder(endpoint).connect().await
    }

    /// Settings that can be changed before connecting.
    ///
    /// ```
    /// # use stripeset_client::{Client, RetryPolicy};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// let client = Client::builder(cluster.endpoint())
    ///     .call_deadline(Duration::from_secs(5))
    ///     .retry(RetryPolicy::never())
    ///     .connect()
    ///     .await?;
    /// # client.put_bytes("a", "1").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(endpoint: impl Into<String>) -> ClientBuilder {
        ClientBuilder {
            settings: Settings {
                endpoint: endpoint.into(),
                connect_deadline: Duration::from_secs(5),
                call_deadline: Duration::from_secs(60),
                idle_deadline: Duration::from_secs(60),
                retry: RetryPolicy::default(),
            },
        }
    }

    /// Looks at and makes arrays, over the same connection.
    ///
    /// ```
    /// # use stripeset_client::Client;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// let client = Client::connect(cluster.endpoint()).await?;
    /// assert!(client.array().status().await?.writes_served);
    /// # Ok(())
    /// # }
    /// ```
    pub fn array(&self) -> ArrayClient {
        ArrayClient { client: self.clone() }
    }

    /// Injects faults, over the same connection, into a cluster that was started for that.
    ///
    /// ```
    /// # use stripeset_client::{Client, ErrorKind};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// let client = Client::connect(cluster.endpoint()).await?;
    /// let error = client.faults().resume_steps().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Precondition);
    /// # Ok(())
    /// # }
    /// ```
    pub fn faults(&self) -> FaultClient {
        FaultClient { client: self.clone() }
    }

    pub(crate) fn objects(&self) -> ObjectServiceClient<Channel> {
        ObjectServiceClient::new(self.channel.clone())
            .max_decoding_message_size(limits::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::MESSAGE_BYTES_MAX)
    }

    pub(crate) fn error(&self, status: Status) -> Error {
        Error::from_status(status, &self.settings.endpoint)
    }

    /// Sends `message` as [`attempt`](Self::attempt) says. The server is told how long is left, so that it does not
    /// work for nobody.
    pub(crate) async fn call<M, T, F>(
        &self,
        repeat: Repeat,
        message: M,
        mut send: impl FnMut(Request<M>) -> F,
    ) -> Result<T, Error>
    where
        M: Clone,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let send = |left| {
            let mut request = Request::new(message.clone());
            request.set_timeout(left);
            send(request)
        };
        Ok(self.attempt(repeat, send).await?.into_inner())
    }

    /// Calls `send` with the time left until it succeeds, may not be repeated, or the call's deadline is over.
    pub(crate) async fn attempt<T, F>(
        &self,
        repeat: Repeat,
        mut send: impl FnMut(Duration) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let limit = self.settings.call_deadline;
        let deadline = Instant::now() + limit;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let left = deadline.saturating_duration_since(Instant::now());
            let error = match timeout_at(deadline, send(left)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) => self.error(status),
                Err(_) => {
                    let endpoint = &self.settings.endpoint;
                    return Err(Error::deadline(&format!("no answer from {endpoint}"), limit));
                }
            };
            match self.settings.retry.delay(repeat, attempts, &error) {
                // No use in waiting for what cannot be sent any more: the error says more than the deadline.
                Some(delay) if Instant::now() + delay < deadline => sleep(delay).await,
                _ => return Err(error),
            }
        }
    }
}

impl ClientBuilder {
    /// Longest time to make the connection. 5 s by default.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use stripeset_client::Client;
    /// let builder = Client::builder("http://127.0.0.1:7420").connect_deadline(Duration::from_secs(1));
    /// ```
    pub fn connect_deadline(mut self, limit: Duration) -> Self {
        self.settings.connect_deadline = limit;
        self
    }

    /// Longest time for a call that is not a stream, all attempts together. 60 s by default.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use stripeset_client::Client;
    /// let builder = Client::builder("http://127.0.0.1:7420").call_deadline(Duration::from_secs(10));
    /// ```
    pub fn call_deadline(mut self, limit: Duration) -> Self {
        self.settings.call_deadline = limit;
        self
    }

    /// Longest time in which a stream (put, get) may make no progress on the server's side. 60 s by default. Streams
    /// have no limit in all: it would depend on their length.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use stripeset_client::Client;
    /// let builder = Client::builder("http://127.0.0.1:7420").idle_deadline(Duration::from_secs(10));
    /// ```
    pub fn idle_deadline(mut self, limit: Duration) -> Self {
        self.settings.idle_deadline = limit;
        self
    }

    /// How often and how soon to try again.
    ///
    /// ```
    /// # use stripeset_client::{Client, RetryPolicy};
    /// let builder = Client::builder("http://127.0.0.1:7420").retry(RetryPolicy::never());
    /// ```
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.settings.retry = policy;
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// As [`Client::connect`].
    ///
    /// ```
    /// # use stripeset_client::{Client, ErrorKind};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let error = Client::builder("not a URL").connect().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    /// # }
    /// ```
    pub async fn connect(self) -> Result<Client, Error> {
        let settings = self.settings;
        let channel = connect::connect(&settings.endpoint, settings.connect_deadline).await?;
        Ok(Client { channel, settings: Arc::new(settings) })
    }
}
