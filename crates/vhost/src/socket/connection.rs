//! One session: the socket on one side, the device on the other, a [`Session`] between them.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use guestmem::GuestMemory;
use sys::scm::{self, RecvError};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tracing::warn;

use super::Door;
use crate::{Action, Device, DeviceSpec, Session, SessionEnd};

/// Most bytes read at once: more than any message but the largest.
const CHUNK: usize = 4096;

/// Serves one front end.  When this returns all queues have been stopped and the connection is closed.
pub(super) async fn run<D: Device>(
    stream: UnixStream,
    spec: &DeviceSpec,
    device: &mut D,
    door: &mut Door,
    stop: Pin<&mut (impl Future<Output = ()> + Send)>,
) -> SessionEnd {
    let mut connection =
        Connection { stream, unsent: Vec::new(), session: Session::new(spec.clone()), device };
    connection.device.connected();
    let Err(end) = connection.converse(door, stop).await;
    let running: Vec<u16> = connection.session.running().collect();
    for queue in running {
        connection.device.stop(queue).await;
    }
    connection.signal_error(&end);
    end
}

struct Connection<'d, D> {
    stream: UnixStream,
    /// Replies the socket has not taken yet.  Nothing is read before they are gone.
    unsent: Vec<u8>,
    session: Session,
    device: &'d mut D,
}

impl<D: Device> Connection<'_, D> {
    /// Goes on until there is a reason to end.
    async fn converse(
        &mut self,
        door: &mut Door,
        mut stop: Pin<&mut (impl Future<Output = ()> + Send)>,
    ) -> Result<Infallible, SessionEnd> {
        loop {
            while let Some(action) = self.session.poll() {
                self.carry_out(action, door).await?;
            }
            tokio::select! {
                biased;
                () = stop.as_mut() => return Err(SessionEnd::Stopped),
                fault = self.device.fault() => return Err(fault.into()),
                done = flush(&self.stream, &mut self.unsent), if !self.unsent.is_empty() => done?,
                done = receive(&self.stream, &mut self.session), if self.unsent.is_empty() => done?,
                () = door.meet(&self.stream) => {}
            }
        }
    }

    async fn carry_out(&mut self, action: Action, door: &mut Door) -> Result<(), SessionEnd> {
        match action {
            Action::Send(bytes) => self.unsent.extend_from_slice(&bytes),
            Action::Map(regions) => self.session.mapped(GuestMemory::map(&regions).map(Arc::new)),
            Action::Start(setup) => {
                let queue = setup.index;
                if let Err(fault) = self.device.start(setup) {
                    self.session.not_started(queue);
                    return Err(fault.into());
                }
            }
            Action::Stop { queue } => {
                let base = self.device.stop(queue).await;
                self.session.stopped(queue, base);
            }
            Action::Forget { queue } => self.device.forget(queue),
            Action::SetCall { queue, call } => self.device.set_call(queue, call),
            Action::SetEnabled { queue, on } => self.device.set_enabled(queue, on),
            Action::Features(features) => self.device.features(features),
            Action::Mtu(mtu) => self.device.set_mtu(mtu),
            Action::Rarp(mac) => self.device.rarp(mac),
            Action::Refused(fault) => door.log(|path| {
                warn!(socket = %path.display(), fault = fault.name(), "refused: {fault}");
            }),
            Action::Close(fault) => {
                // The front end may want to know what came before; it need not wait for it.
                let _ = send(&self.stream, &mut self.unsent);
                return Err(fault.into());
            }
        }
        Ok(())
    }

    /// Tells the guest's side which ring went wrong.
    fn signal_error(&self, end: &SessionEnd) {
        if let SessionEnd::Device(fault) = end
            && let Some(queue) = fault.queue
            && let Some(fd) = self.session.error_fd(queue)
            && let Err(err) = fd.signal()
        {
            tracing::debug!(queue, "the error eventfd cannot be signalled: {err}");
        }
    }
}

/// Sends what is to be sent.  Nothing is lost if this future is dropped.
async fn flush(stream: &UnixStream, unsent: &mut Vec<u8>) -> Result<(), SessionEnd> {
    stream.writable().await.map_err(SessionEnd::Lost)?;
    match stream.try_io(Interest::WRITABLE, || send(stream, unsent)) {
        Err(err) if err.kind() != io::ErrorKind::WouldBlock => Err(SessionEnd::Lost(err)),
        _ => Ok(()),
    }
}

fn send(stream: &UnixStream, unsent: &mut Vec<u8>) -> io::Result<()> {
    let sent = scm::send(stream, unsent, &[])?;
    unsent.drain(..sent);
    Ok(())
}

/// Receives what the session wants, or part of it.  Nothing is lost if this future is dropped.
async fn receive(stream: &UnixStream, session: &mut Session) -> Result<(), SessionEnd> {
    stream.readable().await.map_err(SessionEnd::Lost)?;
    let mut chunk = [0; CHUNK];
    let wanted = session.wanted().min(CHUNK);
    let mut lost = false;
    let received = stream.try_io(Interest::READABLE, || {
        let Some(buffer) = chunk.get_mut(..wanted) else { return Ok(None) };
        match scm::recv(stream, buffer) {
            Ok(received) => Ok(Some(received)),
            Err(RecvError::Io(err)) => Err(err),
            Err(_) => {
                lost = true;
                Ok(None)
            }
        }
    });
    match received {
        Ok(Some(received)) if received.len == 0 => Err(hang_up(session)),
        Ok(Some(received)) => {
            session.input(chunk.get(..received.len).unwrap_or(&[]), received.fds);
            Ok(())
        }
        Ok(None) => {
            if lost {
                session.descriptors_lost();
            }
            Ok(())
        }
        Err(err) if err.kind() == io::ErrorKind::WouldBlock => Ok(()),
        // A front end that was killed with replies unread: it is as gone as one that closed.
        Err(err) if err.kind() == io::ErrorKind::ConnectionReset => Err(hang_up(session)),
        Err(err) => Err(SessionEnd::Lost(err)),
    }
}

fn hang_up(session: &Session) -> SessionEnd {
    if session.is_mid_message() {
        SessionEnd::Lost(io::Error::from(io::ErrorKind::UnexpectedEof))
    } else {
        SessionEnd::Closed
    }
}
