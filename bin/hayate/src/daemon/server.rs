//! The interface's Unix socket.

use axum::Router;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::warn;

/// How long requests under way are waited for at the end.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why there is no interface.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    #[error("{path} is in the way: it is not a socket; move it or choose another --run-dir")]
    InTheWay { path: PathBuf },
    #[error("cannot listen on {path}: {source}")]
    Listen { path: PathBuf, source: io::Error },
    #[error(
        "{path} has {length} bytes, a Unix socket allows {}: choose a shorter --run-dir",
        api::SOCKET_PATH_MAX
    )]
    TooLong { path: PathBuf, length: usize },
}

/// A server under way.
pub(super) struct Server {
    path: PathBuf,
    stop: oneshot::Sender<()>,
    task: JoinHandle<io::Result<()>>,
}

impl Server {
    /// Listens on `path` and serves. The run directory is locked, so a socket found there is what
    /// a killed daemon left.
    pub(super) fn start(path: &Path, router: Router) -> Result<Self, ServerError> {
        let length = path.as_os_str().len();
        if length > api::SOCKET_PATH_MAX {
            return Err(ServerError::TooLong { path: path.to_owned(), length });
        }
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(ServerError::InTheWay { path: path.to_owned() });
            }
            Ok(_) => remove(path),
            Err(_) => {}
        }
        let listen = || {
            let listener = UnixListener::bind(path)?;
            fs::set_permissions(path, Permissions::from_mode(0o660))?;
            Ok(listener)
        };
        let listener =
            listen().map_err(|source| ServerError::Listen { path: path.to_owned(), source })?;
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            axum::serve(listener, router).with_graceful_shutdown(stopped).await
        });
        Ok(Self { path: path.to_owned(), stop, task })
    }

    /// Answers what was asked, then removes the socket. Clients that hold a connection open and
    /// say nothing are not waited for longer than [`PATIENCE`].
    pub(super) async fn stop(self) {
        remove(&self.path);
        drop(self.stop);
        let mut task = self.task;
        if tokio::time::timeout(PATIENCE, &mut task).await.is_err() {
            task.abort();
        }
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        warn!("{} cannot be removed: {error}", path.display());
    }
}
