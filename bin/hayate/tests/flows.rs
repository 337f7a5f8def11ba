//! Flow rules that a guest sets on its virtual functions: kept, shown, bounded, and ended.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use common::{Daemon, hayate, until};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An agent at the other end of a channel, that speaks of one PF.
struct Guest {
    stream: BufReader<UnixStream>,
    pf: Value,
}

impl Guest {
    fn connect(channel: &Path, pf: &Value, boot: Option<&str>) -> Self {
        let stream = UnixStream::connect(channel).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut guest = Self { stream: BufReader::new(stream), pf: pf.clone() };
        let mut hello = json!({"protocol": 1, "agent": "test", "lease_ms": 60_000});
        if let Some(boot) = boot {
            hello["boot"] = boot.into();
        }
        assert!(guest.ask("hello", &hello)["result"].is_object());
        guest
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        let line = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        self.stream.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    fn of_pf(&mut self, method: &str, params: &Value) -> Value {
        let mut params = params.clone();
        params["pf"] = self.pf.clone();
        self.ask(method, &params)
    }

    #[track_caller]
    fn set(&mut self, change: &Value) {
        let answer = self.of_pf("flow.set", change);
        assert_eq!(answer["result"], json!({}), "{change}: {answer}");
    }

    /// Is refused by that name, with these words, and nothing is changed.
    #[track_caller]
    fn refused(&mut self, change: &Value, name: &str, words: &str) {
        let before = self.rules();
        let answer = self.of_pf("flow.set", change);
        assert_eq!(answer["error"]["data"], name, "{change}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
        assert_eq!(self.rules(), before);
    }

    fn list(&mut self) -> Value {
        self.of_pf("flow.list", &json!({}))["result"].take()
    }

    fn rules(&mut self) -> Vec<Value> {
        let list = self.list();
        let rules = list["rules"].as_array().cloned().unwrap_or_default();
        rules.into_iter().map(|mut one| one["rule"].take()).collect()
    }
}

fn rule(id: u64, on: &str, action: &Value) -> Value {
    json!({"id": id, "on": on, "direction": "from", "priority": 0, "action": action})
}

/// A VM with a channel and a PF of two VFs; the channel, and the address of the PF.
fn with_pf(daemon: &Daemon, vm: &str, more: &str) -> (PathBuf, Value) {
    let channel = daemon.run_dir.join(format!("{vm}.channel"));
    daemon.ok(&format!("vm add {vm} --channel {}", channel.display()));
    daemon.ok(&format!("vf create --vm {vm} --vfs 2 {more}"));
    let pf = daemon.json(&format!("vf show {vm}-pf0 --json"));
    (channel, pf["functions"][0]["mac"].clone())
}

fn kept(daemon: &Daemon) -> PathBuf {
    daemon.run_dir.join("state/rules")
}

#[test]
fn rules_are_kept_over_restarts_and_end_with_the_boot() {
    let directory = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start_in(directory.path(), &[]);
    daemon.ok("network add lan");
    let (channel, pf) = with_pf(&daemon, "web", "");
    let mut guest = Guest::connect(&channel, &pf, Some("one"));
    assert_eq!(guest.list()["limits"]["rules"], 1024);
    assert!(guest.rules().is_empty());
    let web = json!({"id": 7, "on": "vf0", "direction": "to", "priority": 9,
        "match": {"protocol": "tcp", "dst_port": "8000-8080", "state": "new"},
        "action": {"forward": "vf1"}, "meter": 100, "mirror": "pf"});
    let closed = json!({"on": "vf0", "direction": "to", "action": "drop"});
    guest.set(&json!({"add": [web, rule(1, "pf", &json!("drop"))], "defaults": [closed]}));
    let all = vec![rule(1, "pf", &json!("drop")), web.clone()];
    assert_eq!(guest.rules(), all);
    let functions = guest.list()["functions"].clone();
    assert_eq!(
        (&functions[1]["on"], &functions[1]["to"]["action"]),
        (&json!("vf0"), &json!("drop"))
    );
    // The operator sees them too, in JSON and in words.
    let shown = daemon.json("vf rules web-pf0 --json");
    assert_eq!((&shown["rules"][1]["rule"], &shown["functions"]), (&web, &functions));
    let words = daemon.ok("vf rules web-pf0");
    for part in ["vf0 to id 7 priority 9 proto tcp dst-port 8000-8080", "default vf0 to drop"] {
        assert!(words.contains(part), "{words}");
    }
    assert_eq!(daemon.json("vf show web-pf0 --json")["rules"], 2);
    for signal in ["TERM", "KILL"] {
        daemon.signal(signal);
        daemon.wait();
        drop((guest, daemon));
        daemon = Daemon::start_in(directory.path(), &[]);
        let shown = daemon.json("vf rules web-pf0 --json");
        assert_eq!(shown["rules"][1]["rule"], web, "before its guest says anything");
        assert_eq!(shown["functions"], functions);
        guest = Guest::connect(&channel, &pf, Some("one"));
        assert_eq!(guest.rules(), all);
    }
    // An agent that dies, and one that does not say which boot it is.
    drop(guest);
    until("it is gone", || daemon.json("router show web --json")["router"]["connected"] == false);
    assert_eq!(daemon.json("vf show web-pf0 --json")["rules"], 2);
    let mut guest = Guest::connect(&channel, &pf, None);
    assert_eq!(guest.rules(), all);
    drop(guest);
    let mut guest = Guest::connect(&channel, &pf, Some("two"));
    assert!(guest.rules().is_empty());
    assert!(guest.list().get("functions").is_none());
    guest.set(&json!({"add": [web]}));
    daemon.ok("vf rules web-pf0 --clear");
    assert!(guest.rules().is_empty());
    // They go with their PF; a new one of that name has no past.
    guest.set(&json!({"add": [web]}));
    assert_eq!(fs::read_dir(kept(&daemon)).unwrap().count(), 1);
    daemon.ok("vf delete web-pf0");
    assert_eq!(guest.of_pf("flow.list", &json!({}))["error"]["data"], "unknown-function");
    assert_eq!(fs::read_dir(kept(&daemon)).unwrap().count(), 0);
    daemon.ok("vf create --vm web --vfs 2");
    assert!(guest.rules().is_empty());
    daemon.fails("vf rules web", 4, &["no vf named web"]);
    daemon.fails("vf rules web --clear", 4, &["no vf named web"]);
    daemon.stop();
}

#[test]
fn what_is_refused_changes_nothing() {
    let daemon = Daemon::start(&[]);
    daemon.ok("network add lan");
    let (channel, pf) = with_pf(&daemon, "web", "--rules-max 4 --meters-max 1 --rule-rate 1");
    let (_, others) = with_pf(&daemon, "other", "");
    let mut guest = Guest::connect(&channel, &pf, None);
    let accept = json!("accept");
    guest.set(&json!({"add": [rule(1, "vf0", &accept), rule(2, "vf1", &accept)]}));
    let with = |part: Value| {
        let mut one = rule(3, "vf0", &accept);
        one.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
        json!({"add": [one]})
    };
    for (change, name, words) in [
        (with(json!({"id": 1})), "rule-exists", "flow rule 1"),
        (with(json!({"on": "vf2"})), "unknown-function", "2 VFs"),
        (with(json!({"action": {"forward": "vf2"}})), "unknown-function", "vf2"),
        (with(json!({"mirror": "vf200"})), "unknown-function", "vf200"),
        (with(json!({"on": "web-pf0"})), "bad-params", "no function"),
        (with(json!({"match": {"dst_port": "9-8"}})), "bad-params", "range"),
        (with(json!({"match": {"protocol": "gre", "dst_port": 8}})), "bad-params", "no ports"),
        (with(json!({"prio": 8})), "bad-params", "unknown field"),
        (with(json!({"rewrite": {"src_mac": "01:00:00:00:00:00"}})), "bad-params", "one station"),
        (json!({"del": [1, 9], "add": [rule(3, "vf0", &accept)]}), "unknown-rule", "9"),
        (json!({"clear": ["vf7"]}), "unknown-function", "vf7"),
        (json!({"part": {"batch": 1, "number": 1, "last": true}}), "unknown-batch", "begin again"),
        (
            json!({"add": (3..6).map(|id| rule(id, "pf", &accept)).collect::<Vec<_>>()}),
            "too-many-rules",
            "4 flow rules",
        ),
        (
            json!({"add": (3..5).map(|id| {
                let mut one = rule(id, "pf", &accept);
                one["meter"] = 1.into();
                one
            }).collect::<Vec<_>>()}),
            "too-many-meters",
            "1 rules with a meter",
        ),
    ] {
        guest.refused(&change, name, words);
    }
    let mut theirs = json!({"add": [rule(1, "vf0", &accept)]});
    theirs["pf"] = others;
    assert_eq!(guest.ask("flow.set", &theirs)["error"]["data"], "unknown-function");
    // Twice as many as there may be at once, then one a second.
    let back = |id| json!({"del": [id], "add": [rule(id, "vf0", &json!("drop"))]});
    guest.set(&back(1));
    guest.set(&back(2));
    guest.set(&json!({"del": [1], "add": [rule(1, "vf0", &accept)]}));
    guest.refused(&json!({"clear": ["vf0"]}), "too-many-updates", "1 rules a second");
    // What is the same already is no update.
    guest.set(&json!({"clear": ["vf0"], "add": [
        rule(1, "vf0", &accept), rule(2, "vf0", &json!("drop"))]}));
    let refusals = daemon.json("router show web --json")["router"]["refusals"].clone();
    assert_eq!((&refusals["bad-params"], &refusals["too-many-updates"]), (&5.into(), &1.into()));
    // Of these, what was refused for what the PF has; the rest did not get so far.
    let metrics = daemon.ok("stats --prometheus");
    let own: Vec<&str> = metrics.lines().filter(|line| line.starts_with("hayate_pf_")).collect();
    assert_eq!(
        own,
        [
            "hayate_pf_rules{pf=\"other-pf0\"} 0",
            "hayate_pf_rules{pf=\"web-pf0\"} 2",
            "hayate_pf_rules_max{pf=\"other-pf0\"} 1024",
            "hayate_pf_rules_max{pf=\"web-pf0\"} 4",
            "hayate_pf_rule_updates_total{pf=\"other-pf0\"} 0",
            "hayate_pf_rule_updates_total{pf=\"web-pf0\"} 8",
            "hayate_pf_rule_frames_total{pf=\"other-pf0\",verdict=\"pass\"} 0",
            "hayate_pf_rule_frames_total{pf=\"other-pf0\",verdict=\"drop\"} 0",
            "hayate_pf_rule_frames_total{pf=\"web-pf0\",verdict=\"pass\"} 0",
            "hayate_pf_rule_frames_total{pf=\"web-pf0\",verdict=\"drop\"} 0",
            "hayate_pf_rule_refusals_total{pf=\"web-pf0\",reason=\"unknown-rule\"} 1",
            "hayate_pf_rule_refusals_total{pf=\"web-pf0\",reason=\"rule-exists\"} 1",
            "hayate_pf_rule_refusals_total{pf=\"web-pf0\",reason=\"too-many-rules\"} 1",
            "hayate_pf_rule_refusals_total{pf=\"web-pf0\",reason=\"too-many-meters\"} 1",
            "hayate_pf_rule_refusals_total{pf=\"web-pf0\",reason=\"too-many-updates\"} 1",
        ]
    );
    daemon.stop();
}

/// More rules than fit a line, in parts; and too many kinds of them.
#[test]
fn many_rules_are_one_change() {
    let daemon = Daemon::start(&[]);
    daemon.ok("network add lan");
    let (channel, pf) = with_pf(&daemon, "web", "--rules-max 2000 --rule-rate 1000000");
    let mut guest = Guest::connect(&channel, &pf, None);
    let some = |from: u64| -> Vec<Value> {
        (from..from + 500)
            .map(|id| {
                let mut one = rule(id, "vf0", &json!("drop"));
                one["match"] = json!({"src": format!("2001:db8::{id}/128")});
                one
            })
            .collect()
    };
    for number in 0..4 {
        let part = json!({"batch": 77, "number": number, "last": number == 3});
        guest.set(&json!({"add": some(number * 500), "part": part}));
        let shown = daemon.json("vf show web-pf0 --json")["rules"].clone();
        assert_eq!(shown, if number == 3 { 2000 } else { 0 });
    }
    let mut seen = 0;
    let mut after = json!(null);
    loop {
        let params = if after.is_null() { json!({}) } else { json!({"after": after}) };
        let list = guest.of_pf("flow.list", &params)["result"].take();
        seen += list["rules"].as_array().unwrap().len();
        after = list["next"].clone();
        if after.is_null() {
            break;
        }
    }
    assert_eq!(seen, 2000);
    assert_eq!(daemon.json("vf rules web-pf0 --json")["rules"].as_array().unwrap().len(), 2000);
    // Each length of a prefix is a kind.
    let kinds: Vec<Value> = (0..65)
        .map(|bits| {
            let mut one = rule(9000 + bits, "vf1", &json!("drop"));
            one["match"] = json!({"src": format!("::/{bits}")});
            one
        })
        .collect();
    guest.set(&json!({"del": (0..100).collect::<Vec<u32>>(), "add": kinds[..64]}));
    guest.refused(&json!({"add": [kinds[64]]}), "too-many-rules", "64 kinds");
    guest.set(&json!({"clear": ["vf0", "vf1"]}));
    assert!(guest.rules().is_empty());
    daemon.stop();
}

#[test]
fn what_is_damaged_or_of_vfs_that_are_gone() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("h.toml");
    let run_dir = directory.path().join("run");
    let channel = directory.path().join("web.channel");
    let text = |vfs: u32| {
        format!(
            "[networks.lan]\n[vms.web]\nchannel = {channel:?}\n\
             [pfs.p]\nvm = \"web\"\nnetwork = \"lan\"\nvfs = {vfs}\n"
        )
    };
    fs::write(&file, text(3)).unwrap();
    let config = ["--config", file.to_str().unwrap()];
    let daemon = Daemon::start_in(&run_dir, &config);
    let pf = daemon.json("vf show p --json")["functions"][0]["mac"].clone();
    let mut guest = Guest::connect(&channel, &pf, None);
    let to_last = json!({"forward": "vf2"});
    guest.set(&json!({"add": [rule(1, "vf2", &json!("drop")), rule(2, "vf0", &to_last)]}));
    drop(guest);
    daemon.stop();
    fs::write(&file, text(2)).unwrap();
    let daemon = Daemon::start_in(&run_dir, &config);
    let mut guest = Guest::connect(&channel, &pf, None);
    assert_eq!(guest.rules(), [rule(2, "vf0", &to_last)], "it drops now");
    guest.set(&json!({"del": [2], "add": [rule(2, "vf0", &json!("drop"))]}));
    drop(guest);
    let kept = kept(&daemon);
    daemon.stop();
    // Of a PF that is gone.
    fs::copy(kept.join("p.json"), kept.join("gone.json")).unwrap();
    let daemon = Daemon::start_in(&run_dir, &config);
    assert!(!kept.join("gone.json").exists());
    daemon.stop();
    // Starting without a filter would be worse than not starting.
    fs::write(kept.join("p.json"), "{\"rules\":").unwrap();
    let run_dir = run_dir.to_str().unwrap();
    hayate(["daemon", "--run-dir", run_dir, config[0], config[1]]).fails(1, &["p.json", "damaged"]);
}
