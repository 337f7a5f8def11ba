//! Who is let in while somebody is there.

use super::*;

/// A port's door, and a front end that has just connected to it.
async fn visited() -> (Door, UnixStream, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("port.sock");
    let door = Door::open(Endpoint::server(&path).unwrap()).unwrap();
    let visitor = UnixStream::connect(&path).await.unwrap();
    (door, visitor, dir)
}

#[tokio::test]
async fn a_visitor_is_turned_away_while_the_front_end_lives() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let (mut door, visitor, _dir) = visited().await;
    door.meet(&ours).await;
    assert!(door.kept.is_none());
    assert!(hung_up(&visitor));
}

/// The front end has died with something still to be read, so the port may hear of its successor first.
#[tokio::test]
async fn a_visitor_is_kept_when_the_front_end_is_dead() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.writable().await.unwrap();
    theirs.try_write(b"last words").unwrap();
    drop(theirs);
    let (mut door, visitor, _dir) = visited().await;
    door.meet(&ours).await;
    assert!(door.kept.is_some());
    assert!(!hung_up(&visitor));
    let served = door.next().await;
    assert!(!hung_up(&served));
    drop(visitor);
    assert!(hung_up(&served));
}

/// Whoever comes, served or turned away, is counted against a storm.
#[tokio::test]
async fn every_visitor_is_counted() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    for turned_away in [false, true] {
        let (mut door, _visitor, _dir) = visited().await;
        door.sessions = Bucket::new(3, 1, Instant::now());
        if turned_away {
            door.meet(&ours).await;
        } else {
            door.next().await;
        }
        let now = Instant::now();
        let left = std::iter::repeat_with(|| door.sessions.take(now)).take_while(Result::is_ok);
        assert_eq!(left.count(), 2);
    }
}

/// In a storm nobody is even looked at for a while.
#[tokio::test]
async fn visitors_wait_while_there_are_too_many() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let (mut door, visitor, _dir) = visited().await;
    door.sessions = Bucket::new(0, 1, Instant::now());
    door.meet(&ours).await;
    assert!(door.kept.is_none());
    assert!(!hung_up(&visitor), "still in the queue");
}
