//! Every command in the documentation runs as it is written.
//!
//! The `sh` blocks of a file are one script, run from top to bottom as root of namespaces of its
//! own: `/run` and `/var/lib` are empty, there is no interface, and everything ends with it. A
//! block whose fence says more than `sh` is not run; the second word says why, and all of them are
//! listed here.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use common::{HAYATE, repository, unshare};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Blocks that are not run here: reason, and how many there are in all.
const NOT_RUN: [(&str, &str, usize); 10] = [
    ("make", "the Makefile's verbs are run by those who build", 3),
    ("install", "writes to /usr/local", 2),
    ("qemu", "needs QEMU and a disk; the arguments are those of the end-to-end tests", 4),
    ("guest", "is typed in a guest, or on another host", 16),
    ("cluster", "needs Kubernetes; the plugin's test `kubernetes` runs what the manifests run", 2),
    ("download", "needs the Internet", 2),
    ("bench", "needs two CPUs with nothing else to do", 15),
    ("libvirt", "needs libvirtd and a domain", 1),
    ("service", "needs systemd", 1),
    ("engine", "needs a storage engine, which the tests `engines` start in the same way", 5),
];

/// The blocks of one file: words after `sh`, first line, text.
fn blocks(text: &str) -> Vec<(String, usize, String)> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let inner: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
        let mut words = info.split_whitespace();
        if words.next() == Some("sh") {
            found.push((words.collect::<Vec<_>>().join(" "), number + 2, inner.join("\n")));
        } else {
            assert!(
                !matches!(info, "" | "bash" | "shell" | "console"),
                "line {}: what is it?",
                number + 1
            );
        }
    }
    found
}

fn files() -> Vec<String> {
    let docs = fs::read_dir(repository().join("docs")).unwrap();
    let docs = docs.map(|entry| format!("docs/{}", entry.unwrap().file_name().to_str().unwrap()));
    let mut files: Vec<String> = docs.filter(|name| name.ends_with(".md")).collect();
    files.push("README.md".into());
    files.sort();
    files
}

#[test]
fn what_is_not_run_is_known() {
    let mut reasons = Vec::new();
    for file in files() {
        let text = fs::read_to_string(repository().join(&file)).unwrap();
        reasons.extend(blocks(&text).into_iter().map(|(reason, ..)| reason));
    }
    reasons.retain(|reason| !reason.is_empty());
    for (reason, why, count) in NOT_RUN {
        let found = reasons.iter().filter(|found| *found == reason).count();
        println!("not run: {found} x {reason}: {why}");
        assert_eq!(found, count, "blocks marked {reason}");
    }
    let known: usize = NOT_RUN.iter().map(|(_, _, count)| count).sum();
    assert_eq!(reasons.len(), known, "{reasons:?}");
}

#[test]
fn every_command_runs() {
    let mut failed = Vec::new();
    for file in files() {
        let text = fs::read_to_string(repository().join(&file)).unwrap();
        let to_run: Vec<_> =
            blocks(&text).into_iter().filter(|(reason, ..)| reason.is_empty()).collect();
        if to_run.is_empty() {
            continue;
        }
        let script = script(&file, &to_run);
        if let Err(output) = run(&script) {
            failed.push(format!("{file}:\n{output}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn script(file: &str, blocks: &[(String, usize, String)]) -> String {
    let mut script = String::from(
        "set -eu\n\
         mount -t tmpfs tmpfs /run\n\
         mount -t tmpfs tmpfs /var/lib\n\
         ip link set lo up\n\
         ready() { for _ in $(seq 600); do hayate show >/dev/null 2>&1 && return; sleep 0.1; done; false; }\n\
         served() { for _ in $(seq 600); do (: < /dev/tcp/127.0.0.1/4420) 2>/dev/null && return; sleep 0.1; done; false; }\n\
         sudo() { if [ \"$1\" = -b ]; then shift; \"$@\" & else \"$@\"; fi; }\n",
    );
    for (_, line, text) in blocks {
        script.push_str(&format!("echo '== {file}:{line}'\nset -x\n"));
        for line in text.lines() {
            script.push_str(line);
            script.push('\n');
            // A person is slower than a daemon; a script is not.
            let starts = ["daemon &", ".toml &", "-b hayate daemon"];
            let wait = |script: &mut String, what: &str| {
                script.push_str(&format!("{{ set +x; }} 2>/dev/null; {what}; set -x\n"));
            };
            if starts.iter().any(|start| line.trim_end().ends_with(start)) {
                wait(&mut script, "ready");
            } else if line.trim_end().ends_with(":4420 &") {
                wait(&mut script, "served");
            }
        }
        script.push_str("{ set +x; } 2>/dev/null\n");
    }
    script
}

/// The agent is of another package: it is there when the whole workspace was built.
fn build_agent(binaries: &Path) {
    if !binaries.join("hayate-agent").exists() {
        let mut cargo = Command::new(env!("CARGO"));
        let built = cargo.args(["build", "-q", "-p", "hayate-agent"]).status().unwrap();
        assert!(built.success());
    }
}

fn run(script: &str) -> Result<(), String> {
    let directory = tempfile::tempdir().unwrap();
    build_agent(Path::new(HAYATE).parent().unwrap());
    let binaries = Path::new(HAYATE).parent().unwrap().display();
    let path = std::env::var("PATH").unwrap_or_default();
    let file = directory.path().join("script.sh");
    fs::write(&file, format!("exec 2>&1\n{script}")).unwrap();
    let output = unshare(&["--net", "--mount", "--pid", "--fork", "--kill-child", "--", "bash"])
        .arg(&file)
        .current_dir(directory.path())
        .env("PATH", format!("{binaries}:{path}:/usr/sbin:/sbin"))
        .output()
        .unwrap();
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stdout).into_owned())
}
