//! `meta.json` and `owner.json`: what an image is, and who has it open for writing.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use api::Timestamp;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::error::Context;
use crate::{Format, ImageName, StoreError};

/// File name of what an image is.
pub(crate) const META: &str = "meta.json";
/// File name of who has it open for writing.
const OWNER: &str = "owner.json";
/// Largest file of either kind in bytes. Ours have some hundred.
const MAX_JSON: u64 = 64 << 10;
/// The only layout of `meta.json` so far.
const VERSION: u32 = 1;

/// Name of the file of an image of this format, inside the image's directory.
pub(crate) fn file_name(format: Format) -> &'static str {
    match format {
        Format::Raw => "image.raw",
        Format::Qcow2 => "image.qcow2",
    }
}

/// What an image is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Meta {
    version: u32,
    pub(crate) format: Format,
    /// Of the disk, in bytes.
    pub(crate) size: u64,
    /// The image that holds what was not written to this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) backing: Option<ImageName>,
    pub(crate) created: Timestamp,
    /// Of the file that was imported, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sha256: Option<String>,
}

impl Meta {
    pub(crate) fn new(format: Format, size: u64, backing: Option<ImageName>) -> Self {
        let created = SystemTime::now().into();
        Self { version: VERSION, format, size, backing, created, sha256: None }
    }

    /// Reads that of the image `name` in the directory `dir`.
    pub(crate) fn load(dir: &Path, name: &ImageName) -> Result<Self, StoreError> {
        let path = dir.join(META);
        let damaged = |what| StoreError::Damaged { name: name.clone(), what };
        let meta: Self = read_json(&path).map_err(|error| match error {
            JsonError::Host(error) => error,
            JsonError::Content(what) => damaged(format!("{META}: {what}")),
        })?;
        match meta {
            Self { version: VERSION, .. } => Ok(meta),
            Self { version, .. } => Err(damaged(format!(
                "{META} has version {version}, which this program is too old for"
            ))),
        }
    }

    /// Replaces that in the directory `dir`, at once and lasting.
    pub(crate) fn store(&self, dir: &Path) -> Result<(), StoreError> {
        write_json(dir, META, self)
    }

    /// The text that a qcow2 header has for the backing file `backing`, which is of `format`.
    pub(crate) fn backing_path(backing: &ImageName, format: Format) -> String {
        format!("../{backing}/{}", file_name(format))
    }
}

/// Who has an image open for writing. It is for people: only the lock says whether it is true.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owner {
    /// Process.
    pub pid: u32,
    /// Run directory of the daemon, or whatever tells daemons of one host apart.
    pub run_dir: PathBuf,
    /// Name of the disk, or of the command.
    pub disk: String,
    /// When it was opened.
    pub since: Timestamp,
    /// The kernel's boot, so that a host that went down can be told from a process that did.
    boot: String,
}

impl Owner {
    /// This process, now, for `disk` of the daemon that runs in `run_dir`.
    pub fn new(run_dir: impl Into<PathBuf>, disk: impl Into<String>) -> Self {
        Self {
            pid: std::process::id(),
            run_dir: run_dir.into(),
            disk: disk.into(),
            since: SystemTime::now().into(),
            boot: boot(),
        }
    }

    /// Whether the host was started anew since: what its kernel had not yet written is lost.
    pub(crate) fn is_of_another_boot(&self) -> bool {
        self.boot != boot()
    }

    /// Who has the image in `dir` open, if that can be read. Never fails: it is for people.
    pub(crate) fn load(dir: &Path) -> Option<Self> {
        read_json(&dir.join(OWNER)).ok()
    }

    pub(crate) fn store(&self, dir: &Path) -> Result<(), StoreError> {
        write_json(dir, OWNER, self)
    }

    /// Nobody has the image in `dir` open.
    pub(crate) fn remove(dir: &Path) {
        // What is left is not believed without the lock, and only costs a check of the image.
        let _ = fs::remove_file(dir.join(OWNER));
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, run_dir, disk, since, .. } = self;
        write!(f, "{disk} of {} (process {pid}, since {since})", run_dir.display())
    }
}

/// Identifies this boot of the host; empty if the kernel does not say.
fn boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

enum JsonError {
    Host(StoreError),
    Content(String),
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, JsonError> {
    let mut text = Vec::new();
    let file = File::open(path).on("open", path).map_err(JsonError::Host)?;
    let read = file.take(MAX_JSON).read_to_end(&mut text);
    read.on("read", path).map_err(JsonError::Host)?;
    serde_json::from_slice(&text).map_err(|error| JsonError::Content(error.to_string()))
}

/// Writes `value` to `dir`/`name` so that at any time the old or the new one is there.
///
/// The caller holds the lock of the image or of the catalog, so nobody else does this at once.
fn write_json(dir: &Path, name: &str, value: &impl Serialize) -> Result<(), StoreError> {
    let path = dir.join(name);
    let write = || -> std::io::Result<()> {
        let new = dir.join(format!(".{name}.new"));
        let mut file = File::create(&new)?;
        serde_json::to_writer_pretty(&mut file, value)?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        sync_dir(dir)
    };
    write().on("write", &path)
}

/// Makes what was created, renamed and removed in `dir` last.
pub(crate) fn sync_dir(dir: &Path) -> std::io::Result<()> {
    File::open(dir)?.sync_all()
}
