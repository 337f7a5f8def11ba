//! What shim.c declares, and constants of libfabric that it compares with the header.

#![expect(unsafe_code)]
// UNSAFETY: declares and calls functions in C.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;

use sys::uring::IoVec;

use crate::error::Error;

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => { $(
        $(#[$doc])*
        #[repr(C)]
        pub(crate) struct $name {
            _private: [u8; 0],
        }
        impl Object for $name {}
    )* };
}

/// What is opened by libfabric, and closed.
pub(crate) trait Object {}

opaque! {
    /// `struct fid_fabric`.
    FabricId;
    /// `struct fid_domain`.
    DomainId;
    /// `struct fid_eq`.
    EventsId;
    /// `struct fid_cq`.
    CompletionsId;
    /// `struct fid_pep`.
    PassiveId;
    /// `struct fid_ep`.
    EndpointId;
    /// `struct fid_mr`.
    RegionId;
}

/// `struct fi_info`.
#[repr(C)]
pub(crate) struct InfoId {
    _private: [u8; 0],
}

/// `struct fi_rma_iov`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RmaIoVec {
    pub(crate) address: u64,
    pub(crate) length: usize,
    pub(crate) key: u64,
}

/// `struct fi_cq_data_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) context: *mut c_void,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    _buffer: *mut c_void,
    pub(crate) data: u64,
}

impl Completion {
    pub(crate) const NONE: Completion = {
        let nowhere = std::ptr::null_mut();
        Completion { context: nowhere, flags: 0, len: 0, _buffer: nowhere, data: 0 }
    };
}

/// `struct shim_info`.
#[repr(C)]
pub(crate) struct Description {
    pub(crate) provider: *const c_char,
    pub(crate) fabric: *const c_char,
    pub(crate) domain: *const c_char,
    pub(crate) source: *const u8,
    pub(crate) peer: *const u8,
    pub(crate) source_len: u64,
    pub(crate) peer_len: u64,
    pub(crate) mr_mode: u64,
    pub(crate) key_size: u64,
    pub(crate) iov_limit: u64,
    pub(crate) rma_iov_limit: u64,
    pub(crate) max_msg: u64,
    pub(crate) tx_size: u64,
    pub(crate) rx_size: u64,
    pub(crate) number_size: u64,
    pub(crate) number_receives: u64,
    pub(crate) inject_size: u64,
}

/// Bytes that can come with a connection, at most.
pub(crate) const PRIVATE: usize = 64;

/// `struct shim_event`.
#[repr(C)]
pub(crate) struct Event {
    pub(crate) kind: u32,
    pub(crate) error: i32,
    pub(crate) info: *mut InfoId,
    pub(crate) data_len: u64,
    pub(crate) data: [u8; PRIVATE],
}

/// Kinds of [`Event`].
pub(crate) const EVENT_ERROR: u32 = 0;
pub(crate) const EVENT_REQUEST: u32 = 1;
pub(crate) const EVENT_CONNECTED: u32 = 2;
pub(crate) const EVENT_SHUTDOWN: u32 = 3;

/// `struct shim_failure`.
#[repr(C)]
pub(crate) struct Failure {
    pub(crate) context: *mut c_void,
    pub(crate) error: i32,
    pub(crate) detail: i32,
    pub(crate) text: [c_char; 128],
}

/// Room for a `struct fi_context2`: the provider's while an operation is under way.
#[repr(C, align(8))]
pub(crate) struct Context(std::cell::UnsafeCell<[u64; 8]>);

impl Context {
    pub(crate) const fn new() -> Context {
        Context(std::cell::UnsafeCell::new([0; 8]))
    }

    pub(crate) fn address(&self) -> *mut c_void {
        self.0.get().cast()
    }
}

pub(crate) const EAGAIN: c_int = 11;
pub(crate) const ENODATA: c_int = 61;
pub(crate) const EIO: c_int = 5;
pub(crate) const ENOKEY: c_int = 266;
pub(crate) const EAVAIL: c_int = 259;
/// `FI_RECV`: the completion is that of a receive.
pub(crate) const FLAG_RECV: u64 = 1 << 10;
/// `FI_REMOTE_CQ_DATA`: a number has come.
pub(crate) const FLAG_NUMBER: u64 = 1 << 17;
pub(crate) const MR_VIRT_ADDR: u64 = 1 << 4;
pub(crate) const MR_PROV_KEY: u64 = 1 << 6;

macro_rules! shim {
    ($($vis:vis fn $name:ident($($arg:ident: $type:ty),*);)*) => {
        #[cfg(has_libfabric)]
        unsafe extern "C" { $($vis fn $name($($arg: $type),*) -> c_int;)* }

        $(
            /// Without the library everything is unknown.
            #[allow(clippy::too_many_arguments)]
            #[cfg(not(has_libfabric))]
            $vis unsafe fn $name($(_: $type),*) -> c_int {
                // ENOSYS
                -38
            }
        )*
    };
}

shim! {
    pub(crate) fn shim_version();
    pub(crate) fn shim_library(text: *mut c_char, len: usize);
    pub(crate) fn shim_strerror(error: c_int, text: *mut c_char, len: usize);
    pub(crate) fn shim_getinfo(
        provider: *const c_char, node: *const c_char, ipv6: c_int, out: *mut *mut InfoId
    );
    pub(crate) fn shim_free(info: *mut InfoId);
    pub(crate) fn shim_next(info: *const InfoId, out: *mut *mut InfoId);
    pub(crate) fn shim_dup(info: *const InfoId, out: *mut *mut InfoId);
    pub(crate) fn shim_describe(info: *const InfoId, out: *mut Description);
    pub(crate) fn shim_set_source(info: *mut InfoId, address: *const u8, len: usize);
    pub(crate) fn shim_set_peer(info: *mut InfoId, address: *const u8, len: usize);
    pub(crate) fn shim_fabric(info: *mut InfoId, out: *mut *mut FabricId);
    pub(crate) fn shim_domain(
        fabric: *mut FabricId, info: *mut InfoId, out: *mut *mut DomainId
    );
    pub(crate) fn shim_eq(fabric: *mut FabricId, out: *mut *mut EventsId, fd: *mut c_int);
    pub(crate) fn shim_cq(
        domain: *mut DomainId, size: usize, out: *mut *mut CompletionsId, fd: *mut c_int
    );
    pub(crate) fn shim_listen(
        fabric: *mut FabricId, info: *mut InfoId, eq: *mut EventsId, out: *mut *mut PassiveId
    );
    pub(crate) fn shim_name(fid: *mut c_void, address: *mut u8, len: *mut usize);
    pub(crate) fn shim_endpoint(
        domain: *mut DomainId, info: *mut InfoId, eq: *mut EventsId, cq: *mut CompletionsId,
        out: *mut *mut EndpointId
    );
    pub(crate) fn shim_connect(
        ep: *mut EndpointId, address: *const u8, data: *const u8, len: usize
    );
    pub(crate) fn shim_accept(ep: *mut EndpointId);
    pub(crate) fn shim_reject(pep: *mut PassiveId, request: *mut InfoId);
    pub(crate) fn shim_shutdown(ep: *mut EndpointId);
    pub(crate) fn shim_event(eq: *mut EventsId, out: *mut Event);
    pub(crate) fn shim_read(cq: *mut CompletionsId, out: *mut Completion, count: usize);
    pub(crate) fn shim_failure(cq: *mut CompletionsId, out: *mut Failure);
    pub(crate) fn shim_trywait(
        fabric: *mut FabricId, eq: *mut EventsId, cq: *mut CompletionsId
    );
    pub(crate) fn shim_register(
        domain: *mut DomainId, start: *const u8, len: usize, remote: u32, wanted: u64,
        out: *mut *mut RegionId, desc: *mut *mut c_void, key: *mut u64
    );
    pub(crate) fn shim_rma_write(
        ep: *mut EndpointId, iov: *const IoVec, desc: *mut *mut c_void, count: usize,
        remote: *const RmaIoVec, remotes: usize, context: *mut c_void
    );
    pub(crate) fn shim_rma_deliver(
        ep: *mut EndpointId, iov: *const IoVec, desc: *mut *mut c_void, count: usize,
        remote: *const RmaIoVec, remotes: usize, context: *mut c_void, last: c_int, number: u64
    );
    pub(crate) fn shim_rma_read(
        ep: *mut EndpointId, iov: *const IoVec, desc: *mut *mut c_void, count: usize,
        remote: *const RmaIoVec, remotes: usize, context: *mut c_void
    );
    pub(crate) fn shim_send(
        ep: *mut EndpointId, iov: *const IoVec, desc: *mut *mut c_void, count: usize,
        context: *mut c_void
    );
    pub(crate) fn shim_inject(ep: *mut EndpointId, bytes: *const IoVec);
    pub(crate) fn shim_recv(
        ep: *mut EndpointId, iov: *const IoVec, desc: *mut *mut c_void, count: usize,
        context: *mut c_void
    );
    pub(crate) fn shim_close(fid: *mut c_void);
}

/// Something that libfabric opened, closed when dropped.
pub(crate) struct Handle<X: Object>(NonNull<X>);

// SAFETY: domains are opened as FI_THREAD_SAFE: any thread may use and close what is in them.
unsafe impl<X: Object> Send for Handle<X> {}
// SAFETY: as above.
unsafe impl<X: Object> Sync for Handle<X> {}

impl<X: Object> Handle<X> {
    /// What `open` opened.
    pub(crate) fn open(
        what: &'static str,
        open: impl FnOnce(*mut *mut X) -> c_int,
    ) -> Result<Handle<X>, Error> {
        let mut out = std::ptr::null_mut();
        Error::check(what, open(&raw mut out))?;
        NonNull::new(out).map(Handle).ok_or_else(|| Error::of(what, EIO))
    }

    pub(crate) fn get(&self) -> *mut X {
        self.0.as_ptr()
    }

    /// Closes it; if that cannot be, it stays open for good.
    pub(crate) fn close(self) -> Result<(), Error> {
        let handle = std::mem::ManuallyDrop::new(self);
        // SAFETY: opened, and not used any more after this.
        Error::check("fi_close", unsafe { shim_close(handle.get().cast()) }).map(|_| ())
    }
}

impl<X: Object> Drop for Handle<X> {
    fn drop(&mut self) {
        // SAFETY: as in `close`.
        unsafe { shim_close(self.get().cast()) };
    }
}

#[cfg(all(test, has_libfabric))]
mod tests {
    use super::*;

    unsafe extern "C" {
        fn shim_sizes(out: *mut u64) -> c_int;
    }

    #[test]
    fn structures_are_as_large_as_in_c() {
        let mut sizes = [0; 4];
        // SAFETY: four numbers are written.
        unsafe { shim_sizes(sizes.as_mut_ptr()) };
        let [description, event, failure, context] = sizes;
        assert_eq!(description, size_of::<Description>() as u64);
        assert_eq!(event, size_of::<Event>() as u64);
        assert_eq!(failure, size_of::<Failure>() as u64);
        assert!(context <= size_of::<Context>() as u64);
    }
}
