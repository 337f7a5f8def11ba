use std::fs::File;
use std::io::pipe;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

fn readable(event: &EventFd) -> bool {
    let mut fds = [PollFd::new(event, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

#[test]
fn counts_and_drains() {
    let event = EventFd::new().unwrap();
    assert!(!event.drain() && !readable(&event));
    event.signal().unwrap();
    event.signal().unwrap();
    assert!(readable(&event));
    assert!(event.drain());
    assert!(!event.drain() && !readable(&event));
}

#[test]
fn full_is_as_good_as_one_more() {
    let event = EventFd::new().unwrap();
    rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    event.signal().unwrap();
    assert!(event.drain() && !event.drain());
}

/// The front end may send a blocking one, and may make it blocking again.
#[test]
fn of_another_process() {
    let theirs = eventfd(0, EventfdFlags::empty()).unwrap();
    let ours = EventFd::from_fd(theirs.try_clone().unwrap()).unwrap();
    assert!(fcntl_getfl(&theirs).unwrap().contains(OFlags::NONBLOCK));
    assert_eq!(rustix::io::fcntl_getfd(&ours).unwrap(), FdFlags::CLOEXEC);
    rustix::io::write(&theirs, &5_u64.to_ne_bytes()).unwrap();
    assert!(ours.drain());
    fcntl_setfl(&theirs, OFlags::empty()).unwrap();
    assert!(!ours.drain());
    ours.signal().unwrap();
    assert!(ours.drain());
}

#[test]
fn only_event_counters() {
    let (reader, writer) = pipe().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("anon_inode:[eventfd]");
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
    let others: [OwnedFd; 7] = [
        reader.into(),
        writer.into(),
        File::create(path).unwrap().into(),
        File::options().write(true).open("/dev/null").unwrap().into(),
        epoll,
        socket.into(),
        crate::memfd("[eventfd]", 4096, false).unwrap(),
    ];
    for fd in others {
        let what = format!("{fd:?}");
        let error = EventFd::from_fd(fd).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{what}: {error}");
    }
}
