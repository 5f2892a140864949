//! What a member shows of its units: their records, which changed since a version, which have a write pending.

use std::sync::Arc;

use stripeset_proto::{Error, convert, v1};
use stripeset_stripe::Version;
use tonic::transport::Channel;

use super::connect::{agent_client, timed};

/// Where a member's units are asked for.
#[derive(Clone)]
pub enum Units {
    /// At its agent, by unary calls over the channel of the session.
    Agent(Channel),
    /// At something else: a simulation has no channel.
    Other(Arc<dyn ShowUnits>),
}

/// What shows units without a channel.
pub trait ShowUnits: Send + Sync {
    /// The record of one unit.
    fn record(&self, unit: u64) -> Result<v1::UnitRecord, Error>;
    /// Units of a range with a floor above a version.
    fn changed(&self, units: std::ops::Range<u64>, since: Version) -> Result<Vec<u64>, Error>;
    /// Everything pending.
    fn pending(&self) -> Result<Vec<v1::PendingWrite>, Error>;
}

impl Units {
    /// The record of one unit; `None` if the agent shows none.
    pub async fn record(&self, unit: u64) -> Result<Option<v1::UnitRecord>, Error> {
        match self {
            Units::Agent(channel) => {
                let request = v1::ListUnitsRequest { units: vec![unit], limit: 1, ..Default::default() };
                let listed = agent_client(channel.clone()).list_units(timed(request)).await?;
                Ok(listed.into_inner().units.into_iter().next())
            }
            Units::Other(units) => units.record(unit).map(Some),
        }
    }

    /// Units of a range in which anything happened after a version: written, aborted, discarded or rebuilt.
    pub async fn changed(&self, units: std::ops::Range<u64>, since: Version) -> Result<Vec<u64>, Error> {
        let channel = match self {
            Units::Agent(channel) => channel,
            Units::Other(other) => return other.changed(units, since),
        };
        let (mut changed, mut next) = (Vec::new(), Some(units.start));
        while let Some(first_unit) = next {
            let request = v1::ListUnitsRequest {
                first_unit,
                end_unit: units.end,
                since: Some(since.into()),
                ..Default::default()
            };
            let listed = agent_client(channel.clone()).list_units(timed(request)).await?.into_inner();
            changed.extend(listed.units.iter().map(|record| record.unit));
            next = listed.next_unit;
        }
        Ok(changed)
    }

    /// What every pending write is for.
    pub async fn pending(&self) -> Result<Vec<convert::Identity>, Error> {
        let mut pending = Vec::new();
        match self {
            Units::Agent(channel) => {
                let mut next = Some(0);
                while let Some(first_unit) = next {
                    let request = v1::ListPendingRequest { first_unit, limit: 0 };
                    let listed =
                        agent_client(channel.clone()).list_pending(timed(request)).await?.into_inner();
                    pending.extend(listed.pending);
                    next = listed.next_unit;
                }
            }
            Units::Other(units) => pending = units.pending()?,
        }
        let identity = |write: v1::PendingWrite| {
            let identity = write.identity.ok_or(convert::ConvertError::Missing("identity"))?;
            Ok(convert::Identity::try_from(identity)?)
        };
        pending.into_iter().map(identity).collect()
    }
}
