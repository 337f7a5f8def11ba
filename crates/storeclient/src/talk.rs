//! What is said to a store before requests are, waiting for each answer.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use line::{Pipe, Wire};
use remote::VERSION;
use remote::control::{self, Listed, ToClient, ToStore};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::{Error, Known};

/// How long a store may take to accept a connection, and for each answer.
const CONNECT: Duration = Duration::from_secs(1);
pub(crate) const ANSWER: Duration = Duration::from_secs(5);
/// How often somebody who waits looks whether it still has to.
const LOOK: Duration = Duration::from_millis(100);

/// Nobody says so.
pub(crate) static GO_ON: AtomicBool = AtomicBool::new(false);

/// The images of the store at the first address that answers.
pub(crate) fn list(store: &Known) -> Result<Vec<Listed>, Error> {
    first(store, &GO_ON, |address| {
        let mut talk = Talk::begin(address, store, &GO_ON)?;
        talk.say(&ToStore::List)?;
        match talk.hear()? {
            ToClient::Images { images } => Ok(images),
            _ => Err(talk.strange("its answer is none")),
        }
    })
}

/// Does something at the first address where it succeeds.
pub(crate) fn first<T>(
    store: &Known,
    give_up: &AtomicBool,
    mut then: impl FnMut(&str) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut error = Error::NoAddress;
    for address in &store.addresses {
        if give_up.load(Relaxed) {
            return Err(Error::Closed);
        }
        match then(address) {
            Ok(done) => return Ok(done),
            Err(why) => error = why,
        }
    }
    Err(error)
}

/// A connection on which messages are exchanged.
pub(crate) struct Talk<'a> {
    stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
    arrived: Vec<u8>,
    pub(crate) address: &'a str,
    pub(crate) welcome: Welcome,
    give_up: &'a AtomicBool,
}

/// What a store says of itself.
#[derive(Debug, Default)]
pub(crate) struct Welcome {
    /// Which start of its machine it is.
    pub(crate) boot: String,
    /// Its Unix socket.
    pub(crate) local: Option<std::path::PathBuf>,
}

impl<'a> Talk<'a> {
    /// Connects and says hello.
    pub(crate) fn begin(
        address: &'a str,
        store: &Known,
        give_up: &'a AtomicBool,
    ) -> Result<Talk<'a>, Error> {
        let stream = connect(address)
            .map_err(|source| Error::Connect { address: address.to_owned(), source })?;
        let (arrived, welcome) = (Vec::new(), Welcome::default());
        let mut talk = Talk { stream, tls: None, arrived, address, welcome, give_up };
        if let Some(tls) = &store.tls {
            talk.encrypt(tls)?;
        }
        talk.say(&ToStore::Hello { version: VERSION, client: store.client.clone() })?;
        match talk.hear()? {
            ToClient::Welcome { version: VERSION, boot, local, .. } => {
                talk.welcome = Welcome { boot, local };
            }
            _ => return Err(talk.strange("its welcome is none")),
        }
        Ok(talk)
    }

    /// The store and this program get to know each other.
    fn encrypt(&mut self, config: &Arc<ClientConfig>) -> Result<(), Error> {
        let host = self.address.rsplit_once(':').map_or(self.address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| self.strange(format!("{host}: {error}")))?;
        let tls = ClientConnection::new(Arc::clone(config), name);
        let mut tls = tls.map_err(|error| self.failed(io::Error::other(error)))?;
        let until = Instant::now() + ANSWER;
        while tls.is_handshaking() {
            match tls.complete_io(&mut self.stream) {
                Ok(_) => {}
                Err(error) => self.wait_on(error, until)?,
            }
        }
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    pub(crate) fn failed(&self, source: io::Error) -> Error {
        Error::Connect { address: self.address.to_owned(), source }
    }

    pub(crate) fn strange(&self, what: impl Into<String>) -> Error {
        Error::Protocol { address: self.address.to_owned(), what: what.into() }
    }

    /// Whether this is no error, but nothing came for a moment.
    fn wait_on(&self, error: io::Error, until: Instant) -> Result<(), Error> {
        match error.kind() {
            io::ErrorKind::Interrupted => Ok(()),
            io::ErrorKind::WouldBlock if self.give_up.load(Relaxed) => Err(Error::Closed),
            io::ErrorKind::WouldBlock if Instant::now() < until => Ok(()),
            io::ErrorKind::WouldBlock => Err(self.failed(io::ErrorKind::TimedOut.into())),
            _ => Err(self.failed(error)),
        }
    }

    pub(crate) fn say(&mut self, message: &ToStore) -> Result<(), Error> {
        let bytes = control::framed(message);
        let said = match &mut self.tls {
            None => self.stream.write_all(&bytes),
            Some(tls) => {
                let mut stream = rustls::Stream::new(&mut **tls, &mut self.stream);
                stream.write_all(&bytes).and_then(|()| stream.flush())
            }
        };
        said.map_err(|source| self.failed(source))
    }

    /// Waits for a message that is no refusal.
    pub(crate) fn hear(&mut self) -> Result<ToClient, Error> {
        let until = Instant::now() + ANSWER;
        loop {
            match control::take(&mut self.arrived).map_err(|what| self.strange(what))? {
                Some(ToClient::Refused(source)) => {
                    return Err(Error::Refused { address: self.address.to_owned(), source });
                }
                Some(message) => return Ok(message),
                None => {}
            }
            let mut some = [0; 4096];
            let read = match &mut self.tls {
                None => self.stream.read(&mut some),
                Some(tls) => rustls::Stream::new(&mut **tls, &mut self.stream).read(&mut some),
            };
            match read {
                Ok(0) => return Err(self.failed(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.arrived.extend_from_slice(some.get(..count).unwrap_or_default()),
                Err(error) => self.wait_on(error, until)?,
            }
        }
    }

    /// Where it is on this machine.
    pub(crate) fn local(&self) -> Result<IpAddr, Error> {
        let local = self.stream.local_addr().map_err(|source| self.failed(source))?;
        Ok(local.ip().to_canonical())
    }

    /// The connection, for requests.
    pub(crate) fn into_wire(self) -> io::Result<Wire> {
        self.stream.set_nonblocking(true)?;
        let tls = self.tls.map(|tls| (*tls).into());
        Ok(Wire::new(Pipe::new(self.stream, tls), &self.arrived))
    }

    /// The connection, on which nothing more is said.
    pub(crate) fn into_lifeline(self) -> TcpStream {
        self.stream
    }
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for place in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&place, CONNECT) {
            Ok(stream) => {
                line::look_after(&stream)?;
                stream.set_read_timeout(Some(LOOK))?;
                stream.set_write_timeout(Some(ANSWER))?;
                return Ok(stream);
            }
            Err(why) => error = why,
        }
    }
    Err(error)
}
