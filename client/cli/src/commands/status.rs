//! `status`: whether reads and writes are served. Scripts wait for it, so it answers within a second, whatever the
//! coordinator does.

use std::time::Duration;

use serde::Serialize;
use stripeset_client::{ArrayStatus, Client, RetryPolicy};

use super::{
    json::{ArrayRow, MemberRow},
    member,
};
use crate::{
    failure::{Code, Failure},
    output::Output,
    quantity::show_size,
    table,
};

/// A second, less what it takes to start and to print.
const LIMIT: Duration = Duration::from_millis(900);

#[derive(Serialize)]
struct Status {
    reads_served: bool,
    writes_served: bool,
    reason: String,
    /// None if no array was made yet.
    array: Option<ArrayRow>,
    members: Vec<MemberRow>,
    capacity: Capacity,
    redundancy: Redundancy,
    objects: u64,
}

#[derive(Serialize)]
struct Capacity {
    raw_bytes: u64,
    data_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
}

#[derive(Serialize)]
struct Redundancy {
    tolerated: u32,
    away: u32,
    left: u32,
}

pub(super) async fn run(endpoint: &str, output: Output) -> Result<(), Failure> {
    let ask = async {
        let builder = Client::builder(endpoint).connect_deadline(LIMIT).call_deadline(LIMIT);
        builder.retry(RetryPolicy::never()).connect().await?.array().status().await
    };
    let status = match tokio::time::timeout(LIMIT, ask).await {
        Ok(status) => status?,
        Err(_) => return Err(Failure::failed(format!("no answer from {endpoint} within {LIMIT:?}"))),
    };
    output.show(&document(&status), || text(&status))?;
    if status.reads_served && status.writes_served { Ok(()) } else { Err(Failure::silent(Code::Failed)) }
}

fn document(status: &ArrayStatus) -> Status {
    let (capacity, redundancy) = (status.capacity, status.redundancy);
    Status {
        reads_served: status.reads_served,
        writes_served: status.writes_served,
        reason: status.reason.clone(),
        array: status.array.as_ref().map(ArrayRow::from),
        members: status.members.iter().map(MemberRow::from).collect(),
        capacity: Capacity {
            raw_bytes: capacity.raw_bytes,
            data_bytes: capacity.data_bytes,
            used_bytes: capacity.used_bytes,
            free_bytes: capacity.free_bytes,
        },
        redundancy: Redundancy {
            tolerated: redundancy.tolerated,
            away: redundancy.away,
            left: redundancy.left,
        },
        objects: status.objects,
    }
}

fn text(status: &ArrayStatus) -> String {
    let served = match (status.reads_served, status.writes_served) {
        (true, true) => "reads and writes",
        (true, false) => "reads only",
        (false, true) => "writes only",
        (false, false) => "nothing",
    };
    let mut fields = vec![("serves", served.to_owned())];
    if !status.reason.is_empty() {
        fields.push(("because", status.reason.clone()));
    }
    let Some(array) = &status.array else {
        fields.push(("array", "none: make one with `stripeset array create`".to_owned()));
        return table::fields(&fields);
    };
    let (capacity, redundancy) = (status.capacity, status.redundancy);
    fields.push(("array", format!("{}, data {}", array.id, array.data_profile)));
    fields.push(("objects", status.objects.to_string()));
    let (used, all) = (show_size(capacity.used_bytes), show_size(capacity.data_bytes));
    fields.push(("capacity", format!("{used} of {all} used, {} free", show_size(capacity.free_bytes))));
    let (left, tolerated) = (redundancy.left, redundancy.tolerated);
    fields.push(("redundancy", format!("{left} more can be lost ({} of {tolerated} away)", redundancy.away)));
    format!("{}\n{}", table::fields(&fields), member::text(&status.members))
}
