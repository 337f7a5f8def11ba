//! What is remembered between calls: who has which VF.
//!
//! **Purpose.** A folder with a record for each attachment, under the key that the specification says (network,
//! container, interface), and one for each VF that was ever given away. They name each other, and carry the same
//! **token**, a number that each allocation draws anew. A VF belongs to an attachment only while both have the
//! same token: a container that is deleted late, whose VF was meanwhile given to another, has a record whose
//! token is no longer the VF's, and the VF is left alone.
//!
//! **Order.** Whoever does something to a VF holds its lock, from before it is chosen until it is in the
//! container, or back. The lock is that of an open file, so it goes with the process that dies. What is going to
//! be done is written before it is done:
//!
//! 1. the attachment, phase `adding`, which fails if there is one;
//! 2. the VF: token, owner, and its *home*, which is what has to be put right when it comes back;
//! 3. what is done; the attachment, phase `added`.
//!
//! and when it is taken back: phase `deleting`, the VF comes home, the VF's record loses its owner, the attachment
//! goes. So a process that is killed between any two steps leaves `adding` or `deleting` and a lock that nobody
//! holds, which is what tells the next one to end it.
//!
//! **Failure.** A record is a new file that takes the place of the old one, so it is there whole or not at all.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::rand::{GetRandomFlags, getrandom};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::agent::Settings;
use crate::error::{Code, Error};
use crate::result::{Ip, Route};
use crate::sysfs::Address;

/// Longest record, bytes.
const RECORD_MAX: u64 = 4 << 20;
/// What processes that died while they wrote left behind is removed after so long.
const LEFT_OVER: Duration = Duration::from_secs(60);
const NAP: Duration = Duration::from_millis(5);
const NEW: &str = ".new-";

/// Which attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The network.
    pub network: String,
    /// The container.
    pub container: String,
    /// The interface in it.
    pub ifname: String,
}

impl Key {
    fn file(&self) -> String {
        // None of the names can have a zero.
        let text = [self.network.as_str(), &self.container, &self.ifname].join("\0");
        let digest = Sha256::digest(text.as_bytes());
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{hex}.json")
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The VF is on its way to the container.
    Adding,
    /// It is there.
    Added,
    /// It is on its way back.
    Deleting,
}

/// A container that has, or had, a VF.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attachment {
    /// Which.
    pub key: Key,
    /// How far it is.
    pub phase: Phase,
    /// The VF.
    pub vf: Address,
    /// The number of this allocation.
    pub token: u64,
    /// The container's namespace.
    pub netns: PathBuf,
    /// The pod, as Kubernetes calls it: `NAMESPACE/NAME`.
    pub pod: Option<String>,
    /// Which of the pods that had this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Was the plugin asked that manages addresses?
    pub ipam: bool,
    /// Addresses that were given.
    #[serde(default)]
    pub ips: Vec<Ip>,
    /// Routes that were added.
    #[serde(default)]
    pub routes: Vec<Route>,
}

/// A VF that was given away at some time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Vf {
    /// The number of the last allocation.
    pub token: u64,
    /// Who has it.
    pub owner: Option<Key>,
    /// What has to be put right when it comes back. `None`: it is as it was.
    pub home: Option<Home>,
}

/// How a VF was before it was given away.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Home {
    /// The name of its interface.
    pub name: String,
    /// Its address.
    pub mac: Option<String>,
    /// Its MTU.
    pub mtu: u32,
    /// What the kernel called its device.
    pub parent: Option<String>,
    /// What the agent has to set back, and where it listens.
    pub settings: Option<(PathBuf, Settings)>,
    /// It has flow rules, which the agent that listens there has to take away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<PathBuf>,
}

/// The folder.
#[derive(Clone, Debug)]
pub struct State {
    dir: PathBuf,
}

/// The right to do something to a VF.
#[derive(Debug)]
pub struct Lock {
    /// Which.
    pub vf: Address,
    _file: File,
}

impl State {
    /// Opens the folder, and makes it if need be.
    ///
    /// # Errors
    /// [`Code::Io`].
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let state = Self { dir: dir.to_owned() };
        for dir in [dir.to_owned(), state.folder("attachments"), state.folder("vfs")] {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&dir)
                .map_err(|error| Error::io(dir.display(), &error))?;
        }
        Ok(state)
    }

    /// The folder if there is one: who only looks makes none.
    pub fn look(dir: &Path) -> Option<Self> {
        let state = Self { dir: dir.to_owned() };
        state.folder("vfs").is_dir().then_some(state)
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn attachment_path(&self, key: &Key) -> PathBuf {
        self.folder("attachments").join(key.file())
    }

    fn vf_path(&self, vf: Address) -> PathBuf {
        self.folder("vfs").join(format!("{vf}.json"))
    }

    /// An attachment, if there is a record of it.
    ///
    /// # Errors
    /// [`Code::Io`], [`Code::Decode`].
    pub fn attachment(&self, key: &Key) -> Result<Option<Attachment>, Error> {
        load(&self.attachment_path(key))
    }

    /// All attachments of a network, or of all, and what could not be read.
    ///
    /// # Errors
    /// [`Code::Io`], when the folder cannot be read.
    pub fn attachments(
        &self,
        network: Option<&str>,
    ) -> Result<(Vec<Attachment>, Vec<Error>), Error> {
        let (mut all, mut unread) = (Vec::new(), Vec::new());
        for path in self.records("attachments")? {
            match load::<Attachment>(&path) {
                Ok(Some(one)) if network.is_none_or(|name| one.key.network == name) => {
                    all.push(one);
                }
                Ok(_) => {}
                Err(error) => unread.push(error),
            }
        }
        Ok((all, unread))
    }

    /// All VFs that there are records of.
    ///
    /// # Errors
    /// [`Code::Io`], when the folder cannot be read.
    pub fn vfs(&self) -> Result<Vec<Address>, Error> {
        let records = self.records("vfs")?;
        Ok(records.iter().filter_map(|path| path.file_stem()?.to_str()?.parse().ok()).collect())
    }

    fn records(&self, folder: &str) -> Result<Vec<PathBuf>, Error> {
        let folder = self.folder(folder);
        let entries = fs::read_dir(&folder).map_err(|error| Error::io(folder.display(), &error))?;
        let paths = entries.flatten().map(|entry| entry.path());
        Ok(paths.filter(|path| path.extension().is_some_and(|kind| kind == "json")).collect())
    }

    /// Writes a new attachment.
    ///
    /// # Errors
    /// [`Code::Exists`], when there is one with this key.
    pub fn create(&self, attachment: &Attachment) -> Result<(), Error> {
        let path = self.attachment_path(&attachment.key);
        store(&path, attachment, true).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => exists(&attachment.key),
            _ => Error::io(path.display(), &error),
        })
    }

    /// Writes an attachment again.
    ///
    /// # Errors
    /// [`Code::Io`].
    pub fn save(&self, attachment: &Attachment) -> Result<(), Error> {
        let path = self.attachment_path(&attachment.key);
        store(&path, attachment, false).map_err(|error| Error::io(path.display(), &error))
    }

    /// Forgets an attachment, if it is still this one.
    ///
    /// # Errors
    /// [`Code::Io`].
    pub fn forget(&self, attachment: &Attachment) -> Result<(), Error> {
        let path = self.attachment_path(&attachment.key);
        if load::<Attachment>(&path)?.is_none_or(|now| now.token != attachment.token) {
            return Ok(());
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::io(path.display(), &error))
            }
            _ => Ok(()),
        }
    }

    /// What is known of a VF whose lock is held.
    ///
    /// # Errors
    /// [`Code::Io`], [`Code::Decode`].
    pub fn vf(&self, lock: &Lock) -> Result<Vf, Error> {
        self.peek(lock.vf)
    }

    /// The same of one whose lock may be another's: it may change at once.
    ///
    /// # Errors
    /// As [`State::vf`].
    pub fn peek(&self, vf: Address) -> Result<Vf, Error> {
        Ok(load(&self.vf_path(vf))?.unwrap_or_default())
    }

    /// Writes what is known of a VF.
    ///
    /// # Errors
    /// [`Code::Io`].
    pub fn save_vf(&self, lock: &Lock, vf: &Vf) -> Result<(), Error> {
        let path = self.vf_path(lock.vf);
        store(&path, vf, false).map_err(|error| Error::io(path.display(), &error))
    }

    /// Takes the lock of a VF, if nobody has it.
    ///
    /// # Errors
    /// [`Code::Io`].
    pub fn try_lock(&self, vf: Address) -> Result<Option<Lock>, Error> {
        let path = self.folder("vfs").join(format!("{vf}.lock"));
        let failed = |error: io::Error| Error::io(path.display(), &error);
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock { vf, _file: file })),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// Takes the lock of a VF, and waits for it until then.
    ///
    /// # Errors
    /// [`Code::Later`], when somebody keeps it.
    pub fn lock(&self, vf: Address, until: Instant) -> Result<Lock, Error> {
        loop {
            if let Some(lock) = self.try_lock(vf)? {
                return Ok(lock);
            }
            if Instant::now() >= until {
                let text = format!("VF {vf}: another call is busy with it");
                return Err(Error::new(Code::Later, text));
            }
            std::thread::sleep(NAP);
        }
    }

    /// Removes what processes left that died while they wrote.
    pub fn sweep(&self) {
        let now = SystemTime::now();
        for folder in ["attachments", "vfs"] {
            for entry in fs::read_dir(self.folder(folder)).into_iter().flatten().flatten() {
                let left = entry.file_name().to_string_lossy().starts_with(NEW);
                let changed = entry.metadata().and_then(|kept| kept.modified());
                let age = changed.ok().and_then(|changed| now.duration_since(changed).ok());
                if left && age.is_some_and(|age| age > LEFT_OVER) {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
    }
}

/// That there is one already.
pub(crate) fn exists(key: &Key) -> Error {
    let Key { network, container, ifname } = key;
    let text =
        format!("container {container} has an attachment {ifname} to {network}: DEL it first");
    Error::new(Code::Exists, text)
}

/// A number that no other allocation has.
///
/// # Errors
/// When the kernel has none, which it always has.
pub fn token() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|error| Error::io("random numbers", &error.into()))?;
    Ok(u64::from_ne_bytes(bytes))
}

fn load<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(RECORD_MAX).read_to_end(&mut bytes));
    match read {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(path.display(), &error)),
        Ok(_) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| Error::decode(path.display(), &error)),
    }
}

pub(crate) fn store(path: &Path, record: &impl Serialize, new: bool) -> io::Result<()> {
    let dir = path.parent().ok_or(ErrorKind::InvalidInput)?;
    let mut file = tempfile::Builder::new().prefix(NEW).tempfile_in(dir)?;
    file.write_all(&serde_json::to_vec_pretty(record)?)?;
    file.as_file().sync_all()?;
    if new {
        file.persist_noclobber(path)?;
    } else {
        file.persist(path)?;
    }
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests;
