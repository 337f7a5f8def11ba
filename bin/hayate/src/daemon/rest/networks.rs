//! `/v1/networks`.

use super::Refusal;
use super::answer::{carried_through, made, name};
use super::body::Body;
use crate::daemon::registry::Registry;
use api::{ErrorBody, FdbEntry, Network, NetworkConfig};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use std::sync::Arc;

/// All networks, by name.
#[utoipa::path(get, path = "/v1/networks", tag = "networks", operation_id = "list_networks",
    responses((status = 200, body = Vec<Network>)))]
pub(super) async fn list(State(registry): State<Arc<Registry>>) -> Json<Vec<Network>> {
    Json(registry.networks())
}

/// One network.
#[utoipa::path(get, path = "/v1/networks/{name}", tag = "networks", operation_id = "show_network",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, body = Network), (status = 404, body = ErrorBody)))]
pub(super) async fn show(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
) -> Result<Json<Network>, Refusal> {
    Ok(Json(registry.network(&name(&text)?)?))
}

/// Makes a network. Asking twice for the same is no mistake.
#[utoipa::path(put, path = "/v1/networks/{name}", tag = "networks", operation_id = "put_network",
    params(("name" = String, Path, description = "Its name")),
    request_body = NetworkConfig,
    responses(
        (status = 201, description = "It was made", body = Network),
        (status = 200, description = "It was there already, made the same way", body = Network),
        (status = 400, description = "A value is not allowed", body = ErrorBody),
        (status = 409, description = "It is there already, made differently", body = ErrorBody),
        (status = 500, description = "The machine refused", body = ErrorBody)))]
pub(super) async fn put(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
    Body(config): Body<NetworkConfig>,
) -> Result<(StatusCode, Json<Network>), Refusal> {
    let name = name(&text)?;
    carried_through(async move { registry.add_network(&name, config).await }).await.map(made)
}

/// Removes a network that has no ports.
#[utoipa::path(delete, path = "/v1/networks/{name}", tag = "networks", operation_id = "delete_network",
    params(("name" = String, Path, description = "Its name")),
    responses(
        (status = 204, description = "It is gone"),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 409, description = "It has ports, or the configuration file declares it", body = ErrorBody)))]
pub(super) async fn delete(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
) -> Result<StatusCode, Refusal> {
    let name = name(&text)?;
    carried_through(async move { registry.remove_network(&name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The addresses a network knows, by address.
#[utoipa::path(get, path = "/v1/networks/{name}/fdb", tag = "networks", operation_id = "show_fdb",
    params(("name" = String, Path, description = "Name of the network")),
    responses((status = 200, body = Vec<FdbEntry>), (status = 404, body = ErrorBody)))]
pub(super) async fn fdb(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
) -> Result<Json<Vec<FdbEntry>>, Refusal> {
    Ok(Json(registry.fdb(&name(&text)?)?))
}
