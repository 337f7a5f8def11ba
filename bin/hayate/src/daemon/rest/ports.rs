//! `/v1/ports`.

use super::Refusal;
use super::answer::{carried_through, made, name};
use super::body::Body;
use crate::daemon::registry::Registry;
use api::{ErrorBody, Placement, Port, PortConfig, PortPolicy};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use std::sync::Arc;

/// All ports, by name.
#[utoipa::path(get, path = "/v1/ports", tag = "ports", operation_id = "list_ports",
    responses((status = 200, body = Vec<Port>)))]
pub(super) async fn list(State(registry): State<Arc<Registry>>) -> Json<Vec<Port>> {
    Json(registry.ports())
}

/// One port.
#[utoipa::path(get, path = "/v1/ports/{name}", tag = "ports", operation_id = "show_port",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, body = Port), (status = 404, body = ErrorBody)))]
pub(super) async fn show(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
) -> Result<Json<Port>, Refusal> {
    Ok(Json(registry.port(&name(&text)?)?))
}

/// Makes a port. Asking twice for the same is no mistake.
#[utoipa::path(put, path = "/v1/ports/{name}", tag = "ports", operation_id = "put_port",
    params(("name" = String, Path, description = "Its name")),
    request_body = PortConfig,
    responses(
        (status = 201, description = "It was made", body = Port),
        (status = 200, description = "It was there already, made the same way", body = Port),
        (status = 400, description = "A value is not allowed", body = ErrorBody),
        (status = 404, description = "There is no such network or VM", body = ErrorBody),
        (status = 409, description = "It is there already, made differently", body = ErrorBody),
        (status = 500, description = "The machine refused", body = ErrorBody)))]
pub(super) async fn put(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
    Body(config): Body<PortConfig>,
) -> Result<(StatusCode, Json<Port>), Refusal> {
    let name = name(&text)?;
    carried_through(async move { registry.add_port(&name, config).await }).await.map(made)
}

/// Removes a port; its VM loses the link, QEMU runs on.
#[utoipa::path(delete, path = "/v1/ports/{name}", tag = "ports", operation_id = "delete_port",
    params(("name" = String, Path, description = "Its name")),
    responses(
        (status = 204, description = "It is gone"),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 409, description = "The configuration file declares it", body = ErrorBody)))]
pub(super) async fn delete(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
) -> Result<StatusCode, Refusal> {
    let name = name(&text)?;
    carried_through(async move { registry.remove_port(&name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sets what is enforced on a port, all of it. When this is answered it holds for every frame.
#[utoipa::path(put, path = "/v1/ports/{name}/policy", tag = "ports", operation_id = "enforce_port",
    params(("name" = String, Path, description = "Name of the port")),
    request_body = PortPolicy,
    responses(
        (status = 200, description = "It holds", body = Port),
        (status = 400, description = "A value is not allowed", body = ErrorBody),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 409, description = "The configuration file declares it", body = ErrorBody)))]
pub(super) async fn enforce(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
    Body(policy): Body<PortPolicy>,
) -> Result<Json<Port>, Refusal> {
    let name = name(&text)?;
    carried_through(async move { registry.set_policy(&name, policy).await }).await.map(Json)
}

/// Has a worker serve a port's queues, or one of them, while frames flow on. This is not saved: the
/// port's `worker` is what a restart follows.
#[utoipa::path(put, path = "/v1/ports/{name}/placement", tag = "ports", operation_id = "place_port",
    params(("name" = String, Path, description = "Name of the port")),
    request_body = Placement,
    responses(
        (status = 200, description = "The queues are there", body = Port),
        (status = 400, description = "There is no such queue or worker", body = ErrorBody),
        (status = 404, description = "There is no port of that name", body = ErrorBody),
        (status = 500, description = "The port is not open", body = ErrorBody)))]
pub(super) async fn place(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
    Body(placement): Body<Placement>,
) -> Result<Json<Port>, Refusal> {
    let name = name(&text)?;
    carried_through(async move { registry.place_port(&name, &placement).await }).await.map(Json)
}
