//! What is said to a store before requests are, waiting for each answer.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use remote::VERSION;
use remote::control::{self, ImageName, Listed, Opened, ToClient, ToStore};
use remote::frame::{self, Item};
use rustix::net::sockopt;

use crate::wire::Wire;
use crate::{Error, Known};

/// How long a store may take to accept a connection, and for each answer.
const CONNECT: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(5);
/// How often somebody who waits looks whether it still has to.
const LOOK: Duration = Duration::from_millis(100);
/// A peer whose machine is gone is given up after so long without a sign of it.
const DEAD: Duration = Duration::from_secs(20);
/// Signs that are asked for meanwhile.
const PROBES: u32 = 3;

/// A connection on which an image is open.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) wire: Wire,
    pub(crate) opened: Opened,
    /// Which start of the store's machine it is.
    pub(crate) boot: String,
    /// Where it leads.
    pub(crate) address: String,
}

/// Nobody says so.
pub(crate) static GO_ON: AtomicBool = AtomicBool::new(false);

/// Opens an image at the first address that answers, unless `give_up` is set meanwhile.
pub(crate) fn open(
    store: &Known,
    image: &ImageName,
    write: bool,
    give_up: &AtomicBool,
) -> Result<Connected, Error> {
    first(store, give_up, |talk| {
        let session = store.session;
        talk.say(&ToStore::Open {
            image: image.clone(),
            write,
            session,
            fence: false,
            in_place: false,
            fabrics: Vec::new(),
        })?;
        match talk.hear()? {
            ToClient::Opened(opened) => {
                let opened = opened.checked().map_err(|what| talk.strange(what))?;
                let (boot, address) = (talk.boot.clone(), talk.address.to_owned());
                Ok(Connected { wire: talk.wire()?, opened, boot, address })
            }
            _ => Err(talk.strange("its answer is none")),
        }
    })
}

/// The images of the store at the first address that answers.
pub(crate) fn list(store: &Known) -> Result<Vec<Listed>, Error> {
    first(store, &GO_ON, |talk| {
        talk.say(&ToStore::List)?;
        match talk.hear()? {
            ToClient::Images { images } => Ok(images),
            _ => Err(talk.strange("its answer is none")),
        }
    })
}

/// Whether a store answers at one of the addresses.
pub(crate) fn greet(store: &Known) -> Result<(), Error> {
    first(store, &GO_ON, |_| Ok(()))
}

/// Does something at the first address where it succeeds.
fn first<T>(
    store: &Known,
    give_up: &AtomicBool,
    mut then: impl FnMut(&mut Talk<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut error = Error::NoAddress;
    for address in &store.addresses {
        if give_up.load(Relaxed) {
            return Err(Error::Closed);
        }
        match Talk::begin(address, &store.client, give_up).and_then(|mut talk| then(&mut talk)) {
            Ok(done) => return Ok(done),
            Err(why) => error = why,
        }
    }
    Err(error)
}

/// A connection on which messages are exchanged.
struct Talk<'a> {
    stream: TcpStream,
    arrived: Vec<u8>,
    address: &'a str,
    boot: String,
    give_up: &'a AtomicBool,
}

impl<'a> Talk<'a> {
    /// Connects and says hello.
    fn begin(address: &'a str, client: &str, give_up: &'a AtomicBool) -> Result<Talk<'a>, Error> {
        let stream = connect(address)
            .map_err(|source| Error::Connect { address: address.to_owned(), source })?;
        let (arrived, boot) = (Vec::new(), String::new());
        let mut talk = Talk { stream, arrived, address, boot, give_up };
        talk.say(&ToStore::Hello { version: VERSION, client: client.to_owned() })?;
        match talk.hear()? {
            ToClient::Welcome { version: VERSION, boot, .. } => talk.boot = boot,
            _ => return Err(talk.strange("its welcome is none")),
        }
        Ok(talk)
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Connect { address: self.address.to_owned(), source }
    }

    fn strange(&self, what: impl Into<String>) -> Error {
        Error::Protocol { address: self.address.to_owned(), what: what.into() }
    }

    fn say(&mut self, message: &ToStore) -> Result<(), Error> {
        let mut bytes = Vec::new();
        frame::control(&mut bytes, &control::encode(message));
        self.stream.write_all(&bytes).map_err(|source| self.failed(source))
    }

    /// Waits for a message that is no refusal.
    fn hear(&mut self) -> Result<ToClient, Error> {
        let until = Instant::now() + ANSWER;
        loop {
            let parsed = frame::parse(&self.arrived).map_err(|e| self.strange(e.to_string()))?;
            match parsed {
                Some((Item::Control(json), used)) => {
                    let message = control::decode(json).map_err(|what| self.strange(what))?;
                    self.arrived.drain(..used);
                    return match message {
                        ToClient::Refused(source) => {
                            Err(Error::Refused { address: self.address.to_owned(), source })
                        }
                        message => Ok(message),
                    };
                }
                Some(_) => return Err(self.strange("a message was expected")),
                None => {}
            }
            // A message is limited, and so is what is kept of one.
            let mut some = [0; 4096];
            match self.stream.read(&mut some) {
                Ok(0) => return Err(self.failed(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.arrived.extend_from_slice(some.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.give_up.load(Relaxed) {
                        return Err(Error::Closed);
                    }
                    if Instant::now() >= until {
                        return Err(self.failed(io::ErrorKind::TimedOut.into()));
                    }
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// The connection, for requests.
    fn wire(&mut self) -> Result<Wire, Error> {
        let stream = self.stream.try_clone().and_then(|stream| {
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        let stream = stream.map_err(|source| self.failed(source))?;
        Ok(Wire::new(stream, &std::mem::take(&mut self.arrived)))
    }
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for place in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&place, CONNECT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(LOOK))?;
                stream.set_write_timeout(Some(ANSWER))?;
                sockopt::set_socket_keepalive(&stream, true)?;
                sockopt::set_tcp_keepidle(&stream, DEAD / (PROBES + 1))?;
                sockopt::set_tcp_keepintvl(&stream, DEAD / (PROBES + 1))?;
                sockopt::set_tcp_keepcnt(&stream, PROBES)?;
                sockopt::set_tcp_user_timeout(&stream, DEAD.as_millis() as u32)?;
                return Ok(stream);
            }
            Err(why) => error = why,
        }
    }
    Err(error)
}
