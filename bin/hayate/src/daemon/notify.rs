//! Tells the init system how it goes (`sd_notify`): a datagram, if somebody asked for it.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use tracing::warn;

/// Sends `word` to the socket in `NOTIFY_SOCKET`; nothing if there is none.
pub(crate) fn tell(word: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(path.as_bytes(), word) {
        warn!("{word} cannot be sent to {}: {error}", path.display());
    }
}

fn send(path: &[u8], word: &str) -> io::Result<()> {
    let address = match path.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
    };
    UnixDatagram::unbound()?.send_to_addr(word.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reaches_sockets_with_and_without_a_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let named = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str().as_bytes(), "READY=1").unwrap();
        let name = format!("hayate-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let unnamed = UnixDatagram::bind_addr(&address).unwrap();
        send(format!("@{name}").as_bytes(), "STOPPING=1").unwrap();
        let mut buffer = [0; 32];
        for (socket, word) in [(named, "READY=1"), (unnamed, "STOPPING=1")] {
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], word.as_bytes());
        }
        assert!(send(b"/nonexistent/socket", "READY=1").is_err());
    }
}
