//! `ArrayService`.

use std::sync::Arc;

use stripeset_proto::{
    Error,
    v1::{self, array_service_server::ArrayService},
};
use tonic::{Request, Response, Status};

use super::{Shared, detached};

/// Serves `stripeset.v1.ArrayService`.
pub struct ArrayHandler {
    /// What it shares with the other handlers.
    pub shared: Arc<Shared>,
}

#[tonic::async_trait]
impl ArrayService for ArrayHandler {
    async fn create_array(
        &self,
        request: Request<v1::CreateArrayRequest>,
    ) -> Result<Response<v1::CreateArrayResponse>, Status> {
        let shared = self.shared.clone();
        let array = detached(async move { shared.create(request.into_inner()).await }).await?;
        Ok(Response::new(v1::CreateArrayResponse { array: Some(array) }))
    }

    async fn get_array(
        &self,
        _request: Request<v1::GetArrayRequest>,
    ) -> Result<Response<v1::GetArrayResponse>, Status> {
        let array = self.shared.existing()?;
        Ok(Response::new(v1::GetArrayResponse {
            array: Some(array.describe()),
            chunks: array.describe_chunks(),
        }))
    }

    async fn get_status(
        &self,
        _request: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        Ok(Response::new(self.shared.status()))
    }

    async fn list_members(
        &self,
        _request: Request<v1::ListMembersRequest>,
    ) -> Result<Response<v1::ListMembersResponse>, Status> {
        let members = self.shared.existing()?.describe_members();
        Ok(Response::new(v1::ListMembersResponse { members }))
    }

    async fn explain(
        &self,
        request: Request<v1::ExplainRequest>,
    ) -> Result<Response<v1::ExplainResponse>, Status> {
        let Some(place) = request.into_inner().place else {
            return Err(Error::invalid("no place given: an object range or a logical address").into());
        };
        Ok(Response::new(self.shared.existing()?.explain(place).await?))
    }

    async fn get_cache_stats(
        &self,
        _request: Request<v1::GetCacheStatsRequest>,
    ) -> Result<Response<v1::GetCacheStatsResponse>, Status> {
        Ok(Response::new(self.shared.existing()?.cache_stats()))
    }

    async fn set_cache_mode(
        &self,
        request: Request<v1::SetCacheModeRequest>,
    ) -> Result<Response<v1::SetCacheModeResponse>, Status> {
        self.shared.existing()?.set_cache_mode(request.into_inner(), self.shared.config.is_unsafe)?;
        Ok(Response::new(v1::SetCacheModeResponse {}))
    }

    async fn set_cache_size(
        &self,
        request: Request<v1::SetCacheSizeRequest>,
    ) -> Result<Response<v1::SetCacheSizeResponse>, Status> {
        self.shared.existing()?.set_cache_size(request.into_inner().capacity_bytes)?;
        Ok(Response::new(v1::SetCacheSizeResponse {}))
    }

    async fn drop_cache(
        &self,
        _request: Request<v1::DropCacheRequest>,
    ) -> Result<Response<v1::DropCacheResponse>, Status> {
        self.shared.existing()?.engine.cache().clear();
        Ok(Response::new(v1::DropCacheResponse {}))
    }
}
