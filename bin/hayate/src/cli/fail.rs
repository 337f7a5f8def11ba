//! How a command fails: what it says, and its exit status.

use crate::daemon::DaemonError;
use crate::mount::MountError;
use crate::serve::ServeError;
use api::{Error, ErrorCode};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

/// What scripts may rely on, as it is told in the help.
pub(super) const EXIT_HELP: &str = "\
Exit status:
  0  done
  1  the machine refused: a device, a file, a permission
  2  the command line, a value or the configuration file is wrong
  3  no daemon answers, or no store
  4  there is no such network, port or VM
  5  it is in the way: exists already, is in use, or is declared in the configuration file";

/// One failure.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: u8,
    message: String,
    hint: Option<String>,
}

impl Failure {
    /// The machine refused.
    pub(super) fn host(message: impl Into<String>) -> Self {
        Self { exit: 1, message: message.into(), hint: None }
    }

    /// What was asked for is wrong.
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self { exit: 2, message: message.into(), hint: None }
    }

    /// No daemon answers on `socket`.
    pub(super) fn no_daemon(socket: &Path, why: &std::io::Error) -> Self {
        let socket_shown = socket.display();
        let run_dir = socket.parent().unwrap_or(socket);
        let denied = why.kind() == ErrorKind::PermissionDenied;
        let (message, hint) = if denied {
            (
                format!("{socket_shown} may not be used by you: {why}"),
                "run the command with sudo, or as the user the daemon runs as".to_owned(),
            )
        } else {
            let option = if run_dir == Path::new(api::DEFAULT_RUN_DIR) {
                String::new()
            } else {
                format!(" --run-dir {}", run_dir.display())
            };
            (
                format!("no daemon answers at {socket_shown}: {why}"),
                format!(
                    "start one with `hayate daemon{option}`, or name the directory of a running \
                     one with --run-dir or HAYATE_RUN_DIR (which sudo does not pass on)"
                ),
            )
        };
        Self { exit: 3, message, hint: Some(hint) }
    }

    /// The daemon did not start.
    pub(super) fn daemon(error: &DaemonError) -> Self {
        let exit = match error {
            DaemonError::Config(_)
            | DaemonError::Log(_)
            | DaemonError::Group(_)
            | DaemonError::Tls(_) => 2,
            DaemonError::Lock(crate::daemon::LockError::Taken { .. }) => 5,
            _ => 1,
        };
        let hint = error.is_denied().then(|| {
            "start it with sudo, or give it a directory of yours with --run-dir".to_owned()
        });
        Self { exit, message: error.to_string(), hint }
    }

    /// The store did not start.
    pub(super) fn store(error: &ServeError) -> Self {
        let exit = if matches!(error, ServeError::Log(_) | ServeError::Tls(_)) { 2 } else { 1 };
        Self { exit, message: error.to_string(), hint: None }
    }

    /// The images of a store were not mounted.
    pub(super) fn mount(error: &MountError) -> Self {
        let exit = match error {
            MountError::Log(_) | MountError::Tls(_) => 2,
            MountError::Store(storeclient::Error::Connect { .. }) => 3,
            _ => 1,
        };
        let hint = match error {
            MountError::Mount { dir, source } if source.kind() == ErrorKind::NotConnected => {
                let dir = dir.display();
                Some(format!("whoever mounted there before was killed: `umount {dir}` cleans up"))
            }
            _ => None,
        };
        Self { exit, message: error.to_string(), hint }
    }

    /// Says it on standard error.
    pub(super) fn report(&self) -> ExitCode {
        // Whoever closed standard error does not want to know.
        let mut to = std::io::stderr().lock();
        if !self.message.is_empty() {
            let _ = writeln!(to, "error: {}", self.message);
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(to, "hint: {hint}");
        }
        ExitCode::from(self.exit)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match error.code {
            ErrorCode::Invalid | ErrorCode::TooLarge => 2,
            ErrorCode::NotFound => 4,
            ErrorCode::Exists | ErrorCode::InUse | ErrorCode::Static => 5,
            _ => 1,
        };
        Self { exit, message: error.message, hint: error.hint }
    }
}
