//! The command itself: exit statuses, help, completions, man pages.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use common::{Daemon, HAYATE, hayate};
use std::process::{Command, Stdio};

#[test]
fn exit_statuses() {
    let daemon = Daemon::start(&[]);
    daemon.ok("network add lan");
    daemon.fails("port add t --network lan --kind tap --ifname t0 --netns none", 1, &["none"]);
    daemon.fails("port add a --network lan --kind wire", 2, &["vhost, tap"]);
    daemon.fails("port add a --network lan --kind tap", 2, &["--ifname", "needs the name"]);
    daemon.fails("port add a --network lan --kind vhost --vlan 4095", 2, &["--vlan", "1 to 4094"]);
    daemon.fails("port add a --network lan --kind vhost --native 5", 2, &["--trunk"]);
    daemon.fails("port add a --network lan --kind vhost --no-offload tso", 2, &["tso4"]);
    daemon.fails("network add a/b", 2, &["letters, digits"]);
    daemon.fails("vm add a --memory 1", 2, &["512M"]);
    daemon.fails("port show none", 4, &["no port named none", "hint: `hayate port list`"]);
    daemon.fails("port add a --network none --kind vhost", 4, &["hayate network add none"]);
    daemon.fails("port add a --network lan --kind vhost --vm none", 4, &["hayate vm add none"]);
    daemon.fails("network add lan --mac-limit 5", 5, &["exists already", "network show lan"]);
    daemon.fails("port add t --network lan --kind tap --ifname lo", 1, &["choose another name"]);
    // The same again is no mistake.
    daemon.ok("network add lan");
    hayate(["--run-dir", "/nonexistent", "show"]).fails(3, &["no daemon answers", "hayate daemon"]);
    hayate(["--run-dir", "/nonexistent", "daemon", "--config", "/nonexistent"])
        .fails(2, &["No such file", "hayate config example"]);
    hayate::<&str>([]).fails(2, &["Usage"]);
}

#[test]
fn a_daemon_that_speaks_otherwise_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let listener =
        std::os::unix::net::UnixListener::bind(directory.path().join("api.sock")).unwrap();
    std::thread::spawn(move || drop(listener.accept()));
    let run_dir = directory.path().to_str().unwrap();
    hayate(["--run-dir", run_dir, "show"]).fails(1, &["another version?"]);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = Command::new(HAYATE)
        .args(["config", "doc"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
}

/// Every command, as words: from the help itself.
fn commands(words: &[String], found: &mut Vec<Vec<String>>) {
    let mut args = words.to_vec();
    args.push("-h".into());
    let help = hayate(&args);
    assert_eq!(help.status, 0, "{help:?}");
    let Some((_, list)) = help.out.split_once("Commands:\n") else {
        found.push(words.to_vec());
        return;
    };
    for line in list.lines().take_while(|line| !line.is_empty()) {
        let name = line.split_whitespace().next().unwrap();
        if name != "help" && line.starts_with("  ") && !line.starts_with("   ") {
            let mut inner = words.to_vec();
            inner.push(name.to_owned());
            commands(&inner, found);
        }
    }
}

fn all_commands() -> Vec<Vec<String>> {
    let mut found = Vec::new();
    commands(&[], &mut found);
    found
}

#[test]
fn help_teaches() {
    let commands = all_commands();
    assert!(commands.len() >= 25, "{commands:?}");
    for words in &commands {
        let mut args = words.clone();
        args.push("--help".into());
        let help = hayate(&args).out;
        assert!(help.contains("--run-dir <DIR>"), "{words:?}: {help}");
        // No option goes without a word of explanation.
        let mut lines = help.lines().peekable();
        while let Some(line) = lines.next() {
            if line.trim_start().starts_with("--") || line.trim_start().starts_with("-h,") {
                let next = lines.peek().unwrap_or(&"").trim();
                let explained = line.trim().split("  ").count() > 1 || !next.is_empty();
                assert!(explained, "{words:?}: {line:?}");
            }
        }
    }
    let help = hayate(["--help"]).out;
    for part in ["Exit status:", "hayate network add lan", "$(hayate vm qemu web)"] {
        assert!(help.contains(part), "{part:?} is not in {help}");
    }
    for words in [["port", "add"], ["vm", "qemu"]] {
        let help = hayate([words[0], words[1], "--help"]).out;
        assert!(help.contains("Examples:"), "{help}");
    }
    let version = hayate(["--version"]).out;
    assert_eq!(version, format!("hayate {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn every_command_has_a_man_page() {
    let directory = tempfile::tempdir().unwrap();
    let man = directory.path().join("share/man1");
    let said = hayate(["man", man.to_str().unwrap()]);
    assert_eq!(said.status, 0, "{said:?}");
    for words in all_commands() {
        let page = man.join(format!("hayate-{}.1", words.join("-")));
        let text = std::fs::read_to_string(&page).unwrap_or_else(|e| panic!("{page:?}: {e}"));
        assert!(text.contains(".SH NAME") && text.contains(".SH OPTIONS"), "{page:?}");
    }
    assert!(std::fs::read_to_string(man.join("hayate.1")).unwrap().contains("Exit status"));
}

#[test]
fn completions_are_accepted_by_their_shells() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = hayate(["completions", shell]);
        assert_eq!(script.status, 0);
        assert!(script.out.contains("no-offload") && script.out.contains("network"), "{shell}");
    }
    let script = hayate(["completions", "bash"]).out;
    let check = "source /dev/stdin && COMP_WORDS=(hayate port add --kind '') COMP_CWORD=4 && \
                 _hayate hayate '' --kind && echo \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash")
        .args(["-c", check])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut bash.stdin.take().unwrap(), script.as_bytes()).unwrap();
    let output = bash.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "vhost tap\n");
}
