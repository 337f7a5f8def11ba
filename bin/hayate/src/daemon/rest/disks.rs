//! `/v1/disks`.

use super::Refusal;
use super::answer::{carried_through, made, name};
use super::body::Body;
use crate::daemon::registry::Registry;
use api::{Disk, DiskConfig, DiskLimits, ErrorBody};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use std::sync::Arc;

/// All disks, by name.
#[utoipa::path(get, path = "/v1/disks", tag = "disks", operation_id = "list_disks",
    responses((status = 200, body = Vec<Disk>)))]
pub(super) async fn list(State(registry): State<Arc<Registry>>) -> Json<Vec<Disk>> {
    registry.ask_stores().await;
    Json(registry.disks())
}

/// One disk.
#[utoipa::path(get, path = "/v1/disks/{name}", tag = "disks", operation_id = "show_disk",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, body = Disk), (status = 404, body = ErrorBody)))]
pub(super) async fn show(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
) -> Result<Json<Disk>, Refusal> {
    registry.ask_stores().await;
    Ok(Json(registry.disk(&name(&text)?)?))
}

/// Makes a disk from an image. Asking twice for the same is no mistake.
#[utoipa::path(put, path = "/v1/disks/{name}", tag = "disks", operation_id = "put_disk",
    params(("name" = String, Path, description = "Its name")),
    request_body = DiskConfig,
    responses(
        (status = 201, description = "It was made", body = Disk),
        (status = 200, description = "It was there already, made the same way", body = Disk),
        (status = 400, description = "A value is not allowed", body = ErrorBody),
        (status = 404, description = "There is no such image or VM", body = ErrorBody),
        (status = 409, description = "It is there already, made differently, or the image is in use",
            body = ErrorBody),
        (status = 500, description = "The machine refused", body = ErrorBody)))]
pub(super) async fn put(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
    Body(config): Body<DiskConfig>,
) -> Result<(StatusCode, Json<Disk>), Refusal> {
    let name = name(&text)?;
    carried_through(async move { registry.add_disk(&name, config).await }).await.map(made)
}

/// Removes a disk, not its image; its guest gets no answers any more.
#[utoipa::path(delete, path = "/v1/disks/{name}", tag = "disks", operation_id = "delete_disk",
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
    carried_through(async move { registry.remove_disk(&name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sets how much a disk may do, from now on.
#[utoipa::path(put, path = "/v1/disks/{name}/limits", tag = "disks", operation_id = "limit_disk",
    params(("name" = String, Path, description = "Its name")),
    request_body = DiskLimits,
    responses(
        (status = 200, description = "They hold", body = Disk),
        (status = 400, description = "A value is not allowed", body = ErrorBody),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 409, description = "The configuration file declares it", body = ErrorBody)))]
pub(super) async fn limit(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
    Body(limits): Body<DiskLimits>,
) -> Result<Json<Disk>, Refusal> {
    let name = name(&text)?;
    carried_through(async move { registry.limit_disk(&name, limits).await }).await.map(Json)
}
