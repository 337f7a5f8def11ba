//! One daemon per run directory and per state directory.
//!
//! The directories themselves are locked (`flock`): the kernel drops the lock however the daemon
//! ends, so nothing stale is ever in the way. The pid file is only for people and init scripts.

use crate::paths::Paths;
use rustix::fs::{FlockOperation, flock, fstat};
use rustix::io::Errno;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use tracing::warn;

/// Why a directory is not ours.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    #[error(
        "another hayate daemon{pid} is running with {directory}; \
         end that one, or choose another directory with {option}"
    )]
    Taken { directory: PathBuf, pid: String, option: &'static str },
    #[error("{path} cannot be used: {source}")]
    Use { path: PathBuf, source: io::Error },
}

/// Held while the daemon runs.
#[derive(Debug)]
pub(super) struct Locks(#[expect(dead_code, reason = "held for their locks")] Vec<File>);

/// Takes both directories (the run directory exists already) and writes the pid file.
pub(super) fn take(paths: &Paths) -> Result<Locks, LockError> {
    let run = lock(&paths.run, paths, "--run-dir")?;
    // The state holds names of VMs and networks: nobody else's business.
    DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(&paths.state)
        .map_err(|source| LockError::Use { path: paths.state.clone(), source })?;
    let mut locks = vec![run];
    if !same(&paths.run, &paths.state) {
        locks.push(lock(&paths.state, paths, "--state-dir")?);
    }
    let pid_file = paths.pid_file();
    fs::write(&pid_file, format!("{}\n", std::process::id()))
        .map_err(|source| LockError::Use { path: pid_file, source })?;
    Ok(Locks(locks))
}

fn lock(directory: &Path, paths: &Paths, option: &'static str) -> Result<File, LockError> {
    let failed = |source| LockError::Use { path: directory.to_owned(), source };
    let file = File::open(directory).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let pid = fs::read_to_string(paths.pid_file()).unwrap_or_default();
            let pid = pid.trim().parse::<u32>().map(|pid| format!(" (process {pid})"));
            return Err(LockError::Taken {
                directory: directory.to_owned(),
                pid: pid.unwrap_or_default(),
                option,
            });
        }
        // A few file systems cannot lock; that is no reason not to serve VMs.
        Err(error) => warn!("{} cannot be locked: {error}", directory.display()),
    }
    Ok(file)
}

fn same(one: &Path, two: &Path) -> bool {
    let identity = |path: &Path| {
        let stat = fstat(File::open(path).ok()?).ok()?;
        Some((stat.st_dev, stat.st_ino))
    };
    identity(one).is_some_and(|found| Some(found) == identity(two))
}
