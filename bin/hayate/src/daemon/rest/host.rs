//! The daemon itself: workers, counters, version, health, and the description of the interface.

use super::{Refusal, metrics};
use crate::daemon::registry::Registry;
use api::{Error, ErrorBody, ErrorCode, Health, Stats, Version, Worker};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use std::sync::Arc;

/// All workers, by number.
#[utoipa::path(get, path = "/v1/workers", tag = "host", operation_id = "list_workers",
    responses((status = 200, body = Vec<Worker>)))]
pub(super) async fn workers(State(registry): State<Arc<Registry>>) -> Json<Vec<Worker>> {
    Json(registry.workers())
}

/// One worker.
#[utoipa::path(get, path = "/v1/workers/{id}", tag = "host", operation_id = "show_worker",
    params(("id" = u16, Path, description = "Its number")),
    responses((status = 200, body = Worker), (status = 404, body = ErrorBody)))]
pub(super) async fn worker(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
) -> Result<Json<Worker>, Refusal> {
    let id = text.parse().map_err(|_| {
        let text: String = text.chars().take(80).collect();
        Error::new(ErrorCode::Invalid, format!("`{text}` is not the number of a worker"))
    })?;
    Ok(Json(registry.worker(id)?))
}

/// All counters at one moment.
#[utoipa::path(get, path = "/v1/stats", tag = "host", operation_id = "show_stats",
    responses((status = 200, body = Stats)))]
pub(super) async fn stats(State(registry): State<Arc<Registry>>) -> Json<Stats> {
    Json(registry.stats())
}

/// All counters in the text form of Prometheus.
#[utoipa::path(get, path = "/v1/metrics", tag = "host", operation_id = "show_metrics",
    responses((status = 200, body = String, content_type = "text/plain")))]
pub(super) async fn metrics(State(registry): State<Arc<Registry>>) -> impl IntoResponse {
    registry.ask_stores().await;
    let (stats, routers) = (registry.stats(), registry.routers());
    let text = metrics::write(&stats, &routers, &registry.disks(), &registry.rule_totals());
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

/// Which program answers.
#[utoipa::path(get, path = "/v1/version", tag = "host", operation_id = "show_version",
    responses((status = 200, body = Version)))]
pub(super) async fn version() -> Json<Version> {
    Json(Version {
        name: "hayate".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        api: api::API_VERSION.to_owned(),
    })
}

/// How the daemon is.
#[utoipa::path(get, path = "/v1/health", tag = "host", operation_id = "show_health",
    responses((status = 200, body = Health)))]
pub(super) async fn health(State(registry): State<Arc<Registry>>) -> Json<Health> {
    Json(registry.health())
}

/// This description.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "host", operation_id = "show_openapi",
    responses((status = 200, body = Object)))]
pub(super) async fn document() -> Json<utoipa::openapi::OpenApi> {
    Json(super::openapi())
}
