//! Where things are: the directories a daemon and a command agree on.

use std::path::{Path, PathBuf};

/// Directories and files of one daemon.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    /// Sockets: the interface's and those of ports without one of their own. And what survives a
    /// restart of the daemon but not one of the host.
    pub(crate) run: PathBuf,
    /// What survives a restart.
    pub(crate) state: PathBuf,
}

impl Paths {
    /// Resolves what was given: a run directory carries its state with it unless told otherwise,
    /// so that several daemons run side by side.
    pub(crate) fn new(run: Option<&Path>, state: Option<&Path>) -> std::io::Result<Self> {
        let state = match (state, run) {
            (Some(state), _) => state.to_owned(),
            (None, Some(run)) => run.join("state"),
            (None, None) => api::DEFAULT_STATE_DIR.into(),
        };
        let run = run.unwrap_or(Path::new(api::DEFAULT_RUN_DIR));
        // QEMU gets these paths, and it may be started from another directory.
        Ok(Self { run: std::path::absolute(run)?, state: std::path::absolute(state)? })
    }

    /// The socket of the REST interface.
    pub(crate) fn api_socket(&self) -> PathBuf {
        self.run.join(api::API_SOCKET)
    }

    /// Directory of vhost sockets that were given no path.
    pub(crate) fn ports(&self) -> PathBuf {
        self.run.join("ports")
    }

    /// Directory of the files that keep the positions of packed rings, one for each vhost port.
    pub(crate) fn rings(&self) -> PathBuf {
        self.run.join("rings")
    }

    /// Directory of disks' sockets that were given no path, and of what is kept for disks.
    pub(crate) fn disks(&self) -> PathBuf {
        self.run.join("disks")
    }

    /// Directory of images, unless the configuration says another.
    pub(crate) fn images(&self) -> PathBuf {
        self.state.join("images")
    }

    /// The socket of a disk, its own or the default.
    pub(crate) fn disk_socket(&self, name: &api::Name, config: &api::DiskConfig) -> PathBuf {
        match &config.socket {
            Some(socket) => socket.clone(),
            None => self.disks().join(format!("{name}.sock")),
        }
    }

    /// The file that says that the guest of a disk asked for writethrough.
    pub(crate) fn writethrough(&self, name: &api::Name) -> PathBuf {
        self.disks().join(format!("{name}.writethrough"))
    }

    /// The file that says to a store which disk this is.
    pub(crate) fn session(&self, name: &api::Name) -> PathBuf {
        self.state.join("sessions").join(name.to_string())
    }

    /// File with the daemon's process number, for people and init scripts.
    pub(crate) fn pid_file(&self) -> PathBuf {
        self.run.join("hayate.pid")
    }

    /// The socket of a vhost port, its own or the default.
    pub(crate) fn vhost_socket(&self, name: &api::Name, config: &api::PortConfig) -> PathBuf {
        match &config.socket {
            Some(socket) => socket.clone(),
            None => self.ports().join(format!("{name}.sock")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_run_directory_carries_the_state() {
        let paths = Paths::new(Some(Path::new("/tmp/a")), None).unwrap();
        assert_eq!(paths.state, Path::new("/tmp/a/state"));
        let paths = Paths::new(Some(Path::new("/tmp/a")), Some(Path::new("/tmp/b"))).unwrap();
        assert_eq!(paths.state, Path::new("/tmp/b"));
        let paths = Paths::new(None, None).unwrap();
        assert_eq!((paths.run, paths.state), ("/run/hayate".into(), "/var/lib/hayate".into()));
    }
}
