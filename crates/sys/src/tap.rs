//! TAP devices: how containers and the host itself join a network.
//!
//! A device lives as long as one of its [`TapQueue`]s: when the last is dropped, the kernel removes
//! the interface. It is created in the network namespace it is meant for, so no name is ever
//! visible in another.
//!
//! Frames carry a 12-byte virtio net header (`virtio_net_hdr_v1`, little-endian on little-endian
//! machines), so checksums and segmentation are passed through as between two guests.

#![expect(unsafe_code)]
// UNSAFETY: the device and its interface are controlled by ioctl(2), which takes pointers.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use libc::{c_int, c_ulong, ifreq};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{retry_on_intr, write};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Bytes of virtio net header in front of every frame.
pub const VNET_HDR_LEN: usize = 12;

/// Most queues the kernel gives a device (`MAX_TAP_QUEUES`).
pub const MAX_QUEUES: u16 = 256;

/// What to create.
#[derive(Clone, Copy, Debug)]
pub struct TapConfig<'a> {
    /// Name of the interface, 1 to 15 bytes. With `%d` in it, the kernel chooses the number.
    pub ifname: &'a str,
    /// Network namespace: a name below `/run/netns` (see ip-netns(8)) or, with a slash in it, a
    /// path such as `/proc/PID/ns/net`. Otherwise that of this process.
    pub netns: Option<&'a str>,
    /// Queues, 1 to [`MAX_QUEUES`].
    pub queues: u16,
}

/// The network interface that belongs to some queues.
#[derive(Debug)]
pub struct Tap {
    /// A socket in the interface's namespace; what is done to an interface goes through one.
    control: OwnedFd,
    index: c_int,
    offloads: u32,
}

/// One queue of a TAP device: a non-blocking descriptor that reads and writes whole frames.
#[derive(Debug)]
pub struct TapQueue {
    fd: OwnedFd,
    tap: Arc<Tap>,
}

impl Tap {
    /// Creates the interface with all its queues and sets it up.
    ///
    /// The kernel is told that every kind of offloaded frame is welcome (checksums, TSO with ECN
    /// and, from Linux 6.2, USO); [`Tap::offloads`] says which it agreed to. May block for as long
    /// as the kernel takes to create an interface.
    ///
    /// # Errors
    /// `AlreadyExists` when there is an interface of that name; `NotFound` when there is no such
    /// namespace; `PermissionDenied` without CAP_NET_ADMIN; `InvalidInput` for a name or number of
    /// queues that cannot be. The text says what was tried.
    pub fn create(config: &TapConfig<'_>) -> io::Result<Vec<TapQueue>> {
        check_name(config.ifname)?;
        if !(1..=MAX_QUEUES).contains(&config.queues) {
            let text = format!("a TAP device has 1 to {MAX_QUEUES} queues, not {}", config.queues);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let Some(netns) = config.netns else { return create_here(config) };
        let path = netns_path(netns);
        let namespace = File::open(&path)
            .map_err(|e| context(&e, &format!("network namespace {}", path.display())))?;
        // A namespace is a property of the thread, so another one enters it.
        thread::scope(|scope| {
            let creator = thread::Builder::new().name("tap-netns".into());
            let created = creator.spawn_scoped(scope, || {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                    .map_err(|e| {
                        context(&e.into(), &format!("enter network namespace {}", path.display()))
                    })?;
                create_here(config)
            })?;
            created
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the namespace thread panicked")))
        })
    }

    /// The interface's present name (it may have been renamed).
    ///
    /// # Errors
    /// `NotFound` when the interface is gone or was moved to another namespace.
    pub fn name(&self) -> io::Result<String> {
        let mut request = empty_request();
        request.ifr_ifru.ifru_ifindex = self.index;
        control(self.control.as_fd(), libc::SIOCGIFNAME, &mut request)
            .map_err(|e| context(&e, "name of the TAP interface"))?;
        Ok(name_in(&request))
    }

    /// The interface's present MAC address: udev gives it another one soon after it appears.
    ///
    /// # Errors
    /// As for [`Tap::name`].
    pub fn mac(&self) -> io::Result<[u8; 6]> {
        read_mac(self.control.as_fd(), &self.name()?)
    }

    /// Which `TUN_F_*` offloads the kernel may use towards us.
    #[must_use]
    pub fn offloads(&self) -> u32 {
        self.offloads
    }

    /// Whether UDP segmentation (USO) is among the offloads, for both IP versions.
    #[must_use]
    pub fn has_uso(&self) -> bool {
        self.offloads & USO == USO
    }

    /// Sets the largest IP packet in bytes, 68 to 65521.
    ///
    /// # Errors
    /// `InvalidInput` outside that range; as for [`Tap::name`].
    pub fn set_mtu(&self, mtu: u16) -> io::Result<()> {
        let mut request = self.request()?;
        request.ifr_ifru.ifru_mtu = c_int::from(mtu);
        control(self.control.as_fd(), libc::SIOCSIFMTU, &mut request)
            .map_err(|e| context(&e, &format!("set MTU {mtu} of {}", name_in(&request))))
    }

    /// Sets the interface administratively up or down.
    ///
    /// # Errors
    /// As for [`Tap::name`]; what the kernel reports.
    pub fn set_up(&self, up: bool) -> io::Result<()> {
        let mut request = self.request()?;
        let fd = self.control.as_fd();
        control(fd, libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: SIOCGIFFLAGS has filled in this member of the union.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        let bit = libc::IFF_UP as libc::c_short;
        request.ifr_ifru.ifru_flags = if up { flags | bit } else { flags & !bit };
        control(fd, libc::SIOCSIFFLAGS, &mut request)
            .map_err(|e| context(&e, &format!("set {} up or down", name_in(&request))))
    }

    /// A request that names the interface.
    fn request(&self) -> io::Result<ifreq> {
        let mut request = empty_request();
        set_name(&mut request, &self.name()?);
        Ok(request)
    }
}

impl TapQueue {
    /// The interface.
    #[must_use]
    pub fn tap(&self) -> &Arc<Tap> {
        &self.tap
    }

    /// Reads one frame with its header. What does not fit into `buf` is lost.
    ///
    /// # Errors
    /// `WouldBlock` when there is none; an error of kind `Uncategorized` (EIO) while the interface
    /// is down.
    #[inline]
    pub fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(retry_on_intr(|| rustix::io::read(&self.fd, &mut *buf))?)
    }

    /// Writes one frame with its header, given in pieces.
    ///
    /// # Errors
    /// EIO while the interface is down; `InvalidInput` for a header the kernel does not believe.
    #[inline]
    pub fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(retry_on_intr(|| match pieces {
            [one] => write(&self.fd, one),
            _ => rustix::io::writev(&self.fd, pieces),
        })?)
    }

    /// Tells the kernel whether the link has carrier, for the whole interface (Linux 5.0).
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn set_carrier(&self, on: bool) -> io::Result<()> {
        let mut value = c_int::from(on);
        // SAFETY: TUNSETCARRIER reads an int.
        unsafe { ioctl(self.fd.as_fd(), TUNSETCARRIER, &raw mut value) }
            .map_err(|e| context(&e, "set the carrier of a TAP interface"))
    }
}

impl AsFd for TapQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for TapQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

// From linux/if_tun.h.
const TUNSETIFF: c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: c_ulong = 0x4004_54d0;
const TUNSETVNETHDRSZ: c_ulong = 0x4004_54d8;
const TUNSETCARRIER: c_ulong = 0x4004_54e2;
const TUN_F_CSUM: u32 = 0x01;
const TUN_F_TSO4: u32 = 0x02;
const TUN_F_TSO6: u32 = 0x04;
const TUN_F_TSO_ECN: u32 = 0x08;
const TUN_F_USO4: u32 = 0x20;
const TUN_F_USO6: u32 = 0x40;
const USO: u32 = TUN_F_USO4 | TUN_F_USO6;

/// Creates the device in the namespace of the calling thread.
fn create_here(config: &TapConfig<'_>) -> io::Result<Vec<TapQueue>> {
    // The first queue must create the interface, the others must find the one it created.
    let first = open_queue(config, config.ifname, libc::IFF_TUN_EXCL)?;
    let (first, name) = first;
    let offloads = set_offloads(first.as_fd(), &name)?;

    let kind = SocketFlags::CLOEXEC;
    let control_fd = socket_with(AddressFamily::INET, SocketType::DGRAM, kind, None)
        .map_err(|e| context(&e.into(), "open a control socket"))?;
    let mut request = empty_request();
    set_name(&mut request, &name);
    control(control_fd.as_fd(), libc::SIOCGIFINDEX, &mut request)
        .map_err(|e| context(&e, &format!("find interface {name}")))?;
    // SAFETY: SIOCGIFINDEX has filled in this member of the union.
    let index = unsafe { request.ifr_ifru.ifru_ifindex };
    let tap = Arc::new(Tap { control: control_fd, index, offloads });

    let mut queues = vec![TapQueue { fd: first, tap: Arc::clone(&tap) }];
    for _ in 1..config.queues {
        let (fd, _) = open_queue(config, &name, 0)?;
        queues.push(TapQueue { fd, tap: Arc::clone(&tap) });
    }
    tap.set_up(true)?;
    Ok(queues)
}

/// Opens one queue of an interface. Returns the name the kernel gave it.
fn open_queue(config: &TapConfig<'_>, name: &str, more: c_int) -> io::Result<(OwnedFd, String)> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = open("/dev/net/tun", flags, Mode::empty())
        .map_err(|e| context(&e.into(), "open /dev/net/tun"))?;
    let mut kind = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | more;
    if config.queues > 1 {
        kind |= libc::IFF_MULTI_QUEUE;
    }
    let mut request = empty_request();
    set_name(&mut request, name);
    // IFF_TUN_EXCL is the sign bit of this 16-bit field.
    request.ifr_ifru.ifru_flags = kind as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes an ifreq.
    unsafe { ioctl(fd.as_fd(), TUNSETIFF, &raw mut request) }.map_err(|error| {
        if error.raw_os_error() == Some(libc::EBUSY) {
            let text = format!("an interface named {name} exists already");
            return io::Error::new(io::ErrorKind::AlreadyExists, text);
        }
        context(&error, "TUNSETIFF")
    })?;
    let mut header = VNET_HDR_LEN as c_int;
    // SAFETY: TUNSETVNETHDRSZ reads an int.
    unsafe { ioctl(fd.as_fd(), TUNSETVNETHDRSZ, &raw mut header) }
        .map_err(|e| context(&e, &format!("set the header size of {name}")))?;
    Ok((fd, name_in(&request)))
}

/// Asks for all offloads, then for those that older kernels know.
fn set_offloads(fd: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let basic = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    let set = |offloads: u32| {
        // SAFETY: TUNSETOFFLOAD takes its argument by value.
        unsafe {
            ioctl(fd, TUNSETOFFLOAD, std::ptr::without_provenance_mut::<u8>(offloads as usize))
        }
        .map(|()| offloads)
    };
    set(basic | USO)
        .or_else(|_| set(basic))
        .map_err(|e| context(&e, &format!("set the offloads of {name}")))
}

fn read_mac(socket: BorrowedFd<'_>, name: &str) -> io::Result<[u8; 6]> {
    let mut request = empty_request();
    set_name(&mut request, name);
    control(socket, libc::SIOCGIFHWADDR, &mut request)
        .map_err(|e| context(&e, &format!("MAC address of {name}")))?;
    // SAFETY: SIOCGIFHWADDR has filled in this member of the union.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr }.sa_data;
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(address) {
        *to = from as u8;
    }
    Ok(mac)
}

fn netns_path(netns: &str) -> PathBuf {
    if netns.contains('/') { PathBuf::from(netns) } else { Path::new("/run/netns").join(netns) }
}

/// The kernel's own rule (`dev_valid_name`), to be able to say what is wrong.
fn check_name(name: &str) -> io::Result<()> {
    let fits = (1..libc::IFNAMSIZ).contains(&name.len()) && name != "." && name != "..";
    let odd = |c: char| c == '/' || c == ':' || c == '\0' || c.is_ascii_whitespace();
    if fits && !name.contains(odd) {
        return Ok(());
    }
    let text =
        format!("`{name}` cannot be the name of an interface (1 to 15 bytes, no space, / or :)");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

fn empty_request() -> ifreq {
    // SAFETY: an ifreq is plain numbers, for which zero is valid.
    unsafe { zeroed() }
}

/// Names are checked to leave room for the terminating zero.
fn set_name(request: &mut ifreq, name: &str) {
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(room)) {
        *to = from as libc::c_char;
    }
}

fn name_in(request: &ifreq) -> String {
    let bytes: Vec<u8> =
        request.ifr_name.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// An ioctl on a socket that reads and writes an ifreq.
fn control(socket: BorrowedFd<'_>, request: c_ulong, argument: &mut ifreq) -> io::Result<()> {
    // SAFETY: callers pass SIOC?IF* requests only, which all take an ifreq.
    unsafe { ioctl(socket, request, std::ptr::from_mut(argument)) }
}

/// # Safety
/// `argument` must be what `request` wants.
unsafe fn ioctl<T>(fd: BorrowedFd<'_>, request: c_ulong, argument: *mut T) -> io::Result<()> {
    // SAFETY: as promised by the caller. (The request's type differs between C libraries.)
    match unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The same error, with what was tried in front.
fn context(error: &io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

#[cfg(test)]
mod tests;
