//! Connections that others open.

#![expect(unsafe_code)]
// UNSAFETY: calls functions in C, which fill in what they are given.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::address;
use crate::endpoint::{Depth, Endpoint, readiness};
use crate::error::Error;
use crate::fabric::{Domain, Info};
use crate::ffi::{self, EventsId, Handle, PassiveId};

/// An event queue of the library, and the descriptor it wakes a sleeper by.
pub(crate) struct Events {
    pub(crate) handle: Handle<EventsId>,
    pub(crate) fd: c_int,
}

impl Events {
    pub(crate) fn new(domain: &Domain) -> Result<Events, Error> {
        let mut fd = -1;
        // SAFETY: what is opened is taken over; the number is stored.
        let handle = Handle::open("fi_eq_open", |out| unsafe {
            ffi::shim_eq(domain.fabric.get(), out, &raw mut fd)
        })?;
        Ok(Events { handle, fd })
    }

    /// The next event.
    pub(crate) fn next(&self) -> Result<Option<ffi::Event>, Error> {
        let mut event = ffi::Event {
            kind: 0,
            error: 0,
            info: std::ptr::null_mut(),
            data_len: 0,
            data: [0; ffi::PRIVATE],
        };
        // SAFETY: the queue is open, the event is filled in.
        let got = unsafe { ffi::shim_event(self.handle.get(), &raw mut event) };
        Ok((Error::check("fi_eq_read", got)? > 0).then_some(event))
    }
}

/// What listens, and what strangers asked of it.
struct Passive {
    // In the order in which they have to be closed.
    handle: Handle<PassiveId>,
    events: Events,
    domain: Arc<Domain>,
}

/// Takes connections. It belongs to one thread at a time.
pub struct Listener {
    passive: Arc<Passive>,
    readiness: OwnedFd,
    address: SocketAddr,
}

impl Listener {
    pub(crate) fn new(domain: &Arc<Domain>, port: u16) -> Result<Listener, Error> {
        let info = domain.info.with(Some((domain.local, port).into()), None)?;
        let events = Events::new(domain)?;
        // SAFETY: everything that is handed over is open, and outlives what is opened.
        let handle = Handle::open("fi_listen", |out| unsafe {
            ffi::shim_listen(domain.fabric.get(), info.raw(), events.handle.get(), out)
        })?;
        let readiness = readiness(&[events.fd])?;
        let (mut bytes, mut len) = ([0; 128], 128);
        // SAFETY: at most as many bytes are stored as there is room for.
        let named =
            unsafe { ffi::shim_name(handle.get().cast(), bytes.as_mut_ptr(), &raw mut len) };
        Error::check("fi_getname", named)?;
        let address = bytes.get(..len).and_then(address::of_bytes);
        let address = address.unwrap_or((domain.local, port).into());
        let passive = Arc::new(Passive { handle, events, domain: Arc::clone(domain) });
        Ok(Listener { passive, readiness, address })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection that somebody wants; nothing is waited for.
    ///
    /// # Errors
    /// What the provider says; the listener goes on.
    pub fn poll(&self) -> Result<Option<Request>, Error> {
        while let Some(event) = self.passive.events.next()? {
            if event.kind == ffi::EVENT_ERROR {
                return Err(Error::of("fi_listen", event.error));
            }
            if let Some(info) = Info::of(event.info)
                && event.kind == ffi::EVENT_REQUEST
            {
                let len = (event.data_len as usize).min(event.data.len());
                let greeting = event.data.get(..len).unwrap_or_default().to_vec();
                let passive = Arc::clone(&self.passive);
                return Ok(Some(Request { info, greeting, passive, open: true }));
            }
        }
        Ok(None)
    }

    /// Whether nothing has come since the last [`Listener::poll`]: then the descriptor
    /// ([`AsFd`]) becomes readable when something does.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        let fabric = self.passive.domain.fabric.get();
        let events = self.passive.events.handle.get();
        // SAFETY: both are open.
        unsafe { ffi::shim_trywait(fabric, events, std::ptr::null_mut()) == 0 }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readiness.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Who was not answered is refused.
        while let Ok(Some(request)) = self.poll() {
            drop(request);
        }
    }
}

/// A connection that somebody wants. Refused when dropped.
pub struct Request {
    info: Info,
    greeting: Vec<u8>,
    passive: Arc<Passive>,
    open: bool,
}

impl Request {
    /// What its opener said, up to 64 bytes of anything: nobody has checked who that is.
    #[must_use]
    pub fn greeting(&self) -> &[u8] {
        &self.greeting
    }

    /// From where, if the provider says.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.info.peer()
    }

    /// Begins to take it. The endpoint says when it is connected.
    ///
    /// # Errors
    /// What the provider says.
    pub fn accept<T>(mut self, depth: Depth) -> Result<Endpoint<T>, Error> {
        // From here on the endpoint has the connection, or nobody.
        self.open = false;
        let mut endpoint = Endpoint::new(&self.passive.domain, &self.info, depth)?;
        endpoint.accept()?;
        Ok(endpoint)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.open {
            // SAFETY: the request came from this listener and was not answered.
            unsafe { ffi::shim_reject(self.passive.handle.get(), self.info.raw()) };
        }
    }
}
