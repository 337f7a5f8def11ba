use super::*;

/// Field 41 of a thread's stat: its policy.
fn policy() -> String {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, after) = stat.rsplit_once(") ").unwrap();
    after.split(' ').nth(38).unwrap().to_owned()
}

#[test]
fn urgent_and_back() {
    match realtime() {
        Ok(()) => assert_eq!(policy(), "1"),
        Err(err) => assert_eq!(err.kind(), io::ErrorKind::PermissionDenied),
    }
    ordinary().unwrap();
    assert_eq!(policy(), "0");
}
