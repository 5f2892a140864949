//! `array create` and `array show`.

use std::time::Duration;

use serde::Serialize;
use stripeset_client::{Array, ArrayPlan, Client};

use super::json::{ArrayRow, ChunkRow};
use crate::{
    arguments::{ArrayCreateArguments, ProfileSpecArgument},
    failure::Failure,
    output::Output,
    quantity::{exact_size, show_size},
    table,
};

/// Laying out the disks takes a while: journals and tables are written in full.
const CREATE_LIMIT: Duration = Duration::from_secs(300);

pub(super) async fn create(
    endpoint: &str,
    arguments: ArrayCreateArguments,
    output: Output,
) -> Result<(), Failure> {
    let ArrayCreateArguments { agents, data, metadata, unit } = arguments;
    for (flag, ProfileSpecArgument { spec, .. }) in [("--data", &data), ("--metadata", &metadata)] {
        if let Err(error) = spec.resolve(agents.len()) {
            return Err(Failure::usage(format!(
                "{flag}: {error}: give more --agent addresses or another profile"
            )));
        }
    }
    let client = Client::builder(endpoint).call_deadline(CREATE_LIMIT).connect().await?;
    let plan = ArrayPlan {
        agents,
        data_profile: data.word,
        metadata_profile: metadata.word,
        unit_bytes: Some(unit),
        slice_bytes: None,
    };
    let array = client.array().create_array(plan).await?;
    output.show(&ArrayRow::from(&array), || fields(&array))
}

#[derive(Serialize)]
struct Shown {
    array: ArrayRow,
    chunks: Vec<ChunkRow>,
}

pub(super) async fn show(client: &Client, output: Output) -> Result<(), Failure> {
    let (array, chunks) = client.array().array().await?;
    let document =
        Shown { array: ArrayRow::from(&array), chunks: chunks.iter().map(ChunkRow::from).collect() };
    output.show(&document, || {
        if chunks.is_empty() {
            return fields(&array);
        }
        let mut rows =
            table::new(&["CHUNK", "PROFILE", "LOGICAL", "SIZE", "USED", "MEMBERS:SLICES"], &[0, 2, 3, 4]);
        for chunk in &chunks {
            let places =
                chunk.members.iter().zip(&chunk.slices).map(|(member, slice)| format!("{member}:{slice}"));
            rows.add_row([
                chunk.index.to_string(),
                chunk.profile.clone(),
                chunk.logical.to_string(),
                show_size(chunk.data_bytes),
                show_size(chunk.used_bytes),
                places.collect::<Vec<_>>().join(" "),
            ]);
        }
        format!("{}\n{}", fields(&array), table::text(&rows))
    })
}

fn fields(array: &Array) -> String {
    table::fields(&[
        ("array", array.id.to_string()),
        ("data", array.data_profile.clone()),
        ("metadata", array.metadata_profile.clone()),
        ("stripe unit", exact_size(array.unit_bytes.into())),
        ("slice", exact_size(array.slice_bytes)),
        ("members", array.members.to_string()),
        ("epoch", array.epoch.to_string()),
    ])
}
