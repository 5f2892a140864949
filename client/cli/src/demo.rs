//! placeholder
use crate::{arguments::DemoArguments, failure::Failure, output::Output};
pub(crate) async fn run(_arguments: DemoArguments, _output: Output) -> Result<(), Failure> {
    Ok(())
}
