//! Faults on demand (`AgentFaultService`): checks, and hands on to the disk or its thread. Served only by an agent that
//! was started for it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use stripeset_proto::{
    Error, ErrorKind,
    v1::{self, agent_fault_service_server::AgentFaultService, disk_fault::Fault},
};
use stripeset_stripe::SECTOR_BYTES;
use tonic::{Request, Response, Status};

use crate::{
    disk::faulty::FaultHandle,
    queue::Queue,
    refusal::Refusal,
    service::of_refusal,
    store::{Store, tamper::SavedSector},
};

/// Most bytes that one flip inverts.
const FLIP_BYTES_MAX: u64 = 64 * 1024;

/// Most bytes that one punch makes zeros.
const PUNCH_BYTES_MAX: u64 = 1024 * 1024;

/// Longest that an operation is made to wait.
const DELAY_MAX: Duration = Duration::from_secs(60);

/// Most sectors that are remembered.
const SAVED_MAX: usize = 1024;

/// Injects faults into one disk. Cheap to clone.
#[derive(Clone)]
pub(crate) struct FaultService {
    queue: Queue,
    handle: FaultHandle,
    // By the first byte on the disk.
    saved: Arc<Mutex<BTreeMap<u64, SavedSector>>>,
}

impl FaultService {
    pub(crate) fn new(queue: Queue, handle: FaultHandle) -> FaultService {
        FaultService { queue, handle, saved: Arc::default() }
    }

    async fn inject(&self, fault: Fault) -> Result<(), Error> {
        match fault {
            Fault::Flip(flip) => {
                let range = range(flip.disk_offset, flip.length, FLIP_BYTES_MAX)?;
                self.change(move |store| match flip.rewrite_checksum {
                    true => store.invert_sealed(range),
                    false => {
                        store.change_bytes(range, |bytes| bytes.iter_mut().for_each(|byte| *byte = !*byte))
                    }
                })
                .await
            }
            Fault::Punch(punch) => {
                let range = range(punch.disk_offset, punch.length, PUNCH_BYTES_MAX)?;
                self.change(move |store| store.change_bytes(range, |bytes| bytes.fill(0))).await
            }
            Fault::SaveSector(save) => self.save(save.disk_offset).await,
            Fault::RestoreSector(restore) => self.restore(restore.disk_offset).await,
            Fault::DropWrites(drop) => self.lasting(|handle| handle.drop_writes(drop.count)).await,
            Fault::ShortReads(short) => {
                self.lasting(|handle| handle.shorten_reads(short.bytes, short.count)).await
            }
            Fault::IoErrors(errors) => self.lasting(|handle| handle.fail(errors.reads, errors.writes)).await,
            Fault::Delay(delay) => {
                let delay = Duration::from_millis(delay.millis.into());
                if delay > DELAY_MAX {
                    return Err(Error::invalid(format!("a delay of {delay:?}: at most {DELAY_MAX:?}")));
                }
                self.handle.delay(delay);
                Ok(())
            }
            Fault::Freeze(_) => {
                self.handle.freeze(true);
                Ok(())
            }
            Fault::Thaw(_) => {
                self.handle.freeze(false);
                Ok(())
            }
            Fault::Clear(_) => {
                self.handle.clear();
                Ok(())
            }
        }
    }

    /// Does something with the store, in its turn.
    async fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Store) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Error> {
        if self.handle.is_frozen() {
            return Err(Error::new(ErrorKind::Precondition, "the disk is frozen: thaw it first"));
        }
        self.queue.look(change).await?.map_err(of_refusal)
    }

    /// A fault of the data area, which has to be known for it.
    async fn lasting(&self, begin: impl FnOnce(&FaultHandle)) -> Result<(), Error> {
        let layout = self.change(|store| store.layout().ok_or(Refusal::Blank)).await?;
        self.handle.set_data_offset(Some(layout.data_offset()));
        begin(&self.handle);
        Ok(())
    }

    async fn save(&self, offset: u64) -> Result<(), Error> {
        let saved = self.change(move |store| store.save_sector(offset)).await?;
        let mut all = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= SAVED_MAX {
            let message = format!("{SAVED_MAX} sectors are saved, which is the most: restart the agent");
            return Err(Error::new(ErrorKind::Precondition, message));
        }
        all.insert(first_byte(offset), saved);
        Ok(())
    }

    async fn restore(&self, offset: u64) -> Result<(), Error> {
        let saved = {
            let all = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
            all.get(&first_byte(offset)).cloned()
        };
        let Some(saved) = saved else {
            let message = format!("the sector of byte {offset} was not saved since the agent started");
            return Err(Error::new(ErrorKind::Precondition, message));
        };
        self.change(move |store| store.restore_sector(&saved)).await
    }
}

#[tonic::async_trait]
impl AgentFaultService for FaultService {
    async fn inject_disk_fault(
        &self,
        request: Request<v1::InjectDiskFaultRequest>,
    ) -> Result<Response<v1::InjectDiskFaultResponse>, Status> {
        let Some(fault) = request.into_inner().fault.and_then(|fault| fault.fault) else {
            return Err(Error::invalid("no fault given").into());
        };
        tracing::warn!(?fault, "a fault is injected, as it was asked for");
        self.inject(fault).await?;
        Ok(Response::new(v1::InjectDiskFaultResponse {}))
    }
}

fn range(offset: u64, length: u64, most: u64) -> Result<std::ops::Range<u64>, Error> {
    if length == 0 || length > most {
        return Err(Error::invalid(format!("{length} bytes: from 1 to {most} are changed at a time")));
    }
    let end =
        offset.checked_add(length).ok_or_else(|| Error::invalid(format!("no disk has byte {offset}")))?;
    Ok(offset..end)
}

/// Units start at multiples of a sector.
fn first_byte(offset: u64) -> u64 {
    offset / SECTOR_BYTES as u64 * SECTOR_BYTES as u64
}
