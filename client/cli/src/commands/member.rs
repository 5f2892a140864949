//! `member list`.

use serde::Serialize;
use stripeset_client::{Client, Member};

use super::json::MemberRow;
use crate::{failure::Failure, output::Output, quantity::show_size, table};

#[derive(Serialize)]
struct Members {
    members: Vec<MemberRow>,
}

pub(super) async fn list(client: &Client, output: Output) -> Result<(), Failure> {
    let members = client.array().members().await?;
    let document = Members { members: members.iter().map(MemberRow::from).collect() };
    output.show(&document, || text(&members))
}

/// The members as a table.
pub(super) fn text(members: &[Member]) -> String {
    let header = ["MEMBER", "ADDRESS", "STATE", "SIZE", "USED", "ERRORS", "REPAIRED", "REASON"];
    let mut rows = table::new(&header, &[0, 3, 4, 5, 6]);
    for member in members {
        rows.add_row([
            member.index.to_string(),
            member.address.clone(),
            member.state.to_string(),
            show_size(member.size_bytes),
            show_size(member.used_bytes),
            member.errors.total().to_string(),
            member.errors.corrected.to_string(),
            member.reason.clone(),
        ]);
    }
    table::text(&rows)
}
