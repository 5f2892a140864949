//! The gRPC face of the coordinator: checks, converts, hands work to tasks that outlive the call, converts back.

pub mod array;
pub mod fault;
pub mod object;

use std::sync::{Arc, PoisonError, RwLock};

use stripeset_proto::{Error, ErrorKind, v1};

use crate::{
    array::{Array, Phase, StartPatience, create::Plan},
    config::CoordinatorConfig,
    meta::{ArrayRecord, Meta},
    state::StateFolder,
    versions::VersionSequence,
};

/// What the handlers share.
pub struct Shared {
    config: CoordinatorConfig,
    meta: Meta,
    versions: Arc<VersionSequence>,
    folder: StateFolder,
    array: RwLock<Option<Arc<Array>>>,
    creating: tokio::sync::Mutex<()>,
}

impl Shared {
    /// The state of a coordinator, with the array that its metadata knows of.
    pub fn open(
        config: CoordinatorConfig,
        meta: Meta,
        versions: Arc<VersionSequence>,
        folder: StateFolder,
    ) -> Result<Self, Error> {
        let record = meta.snapshot()?.array()?;
        let shared = Shared {
            config,
            meta,
            versions,
            folder,
            array: RwLock::new(None),
            creating: tokio::sync::Mutex::new(()),
        };
        if let Some(record) = record {
            shared.start(record)?;
        }
        Ok(shared)
    }

    fn start(&self, record: ArrayRecord) -> Result<Arc<Array>, Error> {
        let patience = StartPatience { patience: self.config.start_patience, forced: self.config.force };
        let (meta, versions) = (self.meta.clone(), self.versions.clone());
        let array = Array::start(record, meta, versions, self.folder.clone(), patience)?;
        array.engine.cache().set_capacity(self.config.cache_bytes);
        *self.array.write().unwrap_or_else(PoisonError::into_inner) = Some(array.clone());
        Ok(array)
    }

    /// Whether faults are injected on demand.
    pub fn faults(&self) -> bool {
        self.config.faults
    }

    /// The array, if there is one.
    pub fn array(&self) -> Option<Arc<Array>> {
        self.array.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn existing(&self) -> Result<Arc<Array>, Error> {
        self.array().ok_or_else(|| {
            let message = "there is no array yet: make one with `stripeset array create`";
            Error::new(ErrorKind::Precondition, message)
        })
    }

    /// The array, if it is being served.
    fn serving(&self) -> Result<Arc<Array>, Error> {
        let array = self.existing()?;
        array.check_serving()?;
        Ok(array)
    }

    async fn create(&self, request: v1::CreateArrayRequest) -> Result<v1::Array, Error> {
        let _creating = self.creating.lock().await;
        if let Some(array) = self.array() {
            let message = format!("this coordinator already runs array {}", array.record.array_id);
            return Err(Error::new(ErrorKind::Precondition, message));
        }
        let (record, members, label) = Plan::new(request)?.carry_out().await?;
        // Every member has it: the agents joined with it.
        let kept = self.folder.remember(label, true).await;
        kept.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        self.meta.create_array(record.clone(), members).await?;
        tracing::info!(array = %record.array_id, profile = record.data_profile, "array made");
        Ok(self.start(record)?.describe())
    }

    fn status(&self) -> v1::GetStatusResponse {
        match self.array() {
            Some(array) => array.status(),
            None => {
                (&Phase::Starting("there is no array yet: make one with `stripeset array create`".to_owned()))
                    .into()
            }
        }
    }
}

/// Runs work in a task of its own, so that a call that is dropped does not cut it in half.
async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(error) => Err(Error::new(ErrorKind::Internal, format!("the work ended early: {error}"))),
    }
}
