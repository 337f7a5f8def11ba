//! Requests to the daemon: HTTP over its Unix socket, one connection each.

use super::fail::Failure;
use crate::paths::Paths;
use api::ErrorBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

/// Longest wait for an answer: closing a port waits for the guest's queues.
const PATIENCE: Duration = Duration::from_secs(30);

/// A daemon to talk to.
pub(super) struct Client {
    socket: PathBuf,
    runtime: Runtime,
}

impl Client {
    pub(super) fn new(paths: &Paths) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::host(error.to_string()))?;
        Ok(Self { socket: paths.api_socket(), runtime })
    }

    /// Asks for something.
    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.parse(&self.request(Method::GET, path, Bytes::new())?)
    }

    /// Asks for a text.
    pub(super) fn get_text(&self, path: &str) -> Result<String, Failure> {
        let answer = self.request(Method::GET, path, Bytes::new())?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Makes something.
    pub(super) fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| Failure::usage(error.to_string()))?;
        self.parse(&self.request(Method::PUT, path, body.into())?)
    }

    /// Asks for something that takes words to describe.
    pub(super) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| Failure::usage(error.to_string()))?;
        self.parse(&self.request(Method::POST, path, body.into())?)
    }

    /// Asks for something that takes long: `hear` gets each line of the answer as it comes.
    pub(super) fn follow<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        mut hear: impl FnMut(T),
    ) -> Result<(), Failure> {
        let body = serde_json::to_vec(body).map_err(|error| Failure::usage(error.to_string()))?;
        self.runtime.block_on(async {
            let answer = self.ask(Method::POST, path, body.into()).await?;
            let status = answer.status();
            let mut body = answer.into_body();
            let mut text = Vec::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| self.strange(&error.to_string()))?;
                text.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                while status.is_success()
                    && let Some(end) = text.iter().position(|byte| *byte == b'\n')
                {
                    let line: Vec<u8> = text.drain(..=end).collect();
                    hear(self.parse(&line)?);
                }
            }
            if status.is_success() { Ok(()) } else { Err(self.refusal(status, &text)) }
        })
    }

    /// Removes something.
    pub(super) fn delete(&self, path: &str) -> Result<(), Failure> {
        self.request(Method::DELETE, path, Bytes::new()).map(drop)
    }

    fn parse<T: DeserializeOwned>(&self, answer: &[u8]) -> Result<T, Failure> {
        serde_json::from_slice(answer).map_err(|error| self.strange(&error.to_string()))
    }

    fn strange(&self, why: &str) -> Failure {
        Failure::host(format!(
            "{} answers in a way this command does not understand, is it of another version? {why}",
            self.socket.display()
        ))
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, Failure> {
        let exchange = async {
            match tokio::time::timeout(PATIENCE, self.exchange(method, path, body)).await {
                Ok(result) => result,
                Err(_) => Err(Failure::host(format!(
                    "the daemon at {} did not answer for {} s",
                    self.socket.display(),
                    PATIENCE.as_secs()
                ))),
            }
        };
        let (status, answer) = self.runtime.block_on(exchange)?;
        if status.is_success() {
            return Ok(answer);
        }
        Err(self.refusal(status, &answer))
    }

    fn refusal(&self, status: StatusCode, answer: &[u8]) -> Failure {
        match serde_json::from_slice::<ErrorBody>(answer) {
            Ok(body) => body.error.into(),
            Err(_) => self.strange(&format!("HTTP status {status}")),
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let answer = self.ask(method, path, body).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await;
        let body = body.map_err(|error| self.strange(&error.to_string()))?;
        Ok((status, body.to_bytes()))
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, Failure> {
        let stream = UnixStream::connect(&self.socket).await;
        let stream = stream.map_err(|error| Failure::no_daemon(&self.socket, &error))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) =
            handshake.map_err(|error| self.strange(&error.to_string()))?;
        // It ends with the request; its errors are the request's.
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "hayate")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| Failure::usage(error.to_string()))?;
        let answer = sender.send_request(request).await;
        answer.map_err(|error| self.strange(&error.to_string()))
    }
}
