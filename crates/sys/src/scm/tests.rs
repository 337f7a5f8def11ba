use std::io::{Read, pipe};
use std::os::unix::net::UnixStream;

use super::*;

/// Both ends of a connection, blocking on purpose: nothing here may wait.
fn pair() -> (UnixStream, UnixStream) {
    UnixStream::pair().unwrap()
}

#[test]
fn bytes_and_descriptors() {
    let (a, b) = pair();
    let (reader, writer) = pipe().unwrap();
    assert_eq!(send(&a, b"here", &[reader.as_fd(), writer.as_fd()]).unwrap(), 4);
    drop(reader);
    let mut buf = [0; 16];
    let mut got = recv(&b, &mut buf).unwrap();
    assert_eq!((&buf[..got.len], got.fds.len()), (&b"here"[..], 2));
    for fd in &got.fds {
        assert_eq!(rustix::io::fcntl_getfd(fd).unwrap(), rustix::io::FdFlags::CLOEXEC);
    }
    // They are the ones that were sent, in that order.
    rustix::io::write(got.fds.pop().unwrap(), b"x").unwrap();
    drop(writer);
    let mut text = String::new();
    std::fs::File::from(got.fds.pop().unwrap()).read_to_string(&mut text).unwrap();
    assert_eq!(text, "x");
    send(&a, b"plain", &[]).unwrap();
    let got = recv(&b, &mut buf[..3]).unwrap();
    assert_eq!((got.len, got.fds.len()), (3, 0));
}

#[test]
fn never_waits() {
    let (a, b) = pair();
    let would_block = |e: RecvError| io::Error::from(e).kind() == io::ErrorKind::WouldBlock;
    assert!(recv(&b, &mut [0; 8]).is_err_and(would_block));
    let block = [7; 4096];
    let mut sent = 0;
    let error = loop {
        match send(&a, &block, &[]) {
            Ok(n) => sent += n,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    let mut received = 0;
    let mut buf = [0; 5000];
    while let Ok(got) = recv(&b, &mut buf) {
        received += got.len;
    }
    assert_eq!(sent, received);
}

#[test]
fn the_other_side_has_gone() {
    let (a, b) = pair();
    drop(b);
    assert_eq!(recv(&a, &mut [0; 8]).unwrap().len, 0);
    // And no SIGPIPE: that would end this process.
    assert_eq!(send(&a, b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn as_many_as_allowed() {
    let (a, b) = pair();
    let (reader, _writer) = pipe().unwrap();
    let most = [reader.as_fd(); MAX_FDS];
    send(&a, b"x", &most).unwrap();
    assert_eq!(recv(&b, &mut [0; 8]).unwrap().fds.len(), MAX_FDS);
    let more = [reader.as_fd(); MAX_FDS + 1];
    assert_eq!(send(&a, b"x", &more).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(send(&a, b"", &most).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn too_many_are_refused_and_closed() {
    let (a, b) = pair();
    let (mut reader, writer) = pipe().unwrap();
    for more in [1, 2, 8] {
        let many = vec![writer.as_fd(); MAX_FDS + more];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS + 8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        sendmsg(&a, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
        assert!(matches!(recv(&b, &mut [0; 8]), Err(RecvError::TooManyDescriptors)));
    }
    drop(writer);
    // All writing ends are closed, or this would wait for ever.
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}
