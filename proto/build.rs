//! Compiles the `.proto` files without protoc and keeps the descriptors for reflection.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let files = ["types", "object", "array", "agent", "agent_data", "fault", "state"]
        .map(|name| format!("stripeset/v1/{name}.proto"));
    println!("cargo::rerun-if-changed=stripeset");
    let descriptors = protox::compile(&files, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
