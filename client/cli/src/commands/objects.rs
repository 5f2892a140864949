//! `ls`, `stat` and `rm`.

use serde::Serialize;
use stripeset_client::{Client, ObjectInfo};
use tokio_stream::StreamExt;

use super::json::ObjectRow;
use crate::{
    failure::Failure,
    output::{self, Output},
    quantity::show_size,
    table,
};

#[derive(Serialize)]
struct List {
    objects: Vec<ObjectRow>,
}

pub(super) async fn list(client: &Client, prefix: &str, output: Output) -> Result<(), Failure> {
    let mut objects = client.list(prefix);
    if output.is_json() {
        let mut document = List { objects: Vec::new() };
        while let Some(object) = objects.next().await {
            document.objects.push(ObjectRow::from(&object?));
        }
        return output.show(&document, String::new);
    }
    // Line by line as the pages come: a list may be long.
    let mut first = true;
    while let Some(object) = objects.next().await {
        let object = object?;
        let header =
            if first { format!("{:>10}  {:19}  NAME\n", "SIZE", "MODIFIED (UTC)") } else { String::new() };
        first = false;
        let (size, modified) = (show_size(object.size_bytes), table::time(object.modified));
        if !output::print(&format!("{header}{size:>10}  {modified}  {}\n", object.name))? {
            break;
        }
    }
    Ok(())
}

pub(super) async fn stat(client: &Client, name: &str, output: Output) -> Result<(), Failure> {
    show(&client.stat(name).await?, output)
}

pub(super) async fn remove(client: &Client, name: &str, output: Output) -> Result<(), Failure> {
    let object = client.delete(name).await?;
    output.show(&ObjectRow::from(&object), || format!("removed {name} ({})", show_size(object.size_bytes)))
}

fn show(object: &ObjectInfo, output: Output) -> Result<(), Failure> {
    output.show(&ObjectRow::from(object), || {
        table::fields(&[
            ("name", object.name.clone()),
            ("size", format!("{} ({} bytes)", show_size(object.size_bytes), object.size_bytes)),
            (
                "allocated",
                format!("{} ({} bytes)", show_size(object.allocated_bytes), object.allocated_bytes),
            ),
            ("modified", format!("{} UTC", table::time(object.modified))),
            ("crc32c", format!("{:08x}", object.crc32c)),
            ("generation", object.generation.to_string()),
        ])
    })
}
