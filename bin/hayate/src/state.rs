//! What survives a restart: one JSON file, replaced as a whole.
//!
//! Owner: the daemon, which holds the lock of the directory. Written before a change is answered;
//! after a crash the file holds either the old or the new state, never a part of one. A file that
//! cannot be understood stops the daemon: starting without a VM's ports would be worse than not
//! starting.

use crate::daemon::GuestPf;
mod books;

pub(crate) use books::Books;

use api::{DiskConfig, Name, NetworkConfig, PfConfig, PortConfig, VmConfig};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Version of the file's form. A daemon refuses what it does not know.
const VERSION: u32 = 1;

/// What was declared at run time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    version: u32,
    pub(crate) networks: BTreeMap<Name, NetworkConfig>,
    pub(crate) vms: BTreeMap<Name, VmConfig>,
    pub(crate) ports: BTreeMap<Name, PortConfig>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) pfs: BTreeMap<Name, PfConfig>,
    /// What guests have set on the VFs of PFs, declared at run time or in the configuration file.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) guests: BTreeMap<Name, GuestPf>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) disks: BTreeMap<Name, DiskConfig>,
    /// VMs whose routers are not to be bypassed, declared at run time or in the configuration file.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) bypass_off: BTreeSet<Name>,
}

/// Why the state could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error("the saved state {path} cannot be read: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "the saved state {path} is damaged: {source}; repair it, or move it away to start empty"
    )]
    Damaged { path: PathBuf, source: serde_json::Error },
    #[error(
        "the saved state {path} has version {found}, this hayate knows {VERSION}: \
         start the hayate that wrote it, or move it away to start empty"
    )]
    Version { path: PathBuf, found: u32 },
    #[error("the state cannot be saved in {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
}

/// The file.
#[derive(Clone, Debug)]
pub(crate) struct StateFile {
    directory: PathBuf,
}

impl StateFile {
    pub(crate) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    fn path(&self) -> PathBuf {
        self.directory.join("hayate.json")
    }

    /// Reads the state; empty if there is no file yet.
    pub(crate) fn load(&self) -> Result<State, StateError> {
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let path = self.path();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::default()),
            Err(source) => return Err(StateError::Read { path, source }),
        };
        // The version first: a later form may have other fields.
        match serde_json::from_slice::<Head>(&text) {
            Ok(Head { version: VERSION }) => {}
            Ok(Head { version: found }) => return Err(StateError::Version { path, found }),
            Err(source) => return Err(StateError::Damaged { path, source }),
        }
        serde_json::from_slice(&text).map_err(|source| StateError::Damaged { path, source })
    }

    /// Replaces the state; when this returns `Ok` it is on stable storage.
    pub(crate) fn save(&self, mut state: State) -> Result<(), StateError> {
        state.version = VERSION;
        self.replace(&state)
            .map_err(|source| StateError::Write { path: self.directory.clone(), source })
    }

    fn replace(&self, state: &State) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(state)?;
        text.push(b'\n');
        replace(&self.directory, "hayate.json", &text)
    }
}

/// Replaces a file, which holds either the old or the new text at any time.
fn replace(directory: &Path, name: &str, text: &[u8]) -> io::Result<()> {
    let temporary = directory.join(format!(".{name}.new"));
    let mut file = File::create(&temporary)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&temporary, directory.join(name))?;
    // The new name is durable only once the directory is.
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_state() -> State {
        let mut state = State::default();
        state.networks.insert("lan".parse().unwrap(), NetworkConfig::default());
        let port = PortConfig::new("lan".parse().unwrap(), api::PortKind::Vhost);
        state.ports.insert("web0".parse().unwrap(), port);
        state
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::new(directory.path());
        assert_eq!(file.load().unwrap(), State::default());
        file.save(some_state()).unwrap();
        assert_eq!(file.load().unwrap(), State { version: VERSION, ..some_state() });
        let left: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "no temporary file stays");
    }

    #[test]
    fn an_interrupted_write_leaves_the_old_state() {
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::new(directory.path());
        file.save(some_state()).unwrap();
        fs::write(directory.path().join(".hayate.json.new"), b"{\"version\":1,\"netw").unwrap();
        assert_eq!(file.load().unwrap().networks.len(), 1);
        file.save(State::default()).unwrap();
        assert!(file.load().unwrap().networks.is_empty());
    }

    #[test]
    fn damage_and_later_versions_are_refused_with_the_file_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::new(directory.path());
        for (text, part) in [
            ("", "damaged"),
            ("{\"version\":1,\"networks\":{", "damaged"),
            (
                "{\"version\":1,\"networks\":{},\"vms\":{},\"ports\":{},\"x\":1}",
                "unknown field `x`",
            ),
            ("{\"version\":2,\"other\":{}}", "version 2"),
        ] {
            fs::write(file.path(), text).unwrap();
            let error = file.load().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("hayate.json"), "{error}");
        }
    }

    #[test]
    fn a_missing_directory_is_an_error_that_names_it() {
        let file = StateFile::new(Path::new("/nonexistent/state"));
        assert!(file.save(State::default()).unwrap_err().to_string().contains("/nonexistent"));
    }
}
