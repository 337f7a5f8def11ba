//! Records and locks in a folder of their own.

use super::*;

fn attachment(container: &str) -> Attachment {
    Attachment {
        key: Key { network: "n".into(), container: container.into(), ifname: "net1".into() },
        phase: Phase::Adding,
        vf: "0000:01:00.1".parse().unwrap(),
        token: token().unwrap(),
        netns: "/run/netns/x".into(),
        pod: None,
        uid: None,
        ipam: false,
        ips: Vec::new(),
        routes: Vec::new(),
    }
}

#[test]
fn records_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    assert!(State::look(dir.path()).is_none());
    let state = State::open(dir.path()).unwrap();
    let one = attachment("a");
    assert!(state.attachment(&one.key).unwrap().is_none());
    state.create(&one).unwrap();
    let again = attachment("a");
    assert_eq!(state.create(&again).unwrap_err().code, Code::Exists);
    assert_eq!(state.attachment(&one.key).unwrap().unwrap().token, one.token);
    // Another allocation of the same name is not this one's to forget.
    state.forget(&again).unwrap();
    assert!(state.attachment(&one.key).unwrap().is_some());
    state.create(&attachment("b")).unwrap();
    assert_eq!(state.attachments(Some("n")).unwrap().0.len(), 2);
    assert_eq!(state.attachments(Some("m")).unwrap().0.len(), 0);
    state.forget(&one).unwrap();
    state.forget(&one).unwrap();
    assert!(state.attachment(&one.key).unwrap().is_none());
}

#[test]
fn a_lock_is_one_call_s() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::open(dir.path()).unwrap();
    let vf = "0000:01:00.1".parse().unwrap();
    let lock = state.try_lock(vf).unwrap().unwrap();
    assert!(state.try_lock(vf).unwrap().is_none());
    assert_eq!(state.lock(vf, Instant::now()).unwrap_err().code, Code::Later);
    let record = Vf { token: 7, owner: Some(attachment("a").key), home: None };
    state.save_vf(&lock, &record).unwrap();
    assert_eq!(state.vf(&lock).unwrap().token, 7);
    drop(lock);
    assert!(state.try_lock(vf).unwrap().is_some());
    assert_eq!(state.vfs().unwrap(), [vf]);
}

#[test]
fn a_broken_record_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::open(dir.path()).unwrap();
    let one = attachment("a");
    state.create(&one).unwrap();
    let path = state.attachment_path(&one.key);
    fs::write(&path, b"{").unwrap();
    let error = state.attachment(&one.key).unwrap_err();
    assert!(error.details.contains(path.to_str().unwrap()), "{error}");
    assert_eq!(state.attachments(None).unwrap().1.len(), 1);
}

#[test]
fn keys_do_not_meet() {
    let key = |network: &str, container: &str| {
        Key { network: network.into(), container: container.into(), ifname: "i".into() }.file()
    };
    assert_ne!(key("a", "bc"), key("ab", "c"));
    assert_eq!(key("a", "b").len(), 64 + 5);
}
