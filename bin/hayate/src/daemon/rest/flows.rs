//! `/v1/flow`.

use super::Refusal;
use super::body::Body;
use crate::daemon::registry::Registry;
use api::{ErrorBody, Flow, Why};
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// What becomes of a packet, step by step. Nothing is sent.
#[utoipa::path(post, path = "/v1/flow/why", tag = "routers", operation_id = "explain_flow",
    request_body = Flow,
    responses(
        (status = 200, body = Why),
        (status = 400, description = "A value is not allowed, or has to be said", body = ErrorBody),
        (status = 404, description = "There is no such port", body = ErrorBody),
        (status = 500, description = "The port is not open", body = ErrorBody)))]
pub(super) async fn why(
    State(registry): State<Arc<Registry>>,
    Body(flow): Body<Flow>,
) -> Result<Json<Why>, Refusal> {
    Ok(Json(registry.why(flow)?))
}
