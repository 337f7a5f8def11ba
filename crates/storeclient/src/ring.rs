//! A connection to a store on the same machine: a vhost-user-blk front end, whose device is the store.
//!
//! The image was opened, and the store's Unix socket is connected ([`Post`]). Requests go through a
//! virtqueue in memory that both map, and the store moves data from and to the image's [`Pool`] itself.
//! The driver's side is the crate `virtio-driver`. It trusts its device with its rings; a store is let in
//! only if it is root or this user.
//!
//! [`Pool`]: crate::pool::Pool

#![expect(unsafe_code)]
// UNSAFETY: `virtio-driver` takes buffers as raw pointers. It writes them into descriptors for the store, and
// never follows them.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use guestmem::Segments;
use line::WireError;
use remote::{Operation, Request, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::Shutdown;
use virtio_driver::{
    EventFd, QueueNotifier, VhostUser, VirtioBlkConfig, VirtioBlkFeatureFlags as Blk,
    VirtioBlkQueue, VirtioBlkReqBuf, VirtioBlkTransport, VirtioFeatureFlags as Virtio,
};

use crate::pool::Shown;
use crate::post::{FromPlace, Post, ToPlace};

/// Entries of the queue.
const ENTRIES: u16 = 256;
/// Descriptors of a request, at most: header, data or range, status.
const DESCRIPTORS: u16 = 3;
/// Requests that may be under way.
pub(crate) const REQUESTS: u16 = ENTRIES / DESCRIPTORS;
/// How long the store may take until the queue runs.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection, from the moment on at which requests may be made.
pub(crate) struct Ring {
    // Its memory is the transport's: it goes first.
    queue: VirtioBlkQueue<'static, u64>,
    kick: Box<dyn QueueNotifier>,
    call: Arc<EventFd>,
    _transport: Box<VirtioBlkTransport>,
    /// What the store may reach.
    _shown: Shown,
    post: Post,
    /// Something was heard since this was asked.
    heard: bool,
}

impl Ring {
    /// Has the store serve a queue whose requests are about this memory.
    ///
    /// # Errors
    /// It does not, or not in time.
    pub(crate) fn new(mut post: Post, shown: Shown) -> io::Result<Ring> {
        // `virtio-driver` connects to a path.
        let dir = tempfile::Builder::new().prefix("hayate-").tempdir()?;
        let path = dir.path().join("front");
        let listener = UnixListener::bind(&path)?;
        let (done, setting_up) = mpsc::channel::<()>();
        let (made, handed) = thread::scope(|scope| {
            let post = &mut post;
            let handing = scope.spawn(move || hand_over(&listener, post, &setting_up));
            let made = set_up(&path, &shown);
            drop(done);
            let failed = |_| Err(io::Error::other("the thread that hands over failed"));
            (made, handing.join().unwrap_or_else(failed))
        });
        handed?;
        let (transport, queue) = made?;
        let (kick, call) = (transport.get_submission_notifier(0), transport.get_completion_fd(0));
        Ok(Ring { queue, kick, call, _transport: transport, _shown: shown, post, heard: true })
    }

    /// Makes a request; [`Ring::kick`] tells the store.
    pub(crate) fn push(
        &mut self,
        tag: u64,
        request: &Request,
        data: Option<&Segments>,
    ) -> Result<(), WireError> {
        let Request { operation, offset, length, unmap, .. } = *request;
        let piece = data.and_then(|data| data.pieces().first());
        let pushed = match (operation, piece) {
            // SAFETY: the piece is of memory that `_shown` keeps mapped, and nothing here follows it.
            (Operation::Read, Some(piece)) => unsafe {
                self.queue.read_raw(offset, piece.base, piece.len, tag)
            },
            // SAFETY: as above.
            (Operation::Write, Some(piece)) => unsafe {
                self.queue.write_raw(offset, piece.base, piece.len, tag)
            },
            (Operation::Flush, _) => self.queue.flush(tag),
            (Operation::Discard, _) => self.queue.discard(offset, length, tag),
            (Operation::WriteZeroes, _) => self.queue.write_zeroes(offset, length, unmap, tag),
            (Operation::Read | Operation::Write, None) => {
                return Err(WireError::Unexpected("a request without memory"));
            }
        };
        pushed.map_err(WireError::Io)
    }

    /// Tells the store of what is new, if it wants to know.
    pub(crate) fn kick(&mut self) -> Result<(), WireError> {
        if self.queue.avail_notif_needed() {
            self.kick.notify().map_err(WireError::Io)?;
        }
        Ok(())
    }

    /// Takes what was answered.
    pub(crate) fn answers(&mut self, mut each: impl FnMut(u64, Status)) {
        for completion in self.queue.completions() {
            let status = match -completion.ret {
                0 => Status::Ok,
                code if code == Errno::NOTSUP.raw_os_error() => Status::Unsupported,
                _ => Status::Failed,
            };
            each(completion.context, status);
            self.heard = true;
        }
    }

    /// Forgets what woke this thread up, and hears what the store says beside its answers.
    pub(crate) fn woken(&mut self, called: bool) -> Result<(), WireError> {
        if called {
            self.call.read().map_err(WireError::Io)?;
        }
        while let Some(said) = self.post.next().map_err(lost)? {
            self.heard = true;
            match said {
                FromPlace::Status(_) | FromPlace::CacheMode { .. } => {}
                FromPlace::Left { why, .. } => return Err(WireError::Io(io::Error::other(why))),
                FromPlace::Placed | FromPlace::Refused(_) => {
                    return Err(WireError::Unexpected("what it says makes no sense"));
                }
            }
        }
        Ok(())
    }

    /// Asks for a sign.
    pub(crate) fn ping(&mut self) -> Result<(), WireError> {
        self.post.say(&ToPlace::Status, None).map_err(WireError::Io)
    }

    /// Whether anything was heard since this was asked.
    pub(crate) fn heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    /// What is signalled when there are answers.
    pub(crate) fn call(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// What becomes readable when the store says something else, or has gone.
    pub(crate) fn post(&self) -> BorrowedFd<'_> {
        self.post.as_fd()
    }
}

fn lost(error: io::Error) -> WireError {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        WireError::Closed
    } else {
        WireError::Io(error)
    }
}

/// Meets the front end and hands it over. A store that hangs is left, by hanging up on the front end.
fn hand_over(
    listener: &UnixListener,
    post: &mut Post,
    setting_up: &mpsc::Receiver<()>,
) -> io::Result<()> {
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    if poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&patience))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let (theirs, _) = listener.accept()?;
    let said = post.say(&ToPlace::FrontEnd, Some(theirs.as_fd()));
    let late =
        said.is_ok() && setting_up.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout);
    if said.is_err() || late {
        // The store has a descriptor of it, too.
        rustix::net::shutdown(&theirs, Shutdown::Both)?;
    }
    if late { Err(io::ErrorKind::TimedOut.into()) } else { said }
}

/// What runs: memory is shown, and the queue is started.
type Running = (Box<VirtioBlkTransport>, VirtioBlkQueue<'static, u64>);

fn set_up(path: &Path, shown: &Shown) -> io::Result<Running> {
    let path = path.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
    let features = (Virtio::VERSION_1 | Virtio::RING_EVENT_IDX).bits()
        | (Blk::FLUSH | Blk::BLK_SIZE | Blk::SEG_MAX | Blk::RO | Blk::DISCARD | Blk::WRITE_ZEROES)
            .bits();
    let transport = VhostUser::<VirtioBlkConfig, VirtioBlkReqBuf>::new(path, features)?;
    let mut transport: Box<VirtioBlkTransport> = Box::new(transport);
    for window in shown.memory.windows() {
        let file = shown.as_fd().as_raw_fd();
        transport.map_mem_region(window.base.addr(), window.len, file, 0)?;
    }
    let queues = VirtioBlkQueue::setup_queues(&mut *transport, 1, ENTRIES)?;
    let mut queue = queues.into_iter().next().ok_or(io::ErrorKind::NotFound)?;
    queue.set_used_notif_enabled(true);
    Ok((transport, queue))
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").finish_non_exhaustive()
    }
}
