//! `/v1/pfs`.

use super::Refusal;
use super::answer::{carried_through, made, name};
use super::body::Body;
use crate::daemon::registry::Registry;
use api::channel::Flows;
use api::{ErrorBody, GuestLimits, Pf, PfConfig};
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use std::sync::Arc;

/// All PFs, by name.
#[utoipa::path(get, path = "/v1/pfs", tag = "pfs", operation_id = "list_pfs",
    responses((status = 200, body = Vec<Pf>)))]
pub(super) async fn list(State(registry): State<Arc<Registry>>) -> Json<Vec<Pf>> {
    Json(registry.pfs())
}

/// One PF and its VFs.
#[utoipa::path(get, path = "/v1/pfs/{name}", tag = "pfs", operation_id = "show_pf",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, body = Pf), (status = 404, body = ErrorBody)))]
pub(super) async fn show(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
) -> Result<Json<Pf>, Refusal> {
    Ok(Json(registry.pf(&name(&text)?)?))
}

/// Makes a PF and its VFs: a port for each function. Asking twice for the same is no mistake.
#[utoipa::path(put, path = "/v1/pfs/{name}", tag = "pfs", operation_id = "put_pf",
    params(("name" = String, Path, description = "Its name")),
    request_body = PfConfig,
    responses(
        (status = 201, description = "It was made", body = Pf),
        (status = 200, description = "It was there already, made the same way", body = Pf),
        (status = 400, description = "A value is not allowed", body = ErrorBody),
        (status = 404, description = "There is no such network or VM", body = ErrorBody),
        (status = 409, description = "It, or a port of such a name, is there already, made differently",
            body = ErrorBody),
        (status = 500, description = "The machine refused", body = ErrorBody)))]
pub(super) async fn put(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
    Body(config): Body<PfConfig>,
) -> Result<(StatusCode, Json<Pf>), Refusal> {
    let name = name(&text)?;
    carried_through(async move { registry.add_pf(&name, config).await }).await.map(made)
}

/// Says how far the guest may go when it sets up the VFs of a PF. What it has set and may no longer does not
/// count any more.
#[utoipa::path(put, path = "/v1/pfs/{name}/guest", tag = "pfs", operation_id = "limit_pf_guest",
    params(("name" = String, Path, description = "Its name")),
    request_body = GuestLimits,
    responses(
        (status = 200, description = "It holds", body = Pf),
        (status = 400, description = "A value is not allowed", body = ErrorBody),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 409, description = "The configuration file declares it", body = ErrorBody)))]
pub(super) async fn limit(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
    Body(limits): Body<GuestLimits>,
) -> Result<Json<Pf>, Refusal> {
    let name = name(&text)?;
    carried_through(async move { registry.set_guest_limits(&name, limits).await }).await.map(Json)
}

/// Removes a PF and its VFs; its VM loses these links, QEMU runs on.
#[utoipa::path(delete, path = "/v1/pfs/{name}", tag = "pfs", operation_id = "delete_pf",
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
    carried_through(async move { registry.remove_pf(&name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Where a list of rules begins: behind this number.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct After {
    after: Option<u64>,
}

/// Flow rules that the guest of a PF has, by number, 10000 at a time, and what they did.
#[utoipa::path(get, path = "/v1/pfs/{name}/rules", tag = "pfs", operation_id = "list_rules",
    params(
        ("name" = String, Path, description = "Its name"),
        ("after" = Option<u64>, Query, description = "Only those behind the rule of this number")),
    responses(
        (status = 200, body = Flows),
        (status = 404, description = "There is none of that name", body = ErrorBody)))]
pub(super) async fn rules(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
    Query(After { after }): Query<After>,
) -> Result<Json<Flows>, Refusal> {
    Ok(Json(registry.flow_rules(&name(&text)?, after)?))
}

/// Deletes all flow rules of a PF and its VFs. Its guest may set others.
#[utoipa::path(delete, path = "/v1/pfs/{name}/rules", tag = "pfs", operation_id = "delete_rules",
    params(("name" = String, Path, description = "Its name")),
    responses(
        (status = 204, description = "There are none any more"),
        (status = 404, description = "There is none of that name", body = ErrorBody)))]
pub(super) async fn clear_rules(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
) -> Result<StatusCode, Refusal> {
    let name = name(&text)?;
    carried_through(async move { registry.clear_flow_rules(&name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
