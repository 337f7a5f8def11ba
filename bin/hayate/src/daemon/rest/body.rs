//! Request bodies: JSON whatever the header says, with refusals a person can act on.

use super::answer::Refusal;
use api::{Error, ErrorCode};
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::de::DeserializeOwned;

/// The body of a request.
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            let text = rejection.body_text();
            let too_large = rejection.into_response().status() == StatusCode::PAYLOAD_TOO_LARGE;
            let code = if too_large { ErrorCode::TooLarge } else { ErrorCode::Invalid };
            Refusal(Error::new(code, format!("the request body cannot be read: {text}")))
        })?;
        match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(Self(value)),
            Err(error) => Err(Refusal(
                Error::new(ErrorCode::Invalid, format!("the request body is wrong: {error}"))
                    .hint("GET /v1/openapi.json describes what is allowed"),
            )),
        }
    }
}
