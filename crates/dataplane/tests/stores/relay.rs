//! A wire between a disk and its store that can be cut, held, and mended.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// What happens to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// They pass.
    Open,
    /// They wait: nobody is told.
    Held,
    /// Connections are refused.
    Refusing,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Both ends of every connection.
    ends: Mutex<Vec<TcpStream>>,
    to: Mutex<SocketAddr>,
}

/// The wire.
pub(crate) struct Relay {
    shared: Arc<Shared>,
    pub(crate) address: SocketAddr,
}

impl Relay {
    pub(crate) fn new(to: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            state: Mutex::new(State::Open),
            changed: Condvar::new(),
            ends: Mutex::default(),
            to: Mutex::new(to),
        });
        let accepting = Arc::clone(&shared);
        // It ends with the test.
        thread::spawn(move || {
            for near in listener.incoming() {
                let Ok(near) = near else { continue };
                let shared = Arc::clone(&accepting);
                thread::spawn(move || shared.carry(near));
            }
        });
        Relay { shared, address }
    }

    pub(crate) fn set(&self, state: State) {
        *self.shared.state.lock().unwrap() = state;
        self.shared.changed.notify_all();
    }

    /// Leads to another store from the next connection on.
    pub(crate) fn lead(&self, to: SocketAddr) {
        *self.shared.to.lock().unwrap() = to;
    }

    /// Ends all connections there are, at both ends; what is on its way is lost.
    pub(crate) fn cut(&self) {
        for end in self.shared.ends.lock().unwrap().drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// Ends the connections at the disk's side only: the store does not notice, and what it was sent
    /// before passes when the wire is open again.
    pub(crate) fn cut_near(&self) {
        for pair in self.shared.ends.lock().unwrap().chunks(2) {
            if let [near, _] = pair {
                let _ = near.shutdown(Shutdown::Both);
            }
        }
    }
}

impl Shared {
    /// Waits while bytes are held; whether they pass then.
    fn passes(&self) -> bool {
        let state = self.state.lock().unwrap();
        let state = self.changed.wait_while(state, |state| *state == State::Held).unwrap();
        *state == State::Open
    }

    fn carry(self: Arc<Shared>, near: TcpStream) {
        if *self.state.lock().unwrap() == State::Refusing {
            return;
        }
        let Ok(far) = TcpStream::connect(*self.to.lock().unwrap()) else { return };
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let ends = [near.try_clone().unwrap(), far.try_clone().unwrap()];
        self.ends.lock().unwrap().extend(ends);
        let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
        let answers = Arc::clone(&self);
        thread::spawn(move || answers.pump(back.0, back.1));
        self.pump(near, far);
    }

    /// One direction. What has been read passes even if its sender is gone by then.
    fn pump(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if !self.passes() || to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        self.passes();
        let _ = to.shutdown(Shutdown::Write);
    }
}
