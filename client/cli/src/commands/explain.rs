//! `explain`: where bytes are on the disks.

use serde::Serialize;
use stripeset_client::{Client, Explanation, Place};

use crate::{arguments::ExplainArguments, failure::Failure, output::Output, table};

#[derive(Serialize)]
struct Explained {
    sectors: Vec<Sector>,
    parity: Vec<Parity>,
    plan: String,
    plans: Vec<Plan>,
}

#[derive(Serialize)]
struct Plan {
    chunk: u64,
    stripe: u32,
    kind: String,
    sectors_read: u32,
    read_members: Vec<u32>,
    write_members: Vec<u32>,
}

#[derive(Serialize)]
struct Sector {
    offset: u64,
    logical: u64,
    chunk: u64,
    stripe: u32,
    shard: u32,
    member: u32,
    disk_offset: u64,
    /// None if the member does not answer.
    version: Option<Version>,
    live: bool,
    cached: bool,
}

#[derive(Serialize)]
struct Version {
    epoch: u64,
    incarnation: u64,
    sequence: u64,
}

#[derive(Serialize)]
struct Parity {
    chunk: u64,
    stripe: u32,
    shard: u32,
    member: u32,
    disk_offset: u64,
    length: u64,
}

pub(super) async fn run(endpoint: &str, arguments: ExplainArguments, output: Output) -> Result<(), Failure> {
    let ExplainArguments { name, offset, length, logical } = arguments;
    let place = match (name, logical) {
        (_, Some(logical)) => Place::Logical(logical),
        (Some(name), None) => Place::Object { name, offset, length },
        (None, None) => return Err(Failure::usage("give the NAME of an object or --logical ADDRESS")),
    };
    let explanation = Client::connect(endpoint).await?.array().explain(place).await?;
    output.show(&document(&explanation), || text(&explanation))
}

fn document(explanation: &Explanation) -> Explained {
    let sectors = explanation.sectors.iter().map(|sector| Sector {
        offset: sector.offset,
        logical: sector.logical,
        chunk: sector.chunk,
        stripe: sector.stripe,
        shard: sector.shard,
        member: sector.member,
        disk_offset: sector.disk_offset,
        version: sector.version.map(|version| Version {
            epoch: version.epoch,
            incarnation: version.incarnation,
            sequence: version.sequence,
        }),
        live: sector.live,
        cached: sector.cached,
    });
    let parity = explanation.parity.iter().map(|place| Parity {
        chunk: place.chunk,
        stripe: place.stripe,
        shard: place.shard,
        member: place.member,
        disk_offset: place.disk_offset,
        length: place.length,
    });
    let plans = explanation.stripe_plans.iter().map(|plan| Plan {
        chunk: plan.chunk,
        stripe: plan.stripe,
        kind: plan.kind.clone(),
        sectors_read: plan.sectors_read,
        read_members: plan.read_members.clone(),
        write_members: plan.write_members.clone(),
    });
    Explained {
        sectors: sectors.collect(),
        parity: parity.collect(),
        plan: explanation.plan.clone(),
        plans: plans.collect(),
    }
}

fn text(explanation: &Explanation) -> String {
    let header = [
        "OFFSET",
        "LOGICAL",
        "CHUNK",
        "STRIPE",
        "SHARD",
        "MEMBER",
        "DISK OFFSET",
        "VERSION",
        "LIVE",
        "CACHED",
    ];
    let mut sectors = table::new(&header, &[0, 1, 2, 3, 4, 5, 6, 7]);
    let yes_no = |yes: bool| if yes { "yes" } else { "no" };
    for sector in &explanation.sectors {
        sectors.add_row([
            sector.offset.to_string(),
            sector.logical.to_string(),
            sector.chunk.to_string(),
            sector.stripe.to_string(),
            sector.shard.to_string(),
            sector.member.to_string(),
            sector.disk_offset.to_string(),
            sector
                .version
                .map_or_else(|| "-".to_owned(), |version| format!("{}.{}", version.epoch, version.sequence)),
            yes_no(sector.live).to_owned(),
            yes_no(sector.cached).to_owned(),
        ]);
    }
    let mut parity = table::new(
        &["PARITY", "CHUNK", "STRIPE", "SHARD", "MEMBER", "DISK OFFSET", "LENGTH"],
        &[1, 2, 3, 4, 5, 6],
    );
    for place in &explanation.parity {
        let numbers = [
            u64::from(place.stripe),
            place.shard.into(),
            place.member.into(),
            place.disk_offset,
            place.length,
        ];
        let numbers = numbers.map(|number| number.to_string());
        parity.add_row([String::new(), place.chunk.to_string()].into_iter().chain(numbers));
    }
    format!("{}\n{}\na write here: {}\n", table::text(&sectors), table::text(&parity), explanation.plan)
}
