//! A fabric on a local address, and which there are.

#![expect(unsafe_code)]
// UNSAFETY: calls functions in C, which fill in what they are given.

use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use guestmem::GuestMemory;

use crate::address;
use crate::endpoint::{Depth, Endpoint};
use crate::error::{self, Error};
use crate::ffi::{self, Description, DomainId, FabricId, Handle, InfoId};
use crate::listener::Listener;
use crate::memory::{Kept, Registration, Rights};

/// Bytes that a connection's opener may send with it, at most: what verbs has room for.
pub const MAX_GREETING: usize = 48;

/// A provider of libfabric that is used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Over TCP: everywhere, and the peer's program has to take part in every transfer.
    Tcp,
    /// InfiniBand, RoCE, iWARP: a network card moves the bytes.
    Verbs,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 2] = [Kind::Tcp, Kind::Verbs];

    /// As libfabric names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Tcp => "tcp",
            Kind::Verbs => "verbs",
        }
    }

    fn c_name(self) -> &'static CStr {
        match self {
            Kind::Tcp => c"tcp",
            Kind::Verbs => c"verbs",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Kind, Error> {
        let named = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        named.ok_or(Error::Argument("a provider is `tcp` or `verbs`"))
    }
}

/// What there is of a provider.
#[derive(Clone, Debug)]
pub struct Provider {
    /// Which.
    pub kind: Kind,
    /// Where it can be used.
    pub places: Vec<Place>,
    /// Why it cannot be used anywhere.
    pub missing: Option<String>,
}

/// Where a provider can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The network, as the provider names it.
    pub fabric: String,
    /// The device or interface, as the provider names it.
    pub domain: String,
    /// `ipv4` or `ipv6`.
    pub format: &'static str,
    /// The local address, if the provider says.
    pub address: Option<IpAddr>,
}

/// The version of libfabric that is used, as major and minor; `None`: there is none, or this was built without.
#[must_use]
pub fn version() -> Option<(u16, u16)> {
    // SAFETY: returns a number.
    let version = unsafe { ffi::shim_version() };
    let version = u32::try_from(version).ok().filter(|&version| version != 0)?;
    Some(((version >> 16) as u16, version as u16))
}

/// The file that this libfabric was loaded from; `None` as with [`version`].
#[must_use]
pub fn library() -> Option<PathBuf> {
    let mut buffer: [c_char; 4096] = [0; 4096];
    // SAFETY: at most as many bytes as there are are written, the last of them zero.
    let result = unsafe { ffi::shim_library(buffer.as_mut_ptr(), buffer.len()) };
    let file = (result >= 0).then(|| PathBuf::from(error::string(&buffer)))?;
    Some(file.canonicalize().unwrap_or(file))
}

/// The providers that are used here: where each can be, or why it cannot.
///
/// The library looks at the network interfaces and devices of this machine, which may take a while the
/// first time.
#[must_use]
pub fn providers() -> Vec<Provider> {
    Kind::ALL.into_iter().map(provider).collect()
}

fn provider(kind: Kind) -> Provider {
    let mut places = Vec::new();
    let mut missing = None;
    let mut look = |local: Option<IpAddr>, ipv6: bool| match Info::get(kind, local, ipv6) {
        Ok(info) => {
            for place in info.places(if ipv6 { "ipv6" } else { "ipv4" }) {
                if !places.contains(&place) {
                    places.push(place);
                }
            }
        }
        Err(error) => {
            missing.get_or_insert(error);
        }
    };
    [false, true].into_iter().for_each(|ipv6| look(None, ipv6));
    if kind == Kind::Verbs && has_device() {
        // It may know none by itself, as where this machine's name has no address: each is asked for.
        for local in own_addresses() {
            look(Some(local), local.is_ipv6());
        }
    }
    let missing = missing.filter(|_| places.is_empty()).map(|error| why(kind, &error));
    Provider { kind, places, missing }
}

/// Whether the kernel has an RDMA device.
fn has_device() -> bool {
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut all| all.next().is_some())
}

/// The addresses of this machine that others may reach, as `tcp` lists them.
fn own_addresses() -> Vec<IpAddr> {
    let listed = [false, true].into_iter().filter_map(|ipv6| Info::get(Kind::Tcp, None, ipv6).ok());
    let places = listed.flat_map(|info| info.places("")).filter_map(|place| place.address);
    let mut all: Vec<IpAddr> = places.filter(|address| !address.is_loopback()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Why there is nothing of a provider.
fn why(kind: Kind, error: &Error) -> String {
    let nothing = error.code() == Some(ffi::ENODATA);
    match kind {
        Kind::Verbs if nothing && !has_device() => {
            "there is no RDMA device (/sys/class/infiniband is empty)".to_owned()
        }
        Kind::Verbs if nothing && !Path::new("/dev/infiniband/rdma_cm").exists() => {
            "there is no /dev/infiniband/rdma_cm: load the kernel module rdma_ucm".to_owned()
        }
        Kind::Verbs if nothing => {
            "no RDMA device has an IP address, or its library (libibverbs, ibverbs-providers) is missing"
                .to_owned()
        }
        _ => error.to_string(),
    }
}

/// What a provider says of itself and of its limits: `struct fi_info`, and those that follow it.
pub(crate) struct Info(*mut InfoId);

// SAFETY: plain data on the heap of the library, which only its owner changes.
unsafe impl Send for Info {}
// SAFETY: as above.
unsafe impl Sync for Info {}

impl Info {
    /// Takes over what the library made.
    pub(crate) fn of(info: *mut InfoId) -> Option<Info> {
        (!info.is_null()).then_some(Info(info))
    }

    fn get(kind: Kind, local: Option<IpAddr>, ipv6: bool) -> Result<Info, Error> {
        // SAFETY: it takes nothing.
        if !cfg!(has_libfabric) || unsafe { ffi::shim_version() } == 0 {
            return Err(Error::Missing);
        }
        let node = local.and_then(|address| CString::new(address.to_string()).ok());
        let node = node.as_ref().map_or(std::ptr::null(), |node| node.as_ptr());
        let mut out = std::ptr::null_mut();
        // SAFETY: both texts end with a zero, and live until the call returns.
        let got = unsafe {
            ffi::shim_getinfo(kind.c_name().as_ptr(), node, i32::from(ipv6), &raw mut out)
        };
        Error::check("fi_getinfo", got)?;
        Info::of(out).ok_or_else(|| Error::of("fi_getinfo", ffi::ENODATA))
    }

    /// A copy of the first, with other addresses.
    pub(crate) fn with(
        &self,
        source: Option<SocketAddr>,
        peer: Option<SocketAddr>,
    ) -> Result<Info, Error> {
        let mut out = std::ptr::null_mut();
        // SAFETY: the information is valid as long as self, and so is its copy.
        Error::check("fi_dupinfo", unsafe { ffi::shim_dup(self.0, &raw mut out) })?;
        let info = Info::of(out).ok_or_else(|| Error::of("fi_dupinfo", ffi::EIO))?;
        if let Some(bytes) = source.map(address::to_bytes) {
            // SAFETY: the bytes are copied.
            let set = unsafe { ffi::shim_set_source(info.0, bytes.as_ptr(), bytes.len()) };
            Error::check("fi_dupinfo", set)?;
        }
        if let Some(bytes) = peer.map(address::to_bytes) {
            // SAFETY: as above.
            let set = unsafe { ffi::shim_set_peer(info.0, bytes.as_ptr(), bytes.len()) };
            Error::check("fi_dupinfo", set)?;
        }
        Ok(info)
    }

    pub(crate) fn raw(&self) -> *mut InfoId {
        self.0
    }

    pub(crate) fn traits(&self) -> Traits {
        let all = describe(self.0);
        let or = |limit: u64, most: u64| limit.clamp(1, most) as usize;
        Traits {
            virtual_addresses: all.mr_mode & ffi::MR_VIRT_ADDR != 0,
            own_keys: all.mr_mode & ffi::MR_PROV_KEY == 0,
            key_size: all.key_size,
            pieces: or(all.iov_limit, 64),
            remote_pieces: or(all.rma_iov_limit, 64),
            most: all.max_msg.clamp(1, 1 << 30),
            transmits: or(all.tx_size, 4096),
            receives: or(all.rx_size, 4096),
            inject: all.inject_size,
            numbers: all.number_size >= 4,
            numbers_use_receives: all.number_receives != 0,
        }
    }

    /// The address of the peer, if it is known.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        let all = describe(self.0);
        socket_address(&self.0, all.peer, all.peer_len)
    }

    fn places(&self, format: &'static str) -> Vec<Place> {
        let mut places = Vec::new();
        let mut at = self.0;
        while !at.is_null() {
            let all = describe(at);
            let address = socket_address(&at, all.source, all.source_len)
                .map(|address| address.ip())
                .filter(|ip| !ip.is_unspecified());
            // `tcp` lists addresses of the other format, too.
            let format = match address {
                Some(IpAddr::V4(_)) => "ipv4",
                Some(IpAddr::V6(_)) => "ipv6",
                None => format,
            };
            let (fabric, domain) = (string(&at, all.fabric), string(&at, all.domain));
            places.push(Place { fabric, domain, format, address });
            let mut next = std::ptr::null_mut();
            // SAFETY: `at` is one of a list that lives as long as self.
            unsafe { ffi::shim_next(at, &raw mut next) };
            at = next;
        }
        places
    }
}

/// What is said of an `fi_info`, which is not null. Its pointers are good as long as that.
fn describe(info: *mut InfoId) -> Description {
    let mut out = std::mem::MaybeUninit::<Description>::zeroed();
    // SAFETY: all-zero is a valid description, which the shim fills in.
    unsafe {
        ffi::shim_describe(info, out.as_mut_ptr());
        out.assume_init()
    }
}

/// A text of an `fi_info`, which is borrowed meanwhile.
fn string(_of: &*mut InfoId, text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: texts of the library end with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// An address of an `fi_info`, which is borrowed meanwhile.
fn socket_address(_of: &*mut InfoId, at: *const u8, len: u64) -> Option<SocketAddr> {
    if at.is_null() {
        return None;
    }
    // SAFETY: the library says how many bytes there are.
    address::of_bytes(unsafe { std::slice::from_raw_parts(at, len as usize) })
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: taken over, and not used after this.
        unsafe { ffi::shim_free(self.0) };
    }
}

/// What a provider asks for and can.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    /// Remote addresses are those of the owner's address space, not offsets.
    pub(crate) virtual_addresses: bool,
    /// Keys are chosen here, not by the provider.
    pub(crate) own_keys: bool,
    /// Bytes of a key.
    key_size: u64,
    /// Local pieces of an operation.
    pub(crate) pieces: usize,
    /// Remote pieces of an operation.
    pub(crate) remote_pieces: usize,
    /// Bytes of an operation.
    pub(crate) most: u64,
    /// Operations under way, without receives.
    pub(crate) transmits: usize,
    /// Receives under way.
    pub(crate) receives: usize,
    /// Bytes of a message that the provider copies at once.
    pub(crate) inject: u64,
    /// A number can come with what was written, and none before that.
    pub(crate) numbers: bool,
    /// Each uses up a receive.
    pub(crate) numbers_use_receives: bool,
}

/// What registrations, listeners and endpoints are part of; closed after the last of them.
pub(crate) struct Domain {
    // In the order in which they have to be closed.
    pub(crate) handle: Handle<DomainId>,
    pub(crate) fabric: Handle<FabricId>,
    pub(crate) info: Info,
    pub(crate) kind: Kind,
    pub(crate) local: IpAddr,
    pub(crate) traits: Traits,
    /// Of open endpoints.
    keepers: Mutex<Vec<Weak<Kept>>>,
}

impl Domain {
    /// Where memory is put that is deregistered from now on, until the endpoint is closed.
    pub(crate) fn keeper(&self) -> Arc<Kept> {
        let kept = Arc::new(Kept::default());
        let mut keepers = self.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        keepers.retain(|keeper| keeper.strong_count() > 0);
        keepers.push(Arc::downgrade(&kept));
        kept
    }

    /// Keeps memory mapped until every endpoint that is open now has been closed.
    pub(crate) fn outlive_transfers(&self, memory: &Arc<GuestMemory>) {
        let keepers = self.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        let open: Vec<Arc<Kept>> = keepers.iter().filter_map(Weak::upgrade).collect();
        drop(keepers);
        open.iter().for_each(|kept| kept.keep(memory));
    }
}

/// A provider on a local address: where memory is registered, and connections are made and taken.
///
/// Cheap to clone; closed when the last clone and everything that was made of it are gone.
#[derive(Clone)]
pub struct Fabric(Arc<Domain>);

impl Fabric {
    /// Opens one. `local` is an address of this machine, on a network that the provider can use.
    ///
    /// # Errors
    /// [`Error::Missing`]; what the provider says: 61 (no data available) if it is not there, or not at
    /// this address. `tcp` notices only when it listens or connects that the machine has no such address.
    pub fn open(kind: Kind, local: IpAddr) -> Result<Fabric, Error> {
        if local.is_unspecified() {
            return Err(Error::Argument("a fabric is at one address, not at all of them"));
        }
        let info = Info::get(kind, Some(local), local.is_ipv6())?;
        let traits = info.traits();
        if traits.own_keys && traits.key_size < 8 {
            return Err(Error::Unsuitable("has keys so short that they could be guessed"));
        }
        // SAFETY: the information is valid; what is opened is taken over.
        let fabric = Handle::<FabricId>::open("fi_fabric", |out| unsafe {
            ffi::shim_fabric(info.raw(), out)
        })?;
        // SAFETY: as above.
        let handle = Handle::<DomainId>::open("fi_domain", |out| unsafe {
            ffi::shim_domain(fabric.get(), info.raw(), out)
        })?;
        let keepers = Mutex::default();
        Ok(Fabric(Arc::new(Domain { handle, fabric, info, kind, local, traits, keepers })))
    }

    /// Which provider.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Whether [`Endpoint::deliver`] can be used.
    #[must_use]
    pub fn delivers(&self) -> bool {
        self.0.traits.numbers
    }

    /// Whether a message, or a [number](Endpoint::told), for which there is no receive waits at no cost:
    /// `tcp` leaves it in the socket. Elsewhere it is sent again and again, or ends the connection.
    #[must_use]
    pub fn holds_back(&self) -> bool {
        self.0.kind == Kind::Tcp && !self.0.traits.numbers_use_receives
    }

    /// Whether registered memory is kept in physical memory. `tcp` only notes that it is registered.
    #[must_use]
    pub fn pins(&self) -> bool {
        self.0.kind == Kind::Verbs
    }

    /// The address it is at.
    #[must_use]
    pub fn local(&self) -> IpAddr {
        self.0.local
    }

    /// Registers all of a guest's memory.
    ///
    /// `verbs` keeps it in physical memory from now on, which takes about a millisecond per MiB of small
    /// pages, much less of huge ones, and needs `RLIMIT_MEMLOCK` or `CAP_IPC_LOCK`. Keys are random
    /// numbers of 64 bits, or the provider's: those of `verbs` have 32 bits, and a peer may guess. So
    /// peers that do not trust each other are connected to different fabrics.
    ///
    /// # Errors
    /// What the provider says.
    pub fn register(
        &self,
        memory: &Arc<GuestMemory>,
        rights: Rights,
    ) -> Result<Registration, Error> {
        Registration::new(&self.0, memory, rights)
    }

    /// Listens for connections at the local address. Port 0 is one that is free.
    ///
    /// # Errors
    /// What the provider says.
    pub fn listen(&self, port: u16) -> Result<Listener, Error> {
        Listener::new(&self.0, port)
    }

    /// Begins to connect to a listener, which is told the greeting: at most [`MAX_GREETING`] bytes.
    /// The endpoint says when it is connected.
    ///
    /// # Errors
    /// What the provider says; a greeting that is too long.
    pub fn connect<T>(
        &self,
        peer: SocketAddr,
        greeting: &[u8],
        depth: Depth,
    ) -> Result<Endpoint<T>, Error> {
        if greeting.len() > MAX_GREETING {
            return Err(Error::Argument("a greeting has at most 48 bytes"));
        }
        let info = self.0.info.with(None, Some(peer))?;
        let mut endpoint = Endpoint::new(&self.0, &info, depth)?;
        endpoint.connect(peer, greeting)?;
        Ok(endpoint)
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric")
            .field("kind", &self.0.kind)
            .field("local", &self.0.local)
            .field("traits", &self.0.traits)
            .finish_non_exhaustive()
    }
}
