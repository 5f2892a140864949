//! `health`: the standard gRPC health check, for probes.

use std::time::Duration;

use serde::Serialize;
use tonic::transport::Endpoint;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    failure::{Code, Failure},
    output::Output,
};

/// Two seconds, less what it takes to start and to print.
const LIMIT: Duration = Duration::from_millis(1800);

#[derive(Serialize)]
struct Health {
    address: String,
    status: &'static str,
    serving: bool,
}

pub(super) async fn run(address: &str, output: Output) -> Result<(), Failure> {
    let status = match tokio::time::timeout(LIMIT, check(address)).await {
        Ok(status) => status.map_err(Failure::failed)?,
        Err(_) => return Err(Failure::failed(format!("no answer from {address} within {LIMIT:?}"))),
    };
    let word = match status {
        ServingStatus::Serving => "serving",
        ServingStatus::NotServing => "not_serving",
        ServingStatus::Unknown | ServingStatus::ServiceUnknown => "unknown",
    };
    let serving = status == ServingStatus::Serving;
    output.show(&Health { address: address.to_owned(), status: word, serving }, || word.to_owned())?;
    if serving { Ok(()) } else { Err(Failure::silent(Code::Failed)) }
}

/// The URL of a service at an address.
pub(crate) fn url(address: impl std::fmt::Display) -> String {
    format!("http://{address}")
}

/// Asks the service at `address`, HOST:PORT, whether it serves. The error says why there is no answer.
pub(crate) async fn check(address: &str) -> Result<ServingStatus, String> {
    let endpoint = Endpoint::from_shared(url(address)).map_err(|error| format!("{address}: {error}"))?;
    let channel = match endpoint.connect().await {
        Ok(channel) => channel,
        Err(error) => {
            let innermost = std::iter::successors(std::error::Error::source(&error), |error| error.source());
            let why = innermost.last().map_or_else(|| error.to_string(), ToString::to_string);
            return Err(format!("cannot reach {address}: {why}"));
        }
    };
    let answer = HealthClient::new(channel).check(HealthCheckRequest::default()).await;
    let answer = answer.map_err(|status| format!("{address} did not answer: {}", status.message()))?;
    Ok(answer.into_inner().status())
}
