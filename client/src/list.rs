//! Listing objects, page by page.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::{Stream, stream::try_unfold};
use stripeset_proto::{ErrorKind, v1};

use crate::{Client, Error, ObjectInfo, retry::Repeat};

impl Client {
    /// The objects whose names begin with `prefix` (all, if it is empty), in the order of the bytes of their names.
    ///
    /// Pages are fetched as the stream is read; an object that is put or deleted in between is listed or not,
    /// according to whether its place was passed.
    ///
    /// ```
    /// # use stripeset_client::Client;
    /// use tokio_stream::StreamExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// # let client = Client::connect(cluster.endpoint()).await?;
    /// for name in ["logs/1", "logs/2", "other"] {
    ///     client.put_bytes(name, "x").await?;
    /// }
    /// let mut names = Vec::new();
    /// let mut list = client.list("logs/");
    /// while let Some(object) = list.next().await {
    ///     names.push(object?.name);
    /// }
    /// assert_eq!(names, ["logs/1", "logs/2"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn list(&self, prefix: &str) -> ObjectList {
        let start = Cursor {
            client: self.clone(),
            prefix: prefix.to_owned(),
            after: String::new(),
            page: VecDeque::new(),
            more: true,
        };
        ObjectList { objects: Box::pin(try_unfold(start, Cursor::next)) }
    }
}

/// A stream of objects, made by [`Client::list`]. It ends after the first error.
pub struct ObjectList {
    objects: Pin<Box<dyn Stream<Item = Result<ObjectInfo, Error>> + Send>>,
}

impl Stream for ObjectList {
    type Item = Result<ObjectInfo, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.objects.as_mut().poll_next(context)
    }
}

impl std::fmt::Debug for ObjectList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectList").finish_non_exhaustive()
    }
}

struct Cursor {
    client: Client,
    prefix: String,
    after: String,
    page: VecDeque<ObjectInfo>,
    more: bool,
}

impl Cursor {
    async fn next(mut self) -> Result<Option<(ObjectInfo, Cursor)>, Error> {
        if self.page.is_empty() && self.more {
            self.fetch().await?;
        }
        Ok(self.page.pop_front().map(|object| (object, self)))
    }

    async fn fetch(&mut self) -> Result<(), Error> {
        let message =
            v1::ListObjectsRequest { prefix: self.prefix.clone(), start_after: self.after.clone(), limit: 0 };
        let send = |request| {
            let mut service = self.client.objects();
            async move { service.list_objects(request).await }
        };
        let answer = self.client.call(Repeat::Always, message, send).await?;
        self.page = answer.objects.into_iter().map(ObjectInfo::from).collect();
        self.more = answer.truncated;
        match self.page.back() {
            // A page that does not move forward would be asked for again without end.
            Some(last) if last.name <= self.after => {
                let message = format!("the server listed {:?} after {:?}", last.name, self.after);
                Err(Error::new(ErrorKind::Internal, message))
            }
            None if self.more => Err(Error::incomplete("object in a page that has a next one")),
            Some(last) => {
                self.after.clone_from(&last.name);
                Ok(())
            }
            None => Ok(()),
        }
    }
}
