//! Binding a path, and taking the file away again.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use super::SocketError;

/// Longest path a `sockaddr_un` holds, with its final zero.
const MAX_PATH: usize = 107;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;
/// Owner and group may connect.
const MODE: u32 = 0o660;

/// A bound and listening socket.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    file: SocketFile,
}

/// The socket's file, removed when dropped unless another has taken its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl SocketFile {
    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

pub(super) fn check_length(path: &Path) -> Result<(), SocketError> {
    if path.as_os_str().as_bytes().len() > MAX_PATH {
        return Err(SocketError::PathTooLong { path: path.into() });
    }
    Ok(())
}

impl Listener {
    /// Binds the path, with mode 0660, and listens, without blocking.  A socket file that a dead process left behind is
    /// replaced.
    ///
    /// # Errors
    /// The path is in use, is something else, or cannot be bound.
    pub fn bind(path: &Path) -> Result<Listener, SocketError> {
        check_length(path)?;
        let io = |what, source: io::Error| SocketError::Io { what, path: path.into(), source };
        let address = SocketAddrUnix::new(path).map_err(|err| io("use", err.into()))?;
        remove_stale(path, &address)?;

        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|err| io("make a socket for", err.into()))?;
        bind(&socket, &address).map_err(|err| match err {
            Errno::ADDRINUSE => SocketError::InUse { path: path.into() },
            err => io("bind", err.into()),
        })?;
        let meta = fs::symlink_metadata(path).map_err(|err| io("examine", err))?;
        let file = SocketFile { path: path.into(), id: (meta.dev(), meta.ino()) };
        // Nobody can connect before listen: the file is never open to more than it will be.
        fs::set_permissions(path, fs::Permissions::from_mode(MODE))
            .map_err(|err| io("set the mode of", err))?;
        listen(&socket, BACKLOG).map_err(|err| io("listen on", err.into()))?;
        Ok(Listener { listener: UnixListener::from(socket), file })
    }

    /// The socket, and its file to hold on to.
    #[must_use]
    pub fn into_parts(self) -> (UnixListener, SocketFile) {
        (self.listener, self.file)
    }
}

/// Removes a socket file nobody listens on.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), SocketError> {
    let io = |what, source: io::Error| SocketError::Io { what, path: path.into(), source };
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(err) => return Err(io("examine", err)),
    };
    if !meta.file_type().is_socket() {
        return Err(SocketError::NotASocket { path: path.into() });
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|err| io("make a socket for", err.into()))?;
    match connect(&probe, address) {
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::NOENT) => return Ok(()),
        // AGAIN: somebody listens and is slow to accept.
        Ok(()) | Err(Errno::AGAIN) => return Err(SocketError::InUse { path: path.into() }),
        Err(Errno::PROTOTYPE) => return Err(SocketError::NotASocket { path: path.into() }),
        Err(err) => return Err(io("see whether anybody listens on", err.into())),
    }
    match fs::remove_file(path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => {
            Err(io("remove the stale socket", err))
        }
        _ => Ok(()),
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours =
            fs::symlink_metadata(&self.path).is_ok_and(|meta| (meta.dev(), meta.ino()) == self.id);
        if ours {
            // If it cannot be removed now, the next process to bind it finds it stale.
            let _ = fs::remove_file(&self.path);
        }
    }
}
