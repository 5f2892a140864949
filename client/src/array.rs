//! [`ArrayClient`]: what an operator asks of a coordinator.

use stripeset_proto::{limits, v1, v1::array_service_client::ArrayServiceClient};
use tonic::transport::Channel;

use crate::{
    Array, ArrayStatus, CacheMode, CacheStats, Chunk, Client, Error, Explanation, Member, Place,
    array_types::members, retry::Repeat,
};

/// Looks at an array and makes one. Made by [`Client::array`].
#[derive(Clone, Debug)]
pub struct ArrayClient {
    pub(crate) client: Client,
}

/// The array to make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArrayPlan {
    /// Addresses of the agents, `host:port`, in the order of their member indices.
    pub agents: Vec<String>,
    /// Profile for data: `single`, `dup`, `mirror2`, `mirror3`, `raid5`, `raid6`, `raid5-K+1`, `raid6-K+2`, `rs-K+M`.
    pub data_profile: String,
    /// Profile for metadata.
    pub metadata_profile: String,
    /// Length of a stripe unit in bytes: a power of two from 4 KiB to 1 MiB; without one, 64 KiB.
    pub unit_bytes: Option<u32>,
    /// Length of a slice in bytes: a multiple of the stripe unit; without one, 64 MiB.
    pub slice_bytes: Option<u64>,
}

impl ArrayClient {
    /// Makes the array from blank agents.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong profile or length or too few agents, `Precondition` if an agent's disk is not
    /// blank or the coordinator has an array, `Unavailable` if an agent does not answer.
    ///
    /// ```
    /// # use stripeset_client::{ArrayPlan, Client};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start_blank(3).await;
    /// # let client = Client::connect(cluster.endpoint()).await?;
    /// # let agents = (0..3).map(|n| cluster.agent_address(n).to_string()).collect();
    /// // For example let agents = vec!["a:7421".to_owned(), "b:7421".to_owned(), "c:7421".to_owned()];
    /// let plan = ArrayPlan {
    ///     agents,
    ///     data_profile: "raid5".to_owned(),
    ///     metadata_profile: "raid5".to_owned(),
    ///     ..ArrayPlan::default()
    /// };
    /// let array = client.array().create_array(plan).await?;
    /// assert_eq!(array.data_profile, "raid5-2+1");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create_array(&self, plan: ArrayPlan) -> Result<Array, Error> {
        let message = v1::CreateArrayRequest {
            agents: plan.agents,
            data_profile: plan.data_profile,
            metadata_profile: plan.metadata_profile,
            unit_bytes: plan.unit_bytes.unwrap_or_default(),
            slice_bytes: plan.slice_bytes.unwrap_or_default(),
        };
        let send = |request| {
            let mut service = self.service();
            async move { service.create_array(request).await }
        };
        array(self.client.call(Repeat::Refused, message, send).await?.array)
    }

    /// How the array was made, and its chunks.
    ///
    /// # Errors
    /// `Precondition` if there is none yet.
    ///
    /// ```
    /// # use stripeset_client::Client;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// # let client = Client::connect(cluster.endpoint()).await?;
    /// let (array, _chunks) = client.array().array().await?;
    /// assert_eq!((array.members, array.data_profile.as_str()), (5, "raid5-4+1"));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn array(&self) -> Result<(Array, Vec<Chunk>), Error> {
        let send = |request| {
            let mut service = self.service();
            async move { service.get_array(request).await }
        };
        let answer = self.client.call(Repeat::Always, v1::GetArrayRequest {}, send).await?;
        Ok((array(answer.array)?, answer.chunks.into_iter().map(Chunk::from).collect()))
    }

    /// Whether reads and writes are served, and by what.
    ///
    /// ```
    /// # use stripeset_client::Client;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// # let client = Client::connect(cluster.endpoint()).await?;
    /// let status = client.array().status().await?;
    /// assert!(status.reads_served && status.writes_served);
    /// assert_eq!(status.redundancy.left, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn status(&self) -> Result<ArrayStatus, Error> {
        let send = |request| {
            let mut service = self.service();
            async move { service.get_status(request).await }
        };
        self.client.call(Repeat::Always, v1::GetStatusRequest {}, send).await?.try_into()
    }

    /// The members of the array, by index.
    ///
    /// ```
    /// # use stripeset_client::{Client, MemberState};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// # let client = Client::connect(cluster.endpoint()).await?;
    /// let members = client.array().members().await?;
    /// assert!(members.iter().all(|member| member.state == MemberState::InSync));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn members(&self) -> Result<Vec<Member>, Error> {
        let send = |request| {
            let mut service = self.service();
            async move { service.list_members(request).await }
        };
        members(self.client.call(Repeat::Always, v1::ListMembersRequest {}, send).await?.members)
    }

    /// Where bytes are on the disks, and how a write there would be done.
    ///
    /// # Errors
    /// `NotFound` if there is no such object.
    ///
    /// ```
    /// # use stripeset_client::{Client, Place};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// # let client = Client::connect(cluster.endpoint()).await?;
    /// client.put_bytes("a", vec![1; 8192]).await?;
    /// let place = Place::Object { name: "a".to_owned(), offset: 0, length: 8192 };
    /// let explanation = client.array().explain(place).await?;
    /// assert_eq!(explanation.sectors.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn explain(&self, place: Place) -> Result<Explanation, Error> {
        let message = v1::ExplainRequest::from(place);
        let send = |request| {
            let mut service = self.service();
            async move { service.explain(request).await }
        };
        Ok(self.client.call(Repeat::Always, message, send).await?.into())
    }

    /// The rbio cache: what is in it, and what it counted since the coordinator started.
    ///
    /// # Errors
    /// `Precondition` if there is no array yet.
    ///
    /// ```
    /// # use stripeset_client::{CacheMode, Client};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// # let client = Client::connect(cluster.endpoint()).await?;
    /// client.put_bytes("a", vec![1; 4096]).await?;
    /// client.put_bytes("b", vec![2; 4096]).await?;
    /// let cache = client.array().cache_stats().await?;
    /// assert_eq!((cache.mode, cache.total.rmw_skips), (CacheMode::Drop, 1));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn cache_stats(&self) -> Result<CacheStats, Error> {
        let send = |request| {
            let mut service = self.service();
            async move { service.get_cache_stats(request).await }
        };
        self.client.call(Repeat::Always, v1::GetCacheStatsRequest {}, send).await?.try_into()
    }

    /// Changes what happens to cached sectors that are freed; in mode `drop`, whether the whole entry goes. A change empties
    /// the cache.
    ///
    /// # Errors
    /// `Precondition` for `stock` and `mark` unless the coordinator was started with `--unsafe`, `InvalidArgument` for `whole`
    /// in another mode than `drop`.
    ///
    /// ```
    /// # use stripeset_client::{CacheMode, Client};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = stripeset_testing::Cluster::start(5, "raid5").await;
    /// # let client = Client::connect(cluster.endpoint()).await?;
    /// client.array().set_cache_mode(CacheMode::Off, false).await?;
    /// assert!(client.array().set_cache_mode(CacheMode::Stock, false).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_cache_mode(&self, mode: CacheMode, whole: bool) -> Result<(), Error> {
        let message = v1::SetCacheModeRequest { mode: v1::CacheMode::from(mode).into(), whole };
        let send = |request| {
            let mut service = self.service();
            async move { service.set_cache_mode(request).await }
        };
        self.client.call(Repeat::Always, message, send).await.map(|_| ())
    }

    /// Changes how many bytes the cache may take, until the coordinator stops.
    pub async fn set_cache_size(&self, capacity_bytes: u64) -> Result<(), Error> {
        let send = |request| {
            let mut service = self.service();
            async move { service.set_cache_size(request).await }
        };
        self.client.call(Repeat::Always, v1::SetCacheSizeRequest { capacity_bytes }, send).await.map(|_| ())
    }

    /// Empties the cache.
    pub async fn drop_cache(&self) -> Result<(), Error> {
        let send = |request| {
            let mut service = self.service();
            async move { service.drop_cache(request).await }
        };
        self.client.call(Repeat::Always, v1::DropCacheRequest {}, send).await.map(|_| ())
    }

    fn service(&self) -> ArrayServiceClient<Channel> {
        ArrayServiceClient::new(self.client.channel.clone())
            .max_decoding_message_size(limits::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::MESSAGE_BYTES_MAX)
    }
}

fn array(field: Option<v1::Array>) -> Result<Array, Error> {
    field.ok_or_else(|| Error::incomplete("array"))?.try_into()
}
