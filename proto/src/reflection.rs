//! What a server says of its own interface, for `grpcurl` and its like.

use tonic::service::Routes;
use tonic_reflection::server::Builder;
pub use tonic_reflection::server::Error;

use crate::descriptor_sets;

/// Adds the services of reflection, for all that a stripeset server serves: its own services and health.
pub fn add_to(routes: Routes) -> Result<Routes, Error> {
    let builder = || {
        let builder =
            Builder::configure().register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
        descriptor_sets().into_iter().fold(builder, Builder::register_encoded_file_descriptor_set)
    };
    let routes = routes.add_service(builder().build_v1()?);
    // Older tools know v1alpha alone.
    Ok(routes.add_service(builder().build_v1alpha()?))
}
