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
use tracing::{debug, warn};

use super::Door;
use super::changes::Changes;
use super::outbox::Outbox;
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
    let mut connection = Connection {
        stream,
        unsent: Outbox::default(),
        session: Session::new(spec.clone()),
        changes: Changes::new(device.changes()),
        device,
    };
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
    unsent: Outbox,
    session: Session,
    changes: Changes,
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
                sent = self.unsent.flush(&self.stream), if !self.unsent.is_empty() => {
                    sent.map_err(SessionEnd::Lost)?;
                }
                done = receive(&self.stream, &mut self.session), if self.unsent.is_empty() => done?,
                err = self.changes.tell(), if self.session.tells_changes() => {
                    debug!("changes of the configuration space cannot be told: {err}");
                }
                () = door.meet(&self.stream) => {}
            }
        }
    }

    async fn carry_out(&mut self, action: Action, door: &mut Door) -> Result<(), SessionEnd> {
        match action {
            Action::Send(bytes, fd) => self.unsent.put(bytes, fd),
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
            Action::MakeInflight { size } => {
                self.session.inflight_made(sys::memfd("inflight", size, false));
            }
            Action::ReadConfig => self.session.config_read(&self.device.config()),
            Action::WriteConfig { offset, bytes } => {
                let written = self.device.write_config(offset, &bytes).await;
                self.session.config_written(written);
            }
            Action::Backend(socket) => {
                if let Err(err) = self.changes.set_socket(socket) {
                    let lost = "changes of the configuration space cannot be told";
                    door.log(|path| warn!(socket = %path.display(), "{lost}: {err}"));
                }
            }
            Action::Features(features) => self.device.features(features),
            Action::Mtu(mtu) => self.device.set_mtu(mtu),
            Action::Rarp(mac) => self.device.rarp(mac),
            Action::Refused(fault) => door.log(|path| {
                warn!(socket = %path.display(), fault = fault.name(), "refused: {fault}");
            }),
            Action::Close(fault) => {
                // The front end may want to know what came before; it need not wait for it.
                let _ = self.unsent.send(&self.stream);
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
            debug!(queue, "the error eventfd cannot be signalled: {err}");
        }
    }
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
