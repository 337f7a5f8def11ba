//! Bytes on their way between a socket and memory or a file, without a copy on the way: splice(2).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use guestmem::Segments;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// Pipes of the kernel. What they have are references to pages: of memory, or of what a socket has received.
///
/// Nothing waits.
#[derive(Debug)]
pub struct Conduit {
    /// The first has what came first; those behind [`Conduit::filling`] are empty.
    pipes: Vec<KernelPipe>,
    filling: usize,
}

#[derive(Debug)]
struct KernelPipe {
    from: OwnedFd,
    to: OwnedFd,
    held: usize,
}

impl KernelPipe {
    /// What is asked of the kernel: 256 pages or pieces of them, the most for programs without privileges. Less does too.
    const ROOM: usize = 1 << 20;

    fn new() -> io::Result<KernelPipe> {
        let (from, to) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let _ = fcntl_setpipe_size(&to, Self::ROOM);
        Ok(KernelPipe { from, to, held: 0 })
    }
}

impl Conduit {
    /// Most pipes: a thousand packets of a network card are more than 1 MiB.
    const PIPES: usize = 4;

    /// An empty one.
    ///
    /// # Errors
    /// There are no descriptors.
    pub fn new() -> io::Result<Conduit> {
        Ok(Conduit { pipes: vec![KernelPipe::new()?], filling: 0 })
    }

    /// Bytes in it.
    pub fn held(&self) -> u64 {
        self.pipes.iter().map(|pipe| pipe.held as u64).sum()
    }

    /// Makes room if there is none, and there may be more; whether there is some now.
    pub fn widen(&mut self) -> bool {
        if self.filling + 1 == self.pipes.len()
            && self.pipes.len() < Self::PIPES
            && let Ok(pipe) = KernelPipe::new()
        {
            self.pipes.push(pipe);
        }
        let more = self.filling + 1 < self.pipes.len();
        self.filling += usize::from(more);
        more
    }

    /// Puts in memory, from its beginning on, which stays where it is. Returns how much there was room for, at least a byte.
    ///
    /// # Errors
    /// `WouldBlock`: there is no room. `EFAULT`: the memory has vanished.
    pub fn lend(&mut self, segments: &Segments) -> io::Result<usize> {
        self.fill(|pipe| guestmem::lend(pipe.to.as_fd(), segments))
    }

    /// Puts in a copy of these bytes. Returns how many there was room for, at least one.
    ///
    /// # Errors
    /// `WouldBlock`: there is no room.
    pub fn copy(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.fill(|pipe| Ok(rustix::io::write(&pipe.to, bytes)?))
    }

    /// Puts in what a socket has received, at most so many bytes. 0: the peer has ended.
    ///
    /// # Errors
    /// `WouldBlock`: nothing was received, or there is no room. What the socket reports.
    pub fn receive(&mut self, socket: impl AsFd, most: u64) -> io::Result<usize> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let flags = SpliceFlags::NONBLOCK;
        self.fill(|pipe| Ok(splice(socket, None, &pipe.to, None, most, flags)?))
    }

    /// Sends what is in it. Returns how many bytes the socket took, at least one.
    ///
    /// # Errors
    /// `WouldBlock`: it takes none. What the socket reports.
    pub fn send(&mut self, socket: impl AsFd) -> io::Result<usize> {
        let flags = SpliceFlags::NONBLOCK;
        self.empty(|pipe| Ok(splice(&pipe.from, None, socket, None, pipe.held, flags)?))
    }

    /// Writes what is in it to a file, from that byte on. Returns how much the file took, at least a byte.
    ///
    /// # Errors
    /// Those of the file.
    pub fn store(&mut self, file: &File, mut at: u64) -> io::Result<usize> {
        let (at, flags) = (Some(&mut at), SpliceFlags::empty());
        self.empty(|pipe| Ok(splice(&pipe.from, None, file, at, pipe.held, flags)?))
    }

    /// Copies what is in it to memory, as far as that goes, which is taken off.
    ///
    /// # Errors
    /// `EFAULT`: the memory has vanished.
    pub fn take(&mut self, to: &mut Segments) -> io::Result<()> {
        while self.held() > 0 && !to.is_empty() {
            let taken =
                self.empty(|pipe| guestmem::take(pipe.from.as_fd(), &to.first(pipe.held as u64)))?;
            to.advance(taken as u64);
        }
        Ok(())
    }

    fn fill(&mut self, fill: impl FnOnce(&KernelPipe) -> io::Result<usize>) -> io::Result<usize> {
        let pipe = self.pipes.get_mut(self.filling).ok_or(io::ErrorKind::WouldBlock)?;
        let more = fill(pipe)?;
        pipe.held += more;
        Ok(more)
    }

    fn empty(&mut self, empty: impl FnOnce(&KernelPipe) -> io::Result<usize>) -> io::Result<usize> {
        let first = self.pipes.iter_mut().find(|pipe| pipe.held > 0);
        let pipe = first.ok_or(io::ErrorKind::WouldBlock)?;
        let less = empty(pipe)?;
        pipe.held = pipe.held.saturating_sub(less);
        if self.held() == 0 {
            self.filling = 0;
        }
        Ok(less)
    }
}
