//! Answers that all handlers share: refusals, and changes that are carried through.

use api::{Error, ErrorBody, ErrorCode, Name};
use axum::Json;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use std::future::Future;

/// A refusal, as JSON with its status.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) Error);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.status());
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(ErrorBody { error: self.0 })).into_response()
    }
}

/// Something that was made now (201) or was there already, the same (200).
pub(super) fn made<T>((view, new): (T, bool)) -> (StatusCode, Json<T>) {
    (if new { StatusCode::CREATED } else { StatusCode::OK }, Json(view))
}

/// The name in a path.
pub(super) fn name(text: &str) -> Result<Name, Refusal> {
    text.parse()
        .map_err(|error: api::BadName| Refusal(Error::new(ErrorCode::Invalid, error.to_string())))
}

/// Runs a change to its end even if the client goes away meanwhile.
pub(super) async fn carried_through<T: Send + 'static>(
    change: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Refusal> {
    match tokio::spawn(change).await {
        Ok(result) => result.map_err(Refusal),
        Err(error) => {
            Err(Refusal(Error::new(ErrorCode::Host, format!("the change failed: {error}"))))
        }
    }
}

pub(super) async fn no_such_path(uri: Uri) -> Refusal {
    let path: String = uri.path().chars().take(200).collect();
    Refusal(
        Error::new(ErrorCode::NotFound, format!("there is no path {path}"))
            .hint("GET /v1/openapi.json describes all of them"),
    )
}

pub(super) async fn no_such_method(method: Method, uri: Uri) -> Refusal {
    let path: String = uri.path().chars().take(200).collect();
    Refusal(
        Error::new(ErrorCode::NoSuchMethod, format!("{path} has no method {method}"))
            .hint("GET /v1/openapi.json describes all of them"),
    )
}
