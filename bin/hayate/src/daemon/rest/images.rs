//! `/v1/images`.
//!
//! What may take long is answered line by line: how far it is, and at last what came of it. A
//! client that goes away ends it, and nothing is left of it.

use super::Refusal;
use super::answer::carried_through;
use super::body::Body;
use crate::daemon::registry::{Registry, Tell};
use api::{
    Error, ErrorBody, ErrorCode, Export, Image, ImageCheck, ImageConfig, ImageName, Import,
    Progress, Resize, Snapshot,
};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use http_body_util::StreamBody;
use hyper::body::Frame;
use std::convert::Infallible;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Time between two lines about how far it is.
const TELL_EVERY: Duration = Duration::from_millis(200);

fn image(text: &str) -> Result<ImageName, Refusal> {
    text.parse().map_err(|error: api::BadImageName| {
        Refusal(Error::new(ErrorCode::Invalid, error.to_string()))
    })
}

/// All images and snapshots, by name.
#[utoipa::path(get, path = "/v1/images", tag = "images", operation_id = "list_images",
    responses((status = 200, body = Vec<Image>), (status = 500, body = ErrorBody)))]
pub(super) async fn list(
    State(registry): State<Arc<Registry>>,
) -> Result<Json<Vec<Image>>, Refusal> {
    Ok(Json(registry.images().await?))
}

/// All about one image: what it stands on, what stands on it, and who has it open.
#[utoipa::path(get, path = "/v1/images/{name}", tag = "images", operation_id = "show_image",
    params(("name" = String, Path, description = "Its name, or NAME@SNAPSHOT")),
    responses((status = 200, body = Image), (status = 404, body = ErrorBody)))]
pub(super) async fn show(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
) -> Result<Json<Image>, Refusal> {
    Ok(Json(registry.image(&image(&text)?).await?))
}

/// Makes an image, empty or a clone of another one.
#[utoipa::path(put, path = "/v1/images/{name}", tag = "images", operation_id = "put_image",
    params(("name" = String, Path, description = "Its name")),
    request_body = ImageConfig,
    responses(
        (status = 201, description = "It was made", body = Image),
        (status = 400, description = "A value is not allowed", body = ErrorBody),
        (status = 404, description = "There is no such base", body = ErrorBody),
        (status = 409, description = "It is there already", body = ErrorBody),
        (status = 500, description = "The machine refused", body = ErrorBody)))]
pub(super) async fn put(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
    Body(config): Body<ImageConfig>,
) -> Result<(StatusCode, Json<Image>), Refusal> {
    let name = image(&text)?;
    let made = carried_through(async move { registry.add_image(&name, config).await }).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Removes an image that no disk uses and no other image stands on.
#[utoipa::path(delete, path = "/v1/images/{name}", tag = "images", operation_id = "delete_image",
    params(("name" = String, Path, description = "Its name, or NAME@SNAPSHOT")),
    responses(
        (status = 204, description = "It is gone"),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 409, description = "It is in use, or others stand on it", body = ErrorBody)))]
pub(super) async fn delete(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
) -> Result<StatusCode, Refusal> {
    let name = image(&text)?;
    carried_through(async move { registry.remove_image(&name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Keeps what an image is now, as the image `NAME@SNAPSHOT`. A guest that uses it waits a moment.
#[utoipa::path(post, path = "/v1/images/{name}/snapshots", tag = "images",
    operation_id = "snapshot_image",
    params(("name" = String, Path, description = "Its name")),
    request_body = Snapshot,
    responses(
        (status = 201, description = "It was made", body = Image),
        (status = 404, description = "There is no such image", body = ErrorBody),
        (status = 409, description = "Others stand on the image, or there is such a snapshot",
            body = ErrorBody)))]
pub(super) async fn snapshot(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
    Body(wanted): Body<Snapshot>,
) -> Result<(StatusCode, Json<Image>), Refusal> {
    let name = image(&text)?;
    let made = async move { registry.snapshot_image(&name, &wanted.snapshot).await };
    Ok((StatusCode::CREATED, Json(carried_through(made).await?)))
}

/// Gives an image another size. A disk that uses it may only grow; its guest is told.
#[utoipa::path(post, path = "/v1/images/{name}/resize", tag = "images",
    operation_id = "resize_image",
    params(("name" = String, Path, description = "Its name")),
    request_body = Resize,
    responses(
        (status = 200, description = "It has that size", body = Image),
        (status = 400, description = "It would shrink, and that was not said", body = ErrorBody),
        (status = 404, description = "There is no such image", body = ErrorBody),
        (status = 409, description = "It is in use, or others stand on it", body = ErrorBody)))]
pub(super) async fn resize(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
    Body(wanted): Body<Resize>,
) -> Result<Json<Image>, Refusal> {
    let name = image(&text)?;
    carried_through(async move { registry.resize_image(&name, wanted).await }).await.map(Json)
}

/// Looks whether an image is whole. It must not be open for writing.
#[utoipa::path(post, path = "/v1/images/{name}/check", tag = "images",
    operation_id = "check_image",
    params(("name" = String, Path, description = "Its name, or NAME@SNAPSHOT")),
    responses(
        (status = 200, description = "What was found", body = ImageCheck),
        (status = 404, description = "There is no such image", body = ErrorBody),
        (status = 409, description = "It is in use", body = ErrorBody)))]
pub(super) async fn check(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
) -> Result<Json<ImageCheck>, Refusal> {
    Ok(Json(registry.check_image(&image(&text)?).await?))
}

/// Makes an image from a file of the host. The answer is one `Progress` a line.
#[utoipa::path(post, path = "/v1/images/{name}/import", tag = "images",
    operation_id = "import_image",
    params(("name" = String, Path, description = "Name of the image to be made")),
    request_body = Import,
    responses((status = 200, body = Progress, content_type = "application/x-ndjson")))]
pub(super) async fn import(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
    Body(import): Body<Import>,
) -> Result<Response, Refusal> {
    let name = image(&text)?;
    Ok(told(|tell| async move { registry.import_image(&name, import, tell).await }))
}

/// Makes a file of the host from an image. The answer is one `Progress` a line.
#[utoipa::path(post, path = "/v1/images/{name}/export", tag = "images",
    operation_id = "export_image",
    params(("name" = String, Path, description = "Its name, or NAME@SNAPSHOT")),
    request_body = Export,
    responses((status = 200, body = Progress, content_type = "application/x-ndjson")))]
pub(super) async fn export(
    State(registry): State<Arc<Registry>>,
    Path(text): Path<String>,
    Body(export): Body<Export>,
) -> Result<Response, Refusal> {
    let name = image(&text)?;
    Ok(told(|tell| async move { registry.export_image(&name, export, tell).await }))
}

/// An answer that says how far something is while it is done, and at last what came of it.
fn told<F>(work: impl FnOnce(Tell) -> F) -> Response
where
    F: Future<Output = Result<Image, Error>> + Send + 'static,
{
    let (lines, answer) = mpsc::channel(16);
    let (end, mut last) = (lines.clone(), None::<Instant>);
    let work = work(Box::new(move |done, total| {
        if lines.is_closed() {
            return ControlFlow::Break(());
        }
        if last.is_none_or(|last| last.elapsed() >= TELL_EVERY) {
            last = Some(Instant::now());
            // A client that is slow to read misses some.
            let _ = lines.try_send(Progress::Bytes(done, total));
        }
        ControlFlow::Continue(())
    }));
    tokio::spawn(async move {
        let line = match work.await {
            Ok(image) => Progress::Done(image),
            Err(error) => Progress::Failed(error),
        };
        // Nobody reads any more if the client is gone.
        let _ = end.send(line).await;
    });
    let body = axum::body::Body::new(StreamBody::new(Lines(answer)));
    ([(CONTENT_TYPE, "application/x-ndjson")], body).into_response()
}

/// Lines of JSON as they come.
struct Lines(mpsc::Receiver<Progress>);

impl futures_core::Stream for Lines {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|line| {
            let mut text = serde_json::to_vec(&line?).unwrap_or_default();
            text.push(b'\n');
            Some(Ok(Frame::data(text.into())))
        })
    }
}
