//! What is said on a connection before requests are.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use line::{Pipe, Wire};
use remote::control;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ServerConfig};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// Whom the peer has to be, and who this is.
pub(super) enum Known<'c> {
    /// The store of this name.
    Store(&'c Arc<ClientConfig>, ServerName<'static>),
    /// A client.
    Client(&'c Arc<ServerConfig>),
}

/// A connection on which messages are exchanged.
pub(super) struct Talk {
    stream: Stream,
    arrived: Vec<u8>,
    patience: Duration,
}

/// As it is, or encrypted.
enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Why nothing was heard.
#[derive(Debug, thiserror::Error)]
pub(super) enum Silence {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Strange(String),
}

impl Talk {
    /// On this connection; `patience`: how long to wait for each message, and for the peers to know each
    /// other, if they are to.
    pub(super) async fn new(
        stream: TcpStream,
        patience: Duration,
        known: Option<Known<'_>>,
    ) -> io::Result<Talk> {
        line::look_after(&stream)?;
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let stream = match known {
            None => Stream::Plain(stream),
            Some(Known::Store(config, name)) => {
                let connecting = TlsConnector::from(Arc::clone(config)).connect(name, stream);
                Stream::Tls(Box::new(timeout(patience, connecting).await.map_err(late)??.into()))
            }
            Some(Known::Client(config)) => {
                let accepting = TlsAcceptor::from(Arc::clone(config)).accept(stream);
                Stream::Tls(Box::new(timeout(patience, accepting).await.map_err(late)??.into()))
            }
        };
        Ok(Talk { stream, arrived: Vec::new(), patience })
    }

    /// Says something.
    pub(super) async fn say(&mut self, message: &impl Serialize) -> io::Result<()> {
        let bytes = control::framed(message);
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let write = async {
            match &mut self.stream {
                Stream::Plain(stream) => stream.write_all(&bytes).await,
                Stream::Tls(stream) => {
                    stream.write_all(&bytes).await?;
                    stream.flush().await
                }
            }
        };
        timeout(self.patience, write).await.map_err(late)?
    }

    /// The peer's certificate.
    pub(super) fn certificate(&self) -> Option<&CertificateDer<'static>> {
        match &self.stream {
            Stream::Plain(_) => None,
            Stream::Tls(stream) => stream.get_ref().1.peer_certificates()?.first(),
        }
    }

    /// Waits for a message.
    pub(super) async fn hear<M: DeserializeOwned>(&mut self) -> Result<M, Silence> {
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        timeout(self.patience, self.next()).await.map_err(late)?
    }

    async fn next<M: DeserializeOwned>(&mut self) -> Result<M, Silence> {
        loop {
            if let Some(message) = control::take(&mut self.arrived).map_err(Silence::Strange)? {
                return Ok(message);
            }
            let count = match &mut self.stream {
                Stream::Plain(stream) => stream.read_buf(&mut self.arrived).await?,
                Stream::Tls(stream) => stream.read_buf(&mut self.arrived).await?,
            };
            if count == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }

    /// Where it is on this machine.
    pub(super) fn local(&self) -> io::Result<SocketAddr> {
        match &self.stream {
            Stream::Plain(stream) => stream.local_addr(),
            Stream::Tls(stream) => stream.get_ref().0.local_addr(),
        }
    }

    /// Waits until the peer closes, says anything more, or is gone.
    pub(super) async fn closed(&mut self) {
        if self.arrived.is_empty() {
            let _ = match &mut self.stream {
                Stream::Plain(stream) => stream.read_buf(&mut self.arrived).await,
                Stream::Tls(stream) => stream.read_buf(&mut self.arrived).await,
            };
        }
    }

    /// The connection, on which nothing more is said.
    pub(super) fn into_lifeline(self) -> io::Result<std::net::TcpStream> {
        match self.stream {
            Stream::Plain(stream) => stream.into_std(),
            Stream::Tls(stream) => match *stream {
                TlsStream::Client(stream) => stream.into_inner().0.into_std(),
                TlsStream::Server(stream) => stream.into_inner().0.into_std(),
            },
        }
    }

    /// The connection, for requests.
    pub(super) fn into_wire(self) -> io::Result<Wire> {
        // It does not block, and goes on not to.
        let (stream, tls) = match self.stream {
            Stream::Plain(stream) => (stream, None),
            Stream::Tls(stream) => match *stream {
                TlsStream::Client(stream) => {
                    let (stream, tls) = stream.into_inner();
                    (stream, Some(tls.into()))
                }
                TlsStream::Server(stream) => {
                    let (stream, tls) = stream.into_inner();
                    (stream, Some(tls.into()))
                }
            },
        };
        Ok(Wire::new(Pipe::new(stream.into_std()?, tls), &self.arrived))
    }
}
