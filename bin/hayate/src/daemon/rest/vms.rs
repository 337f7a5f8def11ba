//! `/v1/vms`.

use super::Refusal;
use super::answer::{carried_through, made, name};
use super::body::Body;
use crate::daemon::registry::Registry;
use api::{ErrorBody, Vm, VmConfig};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use std::sync::Arc;

/// All vms, by name.
#[utoipa::path(get, path = "/v1/vms", tag = "vms", operation_id = "list_vms",
    responses((status = 200, body = Vec<Vm>)))]
pub(super) async fn list(State(registry): State<Arc<Registry>>) -> Json<Vec<Vm>> {
    Json(registry.vms())
}

/// One vm.
#[utoipa::path(get, path = "/v1/vms/{name}", tag = "vms", operation_id = "show_vm",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, body = Vm), (status = 404, body = ErrorBody)))]
pub(super) async fn show(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
) -> Result<Json<Vm>, Refusal> {
    Ok(Json(registry.vm(&name(&text)?)?))
}

/// Makes a vm. Asking twice for the same is no mistake.
#[utoipa::path(put, path = "/v1/vms/{name}", tag = "vms", operation_id = "put_vm",
    params(("name" = String, Path, description = "Its name")),
    request_body = VmConfig,
    responses(
        (status = 201, description = "It was made", body = Vm),
        (status = 200, description = "It was there already, made the same way", body = Vm),
        (status = 400, description = "A value is not allowed", body = ErrorBody),
        (status = 409, description = "It is there already, made differently", body = ErrorBody),
        (status = 500, description = "The machine refused", body = ErrorBody)))]
pub(super) async fn put(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
    Body(config): Body<VmConfig>,
) -> Result<(StatusCode, Json<Vm>), Refusal> {
    let name = name(&text)?;
    carried_through(async move { registry.add_vm(&name, config).await }).await.map(made)
}

/// Removes a vm that has no ports.
#[utoipa::path(delete, path = "/v1/vms/{name}", tag = "vms", operation_id = "delete_vm",
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
    carried_through(async move { registry.remove_vm(&name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
