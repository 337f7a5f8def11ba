//! Memory that the fabric may reach.

#![expect(unsafe_code)]
// UNSAFETY: hands addresses of guest memory to a library, which uses them until it is told not to.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use guestmem::{GuestMemory, Segments};
use smallvec::SmallVec;
use sys::uring::IoVec;

use crate::error::Error;
use crate::fabric::{Domain, Kind};
use crate::ffi::{self, Handle, RegionId};

/// What a peer may do with registered memory. Operations of this side may always read and write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Nothing.
    Local,
    /// Read it.
    RemoteRead,
    /// Write it.
    RemoteWrite,
    /// Both.
    RemoteReadWrite,
}

/// A piece of memory by which a peer reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Remote {
    /// Where it begins, as its registration has it.
    pub address: u64,
    /// The registration.
    pub key: u64,
    /// Bytes.
    pub length: u64,
}

/// Pieces of the peer's memory, in order; mostly there is one, for which no memory is taken.
pub type Remotes = SmallVec<[Remote; 1]>;

/// Memory of one guest (or a pool of this program, which is mapped the same way), registered with a
/// [`Fabric`](crate::Fabric): mapped as long as anyone may reach it.
///
/// Cheap to clone. When the last clone and the last [`Local`] are gone, its keys are void.
#[derive(Clone)]
pub struct Registration(Arc<Registered>);

struct Registered {
    regions: Vec<Region>,
    memory: Arc<GuestMemory>,
    rights: Rights,
    domain: Arc<Domain>,
}

/// A stretch of the memory without holes.
struct Region {
    handle: Handle<RegionId>,
    start: *mut u8,
    len: usize,
    /// What the peer calls the first byte.
    base: u64,
    key: u64,
    desc: *mut c_void,
}

// SAFETY: `start` is only compared and handed to the library; `desc` is the library's, whose objects any
// thread may use.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// How far into it these bytes are, if all of them are in it.
    fn offset(&self, piece: &IoVec) -> Option<u64> {
        let offset = piece.base.addr().checked_sub(self.start.addr())?;
        let fits = offset <= self.len && piece.len <= self.len - offset;
        fits.then_some(offset as u64)
    }
}

impl Registration {
    pub(crate) fn new(
        domain: &Arc<Domain>,
        memory: &Arc<GuestMemory>,
        rights: Rights,
    ) -> Result<Registration, Error> {
        let mut registered = Registered {
            regions: Vec::new(),
            memory: Arc::clone(memory),
            rights,
            domain: Arc::clone(domain),
        };
        // What was registered is given back if something later cannot be.
        for window in memory.windows() {
            registered.regions.push(region(domain, &window, rights)?);
        }
        Ok(Registration(Arc::new(registered)))
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.0.memory
    }

    /// What a peer may do.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.0.rights
    }

    /// Segments of this memory for an operation; `None` if they are of another.
    #[must_use]
    pub fn local(&self, segments: Segments) -> Option<Local> {
        let mut descs = SmallVec::new();
        for piece in segments.pieces() {
            descs.push(self.find(&segments, piece)?.0.desc);
        }
        Some(Local { segments, descs, registration: self.clone() })
    }

    /// So many bytes at a guest address for an operation; `None` if they are not in this memory.
    #[must_use]
    pub fn at(&self, gpa: u64, len: u32) -> Option<Local> {
        let slice = self.0.memory.slice(gpa, len)?;
        self.local(Segments::of(&self.0.memory, std::iter::once(slice))?)
    }

    /// What a peer has to know to reach these segments; `None` if they are of another memory, or no peer
    /// may.
    #[must_use]
    pub fn remote(&self, segments: &Segments) -> Option<Remotes> {
        if self.0.rights == Rights::Local {
            return None;
        }
        let one = |piece: &IoVec| {
            let (region, offset) = self.find(segments, piece)?;
            let address = region.base.wrapping_add(offset);
            Some(Remote { address, key: region.key, length: piece.len as u64 })
        };
        let mut remotes = Remotes::new();
        for piece in segments.pieces() {
            remotes.push(one(piece)?);
        }
        Some(remotes)
    }

    fn find(&self, segments: &Segments, piece: &IoVec) -> Option<(&Region, u64)> {
        if !Arc::ptr_eq(segments.memory(), &self.0.memory) {
            return None;
        }
        self.0.regions.iter().find_map(|region| Some((region, region.offset(piece)?)))
    }
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys are secrets.
        f.debug_struct("Registration").field("rights", &self.0.rights).finish_non_exhaustive()
    }
}

/// Registers a stretch of memory.
fn region(domain: &Arc<Domain>, window: &IoVec, rights: Rights) -> Result<Region, Error> {
    let bits = match rights {
        Rights::Local => 0,
        Rights::RemoteRead => 1,
        Rights::RemoteWrite => 2,
        Rights::RemoteReadWrite => 3,
    };
    let (mut desc, mut key) = (std::ptr::null_mut(), 0);
    let mut once = || {
        let wanted = if domain.traits.own_keys { random()? } else { 0 };
        Handle::open("fi_mr_reg", |out| {
            // SAFETY: the window is mapped as long as the memory, which outlives the registration, and
            // anybody may change it.
            unsafe {
                ffi::shim_register(
                    domain.handle.get(),
                    window.base,
                    window.len,
                    bits,
                    wanted,
                    out,
                    &raw mut desc,
                    &raw mut key,
                )
            }
        })
    };
    let handle = match once() {
        // Somebody has that number: ask for another.
        Err(error) if error.code() == Some(ffi::ENOKEY) => once()?,
        other => other?,
    };
    let base = if domain.traits.virtual_addresses { window.base.addr() as u64 } else { 0 };
    Ok(Region { handle, start: window.base, len: window.len, base, key, desc })
}

/// A number nobody guesses.
fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    let flags = rustix::rand::GetRandomFlags::empty();
    match rustix::rand::getrandom(&mut bytes, flags) {
        Ok(8) => Ok(u64::from_ne_bytes(bytes)),
        Ok(_) => Err(Error::kernel("getrandom", rustix::io::Errno::AGAIN)),
        Err(error) => Err(Error::kernel("getrandom", error)),
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut closed = true;
        for region in self.regions.drain(..) {
            closed &= region.handle.close().is_ok();
        }
        if !closed {
            // Memory the fabric may still use is never given back.
            std::mem::forget(Arc::clone(&self.memory));
        }
        if self.rights != Rights::Local && self.domain.kind == Kind::Tcp {
            self.domain.outlive_transfers(&self.memory);
        }
    }
}

/// Segments of registered memory, for an operation of this side.
#[derive(Clone)]
pub struct Local {
    segments: Segments,
    /// What the provider calls the memory of each.
    descs: SmallVec<[*mut c_void; 1]>,
    registration: Registration,
}

// SAFETY: what the descriptors stand for is kept registered, and any thread may use it.
unsafe impl Send for Local {}
// SAFETY: as above.
unsafe impl Sync for Local {}

impl Local {
    /// The segments.
    #[must_use]
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Where they are registered.
    #[must_use]
    pub fn registration(&self) -> &Registration {
        &self.registration
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.segments.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub(crate) fn is_of(&self, domain: &Arc<Domain>) -> bool {
        Arc::ptr_eq(&self.registration.0.domain, domain)
    }

    pub(crate) fn pieces(&self) -> &[IoVec] {
        self.segments.pieces()
    }

    pub(crate) fn descs(&self) -> &[*mut c_void] {
        &self.descs
    }
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Memory that was deregistered while an endpoint was open.
///
/// The provider `tcp` looks at a registration once, when a peer's transfer begins, and goes on moving
/// its bytes whenever this program calls it. So a transfer that had begun may still touch the memory;
/// that ends with the endpoint.
#[derive(Default)]
pub(crate) struct Kept(Mutex<Vec<Arc<GuestMemory>>>);

impl Kept {
    pub(crate) fn keep(&self, memory: &Arc<GuestMemory>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.iter().any(|one| Arc::ptr_eq(one, memory)) {
            kept.push(Arc::clone(memory));
        }
    }
}
