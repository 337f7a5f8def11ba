//! The REST interface: paths, their documentation, and nothing else.
//!
//! Handlers run on the control thread. A change runs in a task of its own, so that a client that
//! goes away does not leave it half done.

mod answer;
mod body;
mod disks;
mod flows;
mod host;
mod images;
mod metrics;
mod networks;
mod pfs;
mod ports;
mod routers;
#[cfg(test)]
mod tests;
mod vms;

use super::registry::Registry;
use answer::Refusal;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use std::sync::Arc;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Largest request body in bytes: the largest sensible one has less than a tenth of this.
const BODY_MAX: usize = 64 * 1024;

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "hayate",
        description = "The I/O daemon for virtual machines. HTTP over the Unix socket \
            `api.sock` in the daemon's run directory. Every refusal has the body `ErrorBody`.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    components(schemas(api::ErrorBody)),
    tags(
        (name = "networks", description = "Isolated layer-2 segments"),
        (name = "ports", description = "Where frames enter and leave a network"),
        (name = "vms", description = "Names that ports belong to"),
        (name = "pfs", description = "Virtual functions of VMs"),
        (name = "routers", description = "Routers in VMs, and what bypasses them"),
        (name = "images", description = "What disks are made of"),
        (name = "disks", description = "Disks of VMs, served from images"),
        (name = "host", description = "The daemon: workers, counters, version"),
    ),
)]
struct Document;

fn routes() -> OpenApiRouter<Arc<Registry>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(networks::list))
        .routes(routes!(networks::show, networks::put, networks::delete))
        .routes(routes!(networks::fdb))
        .routes(routes!(ports::list))
        .routes(routes!(ports::show, ports::put, ports::delete))
        .routes(routes!(ports::place))
        .routes(routes!(ports::enforce))
        .routes(routes!(vms::list))
        .routes(routes!(vms::show, vms::put, vms::delete))
        .routes(routes!(pfs::list))
        .routes(routes!(pfs::show, pfs::put, pfs::delete))
        .routes(routes!(pfs::limit))
        .routes(routes!(pfs::rules, pfs::clear_rules))
        .routes(routes!(routers::list))
        .routes(routes!(routers::show))
        .routes(routes!(routers::prefixes))
        .routes(routes!(routers::connections))
        .routes(routes!(routers::bypass))
        .routes(routes!(flows::why))
        .routes(routes!(images::list))
        .routes(routes!(images::show, images::put, images::delete))
        .routes(routes!(images::snapshot))
        .routes(routes!(images::resize))
        .routes(routes!(images::check))
        .routes(routes!(images::import))
        .routes(routes!(images::export))
        .routes(routes!(disks::list))
        .routes(routes!(disks::show, disks::put, disks::delete))
        .routes(routes!(disks::limit))
        .routes(routes!(host::workers))
        .routes(routes!(host::worker))
        .routes(routes!(host::stats))
        .routes(routes!(host::metrics))
        .routes(routes!(host::version))
        .routes(routes!(host::health))
        .routes(routes!(host::document))
}

/// The interface's description.
pub(crate) fn openapi() -> OpenApi {
    routes().into_openapi()
}

/// Everything that answers.
pub(super) fn router(registry: Arc<Registry>) -> Router {
    let (router, _) = routes().split_for_parts();
    router
        .fallback(answer::no_such_path)
        .method_not_allowed_fallback(answer::no_such_method)
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(registry)
}
