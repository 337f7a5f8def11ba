//! Images that an engine of many machines keeps ([`engines`]).
//!
//! The engine keeps writers of other hosts out. Within this store one writes an image or many read it, as of a
//! directory: [`Open`] knows.

use super::Backend;
use api::ImageName;
use dataplane::store_control::{Listed, Refused, Why};
use dataplane::{DiskImage, Extent, OpenImage, Peer};
use engines::{Abilities, Error, Volume};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing::{error, info};

/// Where an engine keeps images.
pub(super) struct Engine {
    name: String,
    /// Directory of the socket for guests of this host.
    run: PathBuf,
    engine: Box<dyn engines::Engine>,
    open: Arc<Open>,
}

impl Engine {
    /// A pool of a Ceph cluster.
    pub(super) fn ceph(options: &engines::ceph::Options, run: &Path) -> Result<Engine, Error> {
        let name = format!("the Ceph pool {}", options.pool);
        let engine = Box::new(engines::ceph::Pool::connect(options.clone())?);
        Ok(Engine { name, run: run.to_owned(), engine, open: Arc::default() })
    }

    /// A directory of a Gfarm file system. No other thread may have been started yet.
    pub(super) fn gfarm(options: &engines::gfarm::Options, run: &Path) -> Result<Engine, Error> {
        let name = format!("{} in Gfarm", options.dir);
        let engine = Box::new(engines::gfarm::Directory::connect(options)?);
        Ok(Engine { name, run: run.to_owned(), engine, open: Arc::default() })
    }
}

impl Backend for Engine {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn local(&self, port: u16) -> PathBuf {
        self.run.join(format!("store-{port}.sock"))
    }

    fn open(&self, name: &ImageName, write: bool, client: &Peer) -> Result<OpenImage, Refused> {
        let entered = self.open.enter(name, write, &client.name)?;
        let (image, snapshot) = match name.as_str().split_once('@') {
            Some((image, snapshot)) => (image, Some(snapshot)),
            None => (name.as_str(), None),
        };
        let opened = self.engine.open(image, snapshot, write);
        let volume: Arc<dyn Volume> = opened.map_err(|error| refusal(name, &error))?.into();
        let Abilities { discard, depth, .. } = volume.abilities();
        let (size, epoch) = (volume.size(), volume.epoch());
        let cannot = if discard { "" } else { "; space cannot be given back (no discard)" };
        info!(image = %name, size, epoch, "open, {depth} requests at a time{cannot}");
        let image = DiskImage::Image(Arc::new(Bytes(Arc::clone(&volume))));
        Ok(OpenImage { image, size, epoch, keep: Box::new(Closing { volume, _entered: entered }) })
    }

    fn list(&self) -> Result<Vec<Listed>, Refused> {
        let all = self.engine.list().map_err(|error| {
            error!("the images cannot be listed: {error}");
            Refused { why: Why::Failed, message: "the images cannot be listed".to_owned() }
        })?;
        // Names that cannot be said cannot be opened.
        let named = |engines::Entry { name, size }: engines::Entry| {
            Some(Listed { image: name.parse().ok()?, size })
        };
        Ok(all.into_iter().filter_map(named).collect())
    }
}

/// What a client is told.
fn refusal(name: &ImageName, error: &Error) -> Refused {
    let why = match error {
        Error::NotFound(_) => Why::NoSuchImage,
        Error::InUse { .. } => Why::InUse,
        Error::Unsuitable(_) => Why::Forbidden,
        _ => return super::failed(name, error),
    };
    Refused { why, message: error.to_string() }
}

/// An image that is open, as the data plane uses it.
struct Bytes(Arc<dyn Volume>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bytes").field(&self.0.size()).finish()
    }
}

impl dataplane::Image for Bytes {
    fn read(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        Ok(self.0.read(offset, to)?)
    }

    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        Ok(self.0.write(offset, from)?)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(self.0.flush()?)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(self.0.discard(offset, len)?)
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        Ok(self.0.write_zeroes(offset, len, unmap)?)
    }

    fn direct(&self, _: u64, _: u64, _: bool) -> Option<Extent> {
        None
    }

    fn can_discard(&self) -> bool {
        self.0.abilities().discard
    }

    fn depth(&self) -> usize {
        self.0.abilities().depth
    }

    fn outlives_this_machine(&self) -> bool {
        self.0.abilities().durable
    }
}

/// Closes an image when nothing is asked of it any more, and only then lets others have it.
struct Closing {
    volume: Arc<dyn Volume>,
    _entered: Entered,
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.volume.close();
    }
}

/// Who has which image open here.
#[derive(Default)]
struct Open(Mutex<HashMap<ImageName, Users>>);

enum Users {
    Writer(String),
    Readers(usize),
}

/// The right to have an image open, until this is dropped.
struct Entered {
    open: Arc<Open>,
    name: ImageName,
}

impl Open {
    fn enter(
        self: &Arc<Open>,
        name: &ImageName,
        write: bool,
        client: &str,
    ) -> Result<Entered, Refused> {
        let mut open = self.0.lock();
        match open.entry(name.clone()) {
            Entry::Vacant(free) => {
                free.insert(if write {
                    Users::Writer(client.to_owned())
                } else {
                    Users::Readers(1)
                });
            }
            Entry::Occupied(mut users) => match users.get_mut() {
                Users::Readers(count) if !write => *count += 1,
                Users::Readers(_) => return Err(in_use(name, "readers")),
                Users::Writer(owner) => return Err(in_use(name, owner)),
            },
        }
        Ok(Entered { open: Arc::clone(self), name: name.clone() })
    }
}

fn in_use(name: &ImageName, owner: &str) -> Refused {
    Refused { why: Why::InUse, message: format!("image {name} is in use by {owner}") }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut open = self.open.0.lock();
        if let Entry::Occupied(mut users) = open.entry(self.name.clone()) {
            match users.get_mut() {
                Users::Readers(count) if *count > 1 => *count -= 1,
                _ => drop(users.remove()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_writes_or_many_read() {
        let (open, name) = (Arc::<Open>::default(), "web".parse().unwrap());
        let enter = |write| open.enter(&name, write, "a");
        let refused = |write| enter(write).err().map(|refused| refused.message);
        let writer = enter(true).unwrap();
        for write in [false, true] {
            assert_eq!(refused(write).unwrap(), "image web is in use by a");
        }
        assert!(open.enter(&"other".parse().unwrap(), true, "b").is_ok());
        drop(writer);
        let readers = [enter(false).unwrap(), enter(false).unwrap()];
        assert_eq!(refused(true).unwrap(), "image web is in use by readers");
        let [one, other] = readers;
        drop(one);
        assert!(refused(true).is_some());
        drop(other);
        assert!(enter(true).is_ok());
        assert!(open.0.lock().is_empty());
    }
}
