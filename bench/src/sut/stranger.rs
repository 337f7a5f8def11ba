//! A router VM of somebody else that misbehaves on its guest channel, as fast as it can.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};

use super::SutError;
use crate::cell::Mischief;

/// Longest line of the channel, bytes.
const LINE: usize = 65_536;

/// Whoever does it; ends when dropped.
pub(super) struct Stranger {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stranger {
    /// Begins, on this CPU, with everything that is not the switch's worker.
    pub(super) fn start(
        mischief: Mischief,
        channel: PathBuf,
        cpu: usize,
    ) -> Result<Stranger, SutError> {
        // Whether it gets as far as that is to be known before anything is measured.
        let session = Session::begin(&channel);
        let session = session.map_err(SutError::io("the misbehaving router's session"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = move || {
            // Beside the worker it would show as windows that do not count.
            let _ = sys::affinity::pin_current_thread(cpu);
            // The daemon may end first.
            let _ = match mischief {
                Mischief::Refused => refused(session, &stopped),
                Mischief::Changes => changes(session, &stopped),
                Mischief::Halves => halves(&channel, &stopped),
            };
        };
        let thread = thread::Builder::new().name("stranger".to_owned()).spawn(work);
        let thread = thread.map_err(SutError::io("a thread"))?;
        Ok(Stranger { stop, thread: Some(thread) })
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been shown.
            let _ = thread.join();
        }
    }
}

/// A connection to the channel.
struct Session {
    stream: BufReader<UnixStream>,
}

impl Session {
    /// Delegates a prefix that leads from one of its cards to the other.
    fn begin(channel: &Path) -> io::Result<Session> {
        let mut session = Session { stream: BufReader::new(UnixStream::connect(channel)?) };
        let hello = json!({"protocol": 1, "agent": "stranger 1.0", "lease_ms": 60_000});
        let hello = session.ask("hello", &hello)?;
        let cards = hello["ports"].as_array().into_iter().flatten().enumerate();
        let interface = |(n, card): (usize, &Value)| json!({"id": n + 1, "name": "eth", "mac": card["mac"], "mtu": 1500});
        let interfaces: Vec<Value> = cards.map(interface).collect();
        session.ask("router.interfaces", &json!({"interfaces": interfaces}))?;
        session.ask("router.nexthops", &hop(0))?;
        let routes = json!({"set": [{"nexthop": 1, "prefixes": ["198.51.100.0/24"]}]});
        session.ask("router.routes", &routes)?;
        Ok(session)
    }

    /// The result of a request; a refusal is an error.
    fn ask(&mut self, method: &str, params: &Value) -> io::Result<Value> {
        let line = request(method, params);
        self.stream.get_mut().write_all(line.as_bytes())?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer)?;
        let mut answer: Value = serde_json::from_str(&answer).map_err(io::Error::other)?;
        match answer.get_mut("result") {
            Some(result) => Ok(result.take()),
            None => Err(io::Error::other(answer.to_string())),
        }
    }
}

fn request(method: &str, params: &Value) -> String {
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    format!("{request}\n")
}

/// Next hop 1, at one of two addresses.
fn hop(which: u8) -> Value {
    let mac = format!("02:fd:00:00:00:0{}", which % 2);
    json!({"set": [{"id": 1, "to": {"via": [{"interface": 2, "mac": mac}]}}]})
}

/// Requests that are refused after they were read, as many as go, without waiting for answers.
fn refused(session: Session, stop: &AtomicBool) -> io::Result<()> {
    let Session { mut stream } = session;
    let routes = json!({"set": [{"nexthop": 9, "prefixes": ["198.51.100.0/24"]}]});
    let lines = request("router.routes", &routes).repeat(256);
    let to = stream.get_ref().try_clone()?;
    to.set_nonblocking(true)?;
    let mut left = lines.as_bytes();
    while !stop.load(Ordering::Relaxed) {
        match (&to).write(left) {
            Ok(taken) => {
                left =
                    left.get(taken..).filter(|rest| !rest.is_empty()).unwrap_or(lines.as_bytes());
            }
            Err(full) if full.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        match stream.fill_buf().map(<[u8]>::len) {
            Ok(0) => return Ok(()),
            Ok(some) => stream.consume(some),
            Err(none) if none.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A next hop that changes with each request.
fn changes(mut session: Session, stop: &AtomicBool) -> io::Result<()> {
    let mut which = 0;
    while !stop.load(Ordering::Relaxed) {
        which ^= 1;
        session.ask("router.nexthops", &hop(which))?;
    }
    Ok(())
}

/// Connections that end in the middle of a message.
fn halves(channel: &Path, stop: &AtomicBool) -> io::Result<()> {
    let half = "x".repeat(LINE - 1);
    while !stop.load(Ordering::Relaxed) {
        let mut stream = UnixStream::connect(channel)?;
        // It may be hung up before it said all.
        let _ = stream.write_all(half.as_bytes());
    }
    Ok(())
}
