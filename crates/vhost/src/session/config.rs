//! The configuration space, which is the device's, and the socket on which its changes are told.

use std::mem;
use std::os::fd::OwnedFd;

use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType, getpeername};
use vhost::vhost_user::message::{FrontendReq, VhostUserProtocolFeatures as Protocol};

use super::handle::Handled;
use super::{Action, Pending, Session, Work};
use crate::SessionFault;
use crate::device::ConfigRefused;
use crate::message::{ConfigRange, MAX_CONFIG, reply};

/// Flags of SET_CONFIG: the guest wrote (0), or a migration brings what it wrote elsewhere.
const MIGRATION: u32 = 1;

impl Session {
    /// GET_CONFIG.  Bytes behind the end of the space this device has read as zero: front ends ask for as much as the
    /// structure they were compiled with.
    pub(super) fn get_config(&mut self, pending: Pending, range: ConfigRange) -> Handled {
        self.need(pending.request, Protocol::CONFIG)?;
        check(range, MAX_CONFIG)?;
        self.out.push_back(Action::ReadConfig);
        self.work = Work::ReadingConfig { pending, range };
        Ok(())
    }

    /// Answers [`Action::ReadConfig`] with all of the configuration space.  Ignored if none is outstanding.
    pub fn config_read(&mut self, config: &[u8]) {
        match mem::take(&mut self.work) {
            Work::ReadingConfig { pending, range } => {
                let mut body = range.bytes();
                let known = config.iter().take(self.spec.config_size.into()).copied();
                let bytes = known.chain(std::iter::repeat(0));
                body.extend(bytes.skip(range.offset as usize).take(range.size as usize));
                self.send(reply(pending.request.into(), &body));
            }
            other => self.work = other,
        }
    }

    /// SET_CONFIG.  What a migration brings is judged like what the guest writes: all else is this device's to know.
    pub(super) fn set_config(
        &mut self,
        pending: Pending,
        range: ConfigRange,
        bytes: Vec<u8>,
    ) -> Handled {
        self.need(pending.request, Protocol::CONFIG)?;
        check(range, self.spec.config_size.into())?;
        let ConfigRange { offset, size, flags } = range;
        if bytes.len() != size as usize {
            return Err(SessionFault::BadConfig { offset, size });
        }
        if flags & !MIGRATION != 0 {
            return Err(SessionFault::BadConfigFlags { flags });
        }
        self.out.push_back(Action::WriteConfig { offset, bytes });
        self.work = Work::WritingConfig { pending };
        Ok(())
    }

    /// Answers [`Action::WriteConfig`].  Ignored if none is outstanding.
    pub fn config_written(&mut self, result: Result<(), ConfigRefused>) {
        match mem::take(&mut self.work) {
            Work::WritingConfig { pending } => self.conclude(pending, result.map_err(Into::into)),
            other => self.work = other,
        }
    }

    /// SET_BACKEND_REQ_FD.
    pub(super) fn set_backend_fd(&mut self, fd: OwnedFd) -> Handled {
        self.need(FrontendReq::SET_BACKEND_REQ_FD, Protocol::BACKEND_REQ)?;
        let stream = socket_domain(&fd).is_ok_and(|domain| domain == AddressFamily::UNIX)
            && socket_type(&fd).is_ok_and(|kind| kind == SocketType::STREAM)
            && getpeername(&fd).is_ok();
        if !stream {
            return Err(SessionFault::NotASocket);
        }
        self.out.push_back(Action::Backend(fd.into()));
        Ok(())
    }

    /// Whether the front end is to be told of changes of the configuration space now: it wants to know of them, and a
    /// queue runs.  QEMU passes over what it is told earlier, and its older versions do not survive it.
    #[must_use]
    pub fn tells_changes(&self) -> bool {
        let wanted = self.negotiated(Protocol::CONFIG) && self.negotiated(Protocol::BACKEND_REQ);
        wanted && self.running().next().is_some()
    }
}

/// Whether these bytes, at least one, are among the first `end`.
fn check(range: ConfigRange, end: u32) -> Handled {
    let ConfigRange { offset, size, .. } = range;
    let inside = offset.checked_add(size).is_some_and(|last| size > 0 && last <= end);
    if inside { Ok(()) } else { Err(SessionFault::BadConfig { offset, size }) }
}
