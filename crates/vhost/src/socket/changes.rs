//! Changes of the configuration space, told to the front end on a socket it has given for that.
//!
//! **Failure.** A front end that does not read is waited for, and meanwhile many changes become one.  A socket that fails
//! is given up: whoever closes it does not want to know.  What could not be told is left for another socket, or for the
//! next session.

use std::future::pending;
use std::io;
use std::os::unix::net;
use std::sync::Arc;

use tokio::net::UnixStream;
use tokio::sync::Notify;

use super::outbox::Outbox;
use crate::message::config_change;

/// Tells a front end what the device says.
pub(super) struct Changes {
    /// Notified by the device.
    notify: Option<Arc<Notify>>,
    socket: Option<UnixStream>,
    /// At most one message.
    unsent: Outbox,
}

impl Changes {
    pub(super) fn new(notify: Option<Arc<Notify>>) -> Changes {
        Changes { notify, socket: None, unsent: Outbox::default() }
    }

    /// Goes on with another socket.
    pub(super) fn set_socket(&mut self, socket: net::UnixStream) -> io::Result<()> {
        self.give_up();
        socket.set_nonblocking(true)?;
        self.socket = Some(UnixStream::from_std(socket)?);
        Ok(())
    }

    /// Waits for changes and tells them.  Nothing is lost if this future is dropped.  Resolves when the socket has failed
    /// and was given up.
    pub(super) async fn tell(&mut self) -> io::Error {
        let (Some(notify), Some(socket)) = (&self.notify, &self.socket) else {
            return pending().await;
        };
        let err = loop {
            if self.unsent.is_empty() {
                notify.notified().await;
                self.unsent.put(config_change(), None);
            }
            // Without room it stays there.
            if let Err(err) = self.unsent.flush(socket).await {
                break err;
            }
        };
        self.give_up();
        err
    }

    fn give_up(&mut self) {
        if let Some(notify) = &self.notify
            && !self.unsent.is_empty()
        {
            notify.notify_one();
        }
        (self.socket, self.unsent) = (None, Outbox::default());
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.give_up();
    }
}
