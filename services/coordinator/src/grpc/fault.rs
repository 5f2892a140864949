//! `FaultService`.

use std::sync::Arc;

use stripeset_proto::v1::{self, fault_service_server::FaultService};
use tonic::{Request, Response, Status};

use super::{Shared, detached};

/// Serves `stripeset.v1.FaultService`.
pub struct FaultHandler {
    /// What it shares with the other handlers.
    pub shared: Arc<Shared>,
}

#[tonic::async_trait]
impl FaultService for FaultHandler {
    async fn inject_member_fault(
        &self,
        request: Request<v1::InjectMemberFaultRequest>,
    ) -> Result<Response<v1::InjectMemberFaultResponse>, Status> {
        let array = self.shared.existing()?;
        detached(async move { array.inject_member_fault(request.into_inner()).await }).await?;
        Ok(Response::new(v1::InjectMemberFaultResponse {}))
    }

    async fn corrupt_cache(
        &self,
        request: Request<v1::CorruptCacheRequest>,
    ) -> Result<Response<v1::CorruptCacheResponse>, Status> {
        let sectors = self.shared.existing()?.corrupt_cache(request.into_inner())?;
        Ok(Response::new(v1::CorruptCacheResponse { sectors }))
    }

    async fn read_without(
        &self,
        request: Request<v1::ReadWithoutRequest>,
    ) -> Result<Response<v1::ReadWithoutResponse>, Status> {
        let data = self.shared.serving()?.read_object_without(request.into_inner()).await?;
        Ok(Response::new(v1::ReadWithoutResponse { data }))
    }

    async fn arm_step(
        &self,
        request: Request<v1::ArmStepRequest>,
    ) -> Result<Response<v1::ArmStepResponse>, Status> {
        self.shared.existing()?.arm_step(request.into_inner())?;
        Ok(Response::new(v1::ArmStepResponse {}))
    }

    async fn resume_steps(
        &self,
        _request: Request<v1::ResumeStepsRequest>,
    ) -> Result<Response<v1::ResumeStepsResponse>, Status> {
        let resumed = self.shared.existing()?.engine.steps.resume();
        Ok(Response::new(v1::ResumeStepsResponse { resumed }))
    }

    async fn hint_allocation(
        &self,
        request: Request<v1::HintAllocationRequest>,
    ) -> Result<Response<v1::HintAllocationResponse>, Status> {
        self.shared.serving()?.hint_allocation(request.into_inner())?;
        Ok(Response::new(v1::HintAllocationResponse {}))
    }
}
