//! `/v1/routers`.

use super::Refusal;
use super::answer::{carried_through, name};
use super::body::Body;
use crate::daemon::registry::Registry;
use api::channel::{Flow, Selector, Transport};
use api::{
    Bypass, Error, ErrorBody, ErrorCode, Router, RouterConnections, RouterDetail, RouterPrefixes,
};
use axum::Json;
use axum::extract::{Path, Query, State};
use std::net::SocketAddr;
use std::sync::Arc;

/// All VMs with a guest channel, by name, and what they delegate.
#[utoipa::path(get, path = "/v1/routers", tag = "routers", operation_id = "list_routers",
    responses((status = 200, body = Vec<Router>)))]
pub(super) async fn list(State(registry): State<Arc<Registry>>) -> Json<Vec<Router>> {
    Json(registry.routers())
}

/// One router: its interfaces, next hops and counters.
#[utoipa::path(get, path = "/v1/routers/{name}", tag = "routers", operation_id = "show_router",
    params(("name" = String, Path, description = "Name of its VM")),
    responses((status = 200, body = RouterDetail), (status = 404, body = ErrorBody)))]
pub(super) async fn show(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
) -> Result<Json<RouterDetail>, Refusal> {
    Ok(Json(registry.router(&name(&text)?)?))
}

/// Where a list begins.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct From {
    after: Option<String>,
}

/// Prefixes a router delegates, in order, 10000 at a time.
#[utoipa::path(get, path = "/v1/routers/{name}/prefixes", tag = "routers",
    operation_id = "list_prefixes",
    params(
        ("name" = String, Path, description = "Name of its VM"),
        ("after" = Option<String>, Query, description = "Only those behind this prefix")),
    responses(
        (status = 200, body = RouterPrefixes),
        (status = 400, description = "Not a prefix", body = ErrorBody),
        (status = 404, description = "There is no router of that name", body = ErrorBody)))]
pub(super) async fn prefixes(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
    Query(from): Query<From>,
) -> Result<Json<RouterPrefixes>, Refusal> {
    let after = from.after.map(|text| text.parse::<Selector>()).transpose();
    let after = after.map_err(|error| Error::new(ErrorCode::Invalid, format!("after: {error}")))?;
    Ok(Json(registry.prefixes(&name(&text)?, after)?))
}

/// Where a list of connections begins: behind this one.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FromFlow {
    protocol: Option<Transport>,
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
}

/// Connections a router delegates, each direction for itself, in order, 10000 at a time.
#[utoipa::path(get, path = "/v1/routers/{name}/connections", tag = "routers",
    operation_id = "list_connections",
    params(
        ("name" = String, Path, description = "Name of its VM"),
        ("protocol" = Option<Transport>, Query,
            description = "Only those behind the one of this protocol, source and destination"),
        ("source" = Option<String>, Query, description = "Its source"),
        ("destination" = Option<String>, Query, description = "Its destination")),
    responses(
        (status = 200, body = RouterConnections),
        (status = 400, description = "A part of the connection is missing", body = ErrorBody),
        (status = 404, description = "There is no router of that name", body = ErrorBody)))]
pub(super) async fn connections(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
    Query(from): Query<FromFlow>,
) -> Result<Json<RouterConnections>, Refusal> {
    let after = match (from.protocol, from.source, from.destination) {
        (None, None, None) => None,
        (Some(protocol), Some(source), Some(destination)) => {
            Some(Flow { protocol, source, destination })
        }
        _ => {
            let what = "protocol, source and destination belong together";
            return Err(Error::new(ErrorCode::Invalid, what).into());
        }
    };
    Ok(Json(registry.connections(&name(&text)?, after)?))
}

/// Lets a router be bypassed where it delegates, or has it get all packets itself. When this is
/// answered, it is so. It holds over restarts.
#[utoipa::path(put, path = "/v1/routers/{name}/bypass", tag = "routers",
    operation_id = "bypass_router",
    params(("name" = String, Path, description = "Name of its VM")),
    request_body = Bypass,
    responses(
        (status = 200, description = "It is so", body = Router),
        (status = 404, description = "There is no router of that name", body = ErrorBody),
        (status = 500, description = "The machine refused", body = ErrorBody)))]
pub(super) async fn bypass(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
    Body(Bypass { bypass }): Body<Bypass>,
) -> Result<Json<Router>, Refusal> {
    let name = name(&text)?;
    carried_through(async move { registry.set_bypass(&name, bypass).await }).await.map(Json)
}
