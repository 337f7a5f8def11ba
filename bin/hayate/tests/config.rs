//! The configuration file, checked and used by the real program.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use common::{Daemon, committed, hayate};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

fn file(text: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hayate.toml");
    fs::write(&file, text).unwrap();
    (directory, file)
}

const GOOD: &str = "\
[networks.lan]
mac_limit = 7

[vms.web]
memory = \"2G\"

[ports.web0]
network = \"lan\"
kind = \"vhost\"
vm = \"web\"
";

#[test]
fn the_example_is_good_and_shown() {
    let example = hayate(["config", "example"]);
    assert_eq!(example.status, 0);
    let (_directory, file) = file(&example.out);
    let said = hayate(["config", "check", file.to_str().unwrap()]);
    assert_eq!(said.status, 0, "{said:?}");
    assert!(said.out.contains("good (2 networks, 2 VMs, 5 ports)"), "{said:?}");
}

#[test]
fn mistakes_have_file_line_column_and_what_is_allowed() {
    for (text, position, parts) in [
        ("[networks.lan]\nmac_limt = 5\n", "2:1", ["unknown field `mac_limt`", "`mac_age`"]),
        ("polling = \"fast\"\n", "1:11", ["unknown variant", "polling = \"fast\""]),
        (
            "[ports.a]\nnetwork = \"lan\"\nkind = \"vhost\"\n",
            "2:11",
            ["no [networks.lan]", "^^^^^"],
        ),
        ("\n\n[networks.lan\n", "3:14", ["3 | [networks.lan", "^"]),
    ] {
        let (_directory, file) = file(text);
        let file = file.to_str().unwrap();
        let place = format!("{file}:{position}: ");
        hayate(["config", "check", file]).fails(2, &[&place, parts[0], parts[1]]);
        // The daemon says the same and does not start.
        let run = tempfile::tempdir().unwrap();
        let run = run.path().to_str().unwrap();
        hayate(["daemon", "--run-dir", run, "--config", file]).fails(2, &[&place, parts[0]]);
    }
    hayate(["config", "check", "/nonexistent.toml"])
        .fails(2, &["/nonexistent.toml", "No such file"]);
}

#[test]
fn what_is_declared_is_there_and_cannot_be_changed_over_the_interface() {
    let (_directory, file) = file(GOOD);
    let daemon = Daemon::start(&["--config", file.to_str().unwrap()]);
    let port = daemon.json("port show web0 --json");
    assert_eq!((&port["origin"], &port["state"]), (&"config".into(), &"waiting".into()));
    for words in ["port del web0", "network del lan", "vm del web"] {
        daemon.fails(words, 5, &["hayate.toml", "remove it there"]);
    }
    // What is added at run time lives beside it, and only that is saved.
    daemon.ok("port add web1 --network lan --kind vhost --vm web");
    let state = fs::read_to_string(daemon.run_dir.join("state/hayate.json")).unwrap();
    assert!(state.contains("web1") && !state.contains("web0"), "{state}");
    daemon.ok("port del web1");
}

#[test]
fn the_file_wins_over_what_was_saved() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_in(directory.path(), &[]);
    daemon.ok("network add lan --mac-limit 99");
    daemon.ok("network add lab");
    daemon.ok("port add web0 --network lab --kind vhost");
    daemon.stop();
    let (_directory, file) = file(GOOD);
    let daemon = Daemon::start_in(directory.path(), &["--config", file.to_str().unwrap()]);
    let networks = daemon.json("network list --json");
    assert_eq!((&networks[0]["name"], &networks[0]["origin"]), (&"lab".into(), &"runtime".into()));
    assert_eq!((&networks[1]["mac_limit"], &networks[1]["origin"]), (&7.into(), &"config".into()));
    assert_eq!(daemon.json("port show web0 --json")["network"], "lan");
    assert!(daemon.log().contains("port web0 is declared in the configuration file"));
}

#[test]
fn a_saved_port_survives_the_end_of_its_declared_network() {
    let directory = tempfile::tempdir().unwrap();
    let (_directory, file) = file(GOOD);
    let daemon = Daemon::start_in(directory.path(), &["--config", file.to_str().unwrap()]);
    daemon.ok("port add a --network lan --kind vhost");
    daemon.stop();
    let daemon = Daemon::start_in(directory.path(), &[]);
    let port = daemon.json("port show a --json");
    assert_eq!(port["state"], "failed");
    assert!(port["failure"].as_str().unwrap().contains("no network named lan"), "{port}");
    daemon.ok("network add lan");
    common::until("the port is open", || daemon.json("port show a --json")["state"] == "waiting");
}

#[test]
fn levels_groups_and_cpus() {
    let run = tempfile::tempdir().unwrap();
    let run = run.path().to_str().unwrap();
    hayate(["daemon", "--run-dir", run, "--log", "loud"]).fails(2, &["error, warn, info"]);
    hayate(["daemon", "--run-dir", run, "--cpus", "two"]).fails(2, &["0,2-3"]);
    hayate(["daemon", "--run-dir", run, "--cpus", "4095"]).fails(1, &["4095"]);
    let (_directory, file) = file("vhost_group = \"no-such-group\"\n");
    let file_text = file.to_str().unwrap();
    hayate(["daemon", "--run-dir", run, "--config", file_text]).fails(2, &["no-such-group"]);
    fs::write(
        &file,
        format!("vhost_group = \"{}\"\nlog = \"debug\"\n", rustix::process::getegid()),
    )
    .unwrap();
    let daemon = Daemon::start(&["--config", file_text]);
    daemon.ok("network add lan");
    daemon.ok("port add a --network lan --kind vhost");
    let socket = fs::metadata(daemon.run_dir.join("ports/a.sock")).unwrap();
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    assert_eq!(socket.permissions().mode() & 0o777, 0o660);
    assert_eq!(socket.gid(), rustix::process::getegid().as_raw());
}

#[test]
fn the_reference_in_the_docs_is_that_of_the_program() {
    committed("docs/config.md", &hayate(["config", "doc"]).out);
}
