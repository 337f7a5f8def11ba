//! Start, end, crash, restart, and several daemons on one host.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use common::{Daemon, HAYATE, hayate, until};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn set_up(daemon: &Daemon) {
    daemon.ok("network add lan --mac-limit 7");
    daemon.ok("vm add web --memory 2G");
    daemon.ok("port add web0 --network lan --kind vhost --vm web --vlan 10 --no-offload uso");
    daemon.ok("port add t --network lan --kind tap --ifname t0");
}

/// What does not change by a restart.
fn lasting(daemon: &Daemon) -> Vec<serde_json::Value> {
    let ports = daemon.json("port list --json");
    let ports = ports.as_array().unwrap().iter().map(|port| port["config"].clone());
    let mut networks = daemon.json("network list --json");
    for network in networks.as_array_mut().unwrap() {
        // What was learned is learned again.
        network["macs"].take();
    }
    ports.chain([networks, daemon.json("vm list --json")]).collect()
}

#[test]
fn a_restart_keeps_everything() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_in(directory.path(), &[]);
    set_up(&daemon);
    let before = lasting(&daemon);
    daemon.stop();
    assert_eq!(
        names(directory.path()),
        ["disks", "ports", "rings", "state"],
        "sockets and pid are gone"
    );
    assert!(names(&directory.path().join("ports")).is_empty());
    // What a guest's packed rings need to go on: of vhost ports only, and gone with the port.
    assert_eq!(names(&directory.path().join("rings")), ["web0"]);
    let daemon = Daemon::start_in(directory.path(), &[]);
    assert_eq!(lasting(&daemon), before);
    assert!(directory.path().join("ports/web0.sock").exists());
    assert!(daemon.inside("ip -o link").contains("t0"));
    daemon.ok("port del web0");
    assert!(names(&directory.path().join("rings")).is_empty());
    daemon.stop();
}

#[test]
fn a_killed_daemon_is_followed_by_another() {
    let directory = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start_in(directory.path(), &[]);
    set_up(&daemon);
    let before = lasting(&daemon);
    daemon.signal("KILL");
    daemon.wait();
    // Its sockets and its pid file are still there.
    assert!(directory.path().join("api.sock").exists());
    daemon.fails("port list", 3, &["no daemon answers", "hayate daemon --run-dir"]);
    drop(daemon);
    let daemon = Daemon::start_in(directory.path(), &[]);
    assert_eq!(lasting(&daemon), before);
    let states = daemon.json("port list --json");
    assert_eq!((&states[0]["state"], &states[1]["state"]), (&"running".into(), &"waiting".into()));
}

#[test]
fn each_signal_ends_it_in_order() {
    for signal in ["TERM", "INT", "HUP"] {
        let mut daemon = Daemon::start(&[]);
        daemon.ok("network add lan");
        daemon.signal(signal);
        assert!(daemon.wait().success(), "{}", daemon.log());
        assert!(daemon.log().contains(&format!("SIG{signal}: ending")), "{}", daemon.log());
        assert!(!daemon.run_dir.join("api.sock").exists());
    }
}

#[test]
fn a_silent_client_does_not_keep_it_from_ending() {
    let daemon = Daemon::start(&[]);
    let _silent = std::os::unix::net::UnixStream::connect(daemon.run_dir.join("api.sock")).unwrap();
    daemon.stop();
}

#[test]
fn a_second_daemon_is_refused() {
    let daemon = Daemon::start(&[]);
    let run_dir = daemon.run_dir.display().to_string();
    let pid = format!("process {}", daemon.pid());
    hayate(["daemon", "--run-dir", &run_dir])
        .fails(5, &["another hayate daemon", &pid, "--run-dir"]);
    // Another run directory with the same state would be as bad.
    let other = tempfile::tempdir().unwrap();
    let other = other.path().display().to_string();
    let state = format!("{run_dir}/state");
    hayate(["daemon", "--run-dir", &other, "--state-dir", &state]).fails(5, &["--state-dir"]);
    daemon.ok("network add lan");
}

#[test]
fn several_daemons_run_side_by_side() {
    let (one, two) = (Daemon::start(&[]), Daemon::start(&[]));
    one.ok("network add lan");
    two.ok("network add lan");
    two.ok("port add a --network lan --kind vhost");
    assert_eq!(one.json("port list --json"), serde_json::json!([]));
}

#[test]
fn directories_and_environment() {
    let directory = tempfile::tempdir().unwrap();
    let (run, state) = (directory.path().join("a/run"), directory.path().join("a/b/state"));
    let state_text = state.display().to_string();
    let daemon = Daemon::start_in(&run, &["--state-dir", &state_text]);
    daemon.ok("network add lan");
    assert!(state.join("hayate.json").exists());
    let socket = fs::metadata(run.join("api.sock")).unwrap();
    assert_eq!(socket.permissions().mode() & 0o777, 0o660);
    // By environment, as for --run-dir; and the option wins.
    let output = std::process::Command::new(HAYATE)
        .args(["network", "list"])
        .env("HAYATE_RUN_DIR", &run)
        .output()
        .unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("lan"));
    let output = std::process::Command::new(HAYATE)
        .args(["network", "list", "--run-dir"])
        .arg(directory.path())
        .env("HAYATE_RUN_DIR", &run)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn a_damaged_state_stops_it_with_the_file_named() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().display().to_string();
    fs::create_dir(directory.path().join("state")).unwrap();
    let file = directory.path().join("state/hayate.json");
    fs::write(&file, "{\"version\": 1, \"networks\": ").unwrap();
    let file = file.display().to_string();
    hayate(["daemon", "--run-dir", &run_dir]).fails(1, &[&file, "damaged", "move it away"]);
    assert!(!directory.path().join("api.sock").exists());
    fs::write(&file, "{\"version\": 9}").unwrap();
    hayate(["daemon", "--run-dir", &run_dir]).fails(1, &[&file, "version 9"]);
}

#[test]
fn a_port_that_cannot_be_opened_is_kept_shown_and_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_in(directory.path(), &[]);
    daemon.ok("network add lan");
    let socket = directory.path().join("sub/a.sock");
    fs::create_dir(directory.path().join("sub")).unwrap();
    daemon.ok(&format!("port add a --network lan --kind vhost --socket {}", socket.display()));
    daemon.ok("port add b --network lan --kind vhost");
    daemon.stop();
    fs::remove_dir(directory.path().join("sub")).unwrap();
    let daemon = Daemon::start_in(directory.path(), &[]);
    let port = daemon.json("port show a --json");
    assert_eq!(port["state"], "failed");
    assert!(port["failure"].as_str().unwrap().contains("a.sock"), "{port}");
    assert_eq!(daemon.json("port show b --json")["state"], "waiting");
    assert!(daemon.ok("show").contains("(degraded)"));
    let health: serde_json::Value =
        serde_json::from_str(&daemon.http("GET", "/v1/health", "").1).unwrap();
    assert_eq!(health["failed_ports"], serde_json::json!(["a"]));
    fs::create_dir(directory.path().join("sub")).unwrap();
    until("the port is open", || daemon.json("port show a --json")["state"] == "waiting");
    assert!(socket.exists());
    daemon.ok("port del a");
    assert!(!socket.exists());
}

#[test]
fn something_else_in_place_of_its_socket_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().display().to_string();
    fs::write(directory.path().join("api.sock"), "precious").unwrap();
    hayate(["daemon", "--run-dir", &run_dir]).fails(1, &["api.sock is in the way"]);
    assert_eq!(fs::read(directory.path().join("api.sock")).unwrap(), b"precious");
    let long = directory.path().join("x".repeat(100)).display().to_string();
    hayate(["daemon", "--run-dir", &long]).fails(1, &["a Unix socket allows 107"]);
}

#[test]
fn the_init_system_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let notify = UnixDatagram::bind(&path).unwrap();
    let run_dir = directory.path().join("run");
    fs::create_dir(&run_dir).unwrap();
    let mut daemon = Daemon::spawn(&run_dir, &[], &[("NOTIFY_SOCKET", path.to_str().unwrap())]);
    let mut buffer = [0; 64];
    let length = notify.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"READY=1");
    // What it says is true: no waiting here.
    daemon.ok("network add lan");
    daemon.signal("TERM");
    let length = notify.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"STOPPING=1");
    assert!(daemon.wait().success());
}

#[test]
fn a_change_that_cannot_be_saved_is_undone_and_refused() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_in(directory.path(), &[]);
    daemon.ok("network add lan");
    daemon.ok("vm add web");
    let state = directory.path().join("state");
    // Saving needs this name for a file.
    fs::create_dir(state.join(".hayate.json.new")).unwrap();
    daemon.fails("network add lab", 1, &["cannot be saved"]);
    daemon.fails("port add a --network lan --kind vhost", 1, &["cannot be saved"]);
    daemon.fails("vm del web", 1, &["cannot be saved"]);
    daemon.fails("vm add db", 1, &["cannot be saved"]);
    daemon.fails("network del lan", 1, &["cannot be saved"]);
    assert_eq!(daemon.json("network list --json").as_array().unwrap().len(), 1);
    assert_eq!(daemon.json("vm list --json").as_array().unwrap().len(), 1);
    assert_eq!(daemon.json("port list --json"), serde_json::json!([]));
    assert!(!directory.path().join("ports/a.sock").exists());
    fs::remove_dir(state.join(".hayate.json.new")).unwrap();
    daemon.ok("port add a --network lan --kind vhost");
}
