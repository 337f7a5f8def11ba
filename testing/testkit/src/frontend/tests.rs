use std::fs;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use super::Frontend;

/// Stops the process that starts it, and lets it go on when all its threads stand still.
const STOP: &str = r#"
    kill -STOP $PPID
    until [ -z "$(grep -L '^State:.T' /proc/$PPID/task/*/status)" ]; do :; done
    kill -CONT $PPID
"#;

/// A read with a time-out that is interrupted by SIGSTOP fails when the process goes on (signal(7)):
/// nothing has happened to the connection.
#[test]
fn who_waits_for_the_end_may_be_stopped_meanwhile() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut frontend = Frontend::over(ours).unwrap();
    let (tell, told) = mpsc::channel();
    let waiting = thread::spawn(move || {
        tell.send(rustix::thread::gettid()).unwrap();
        frontend.wait_closed()
    });
    let status = format!("/proc/self/task/{}/status", told.recv().unwrap().as_raw_nonzero());
    while !fs::read_to_string(&status).unwrap().contains("State:\tS") {
        thread::yield_now();
    }
    assert!(Command::new("sh").args(["-c", STOP]).status().unwrap().success());
    drop(theirs);
    waiting.join().unwrap().unwrap();
}
