//! The manifests of `deploy/kubernetes`: that they fit together, and that what they run does what it should, without a
//! cluster. `kubectl` is a file with what it would print.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hayate_cni::conf::Conf;
use serde::Deserialize;
use serde_json::Value;

const OBJECTS: &str = include_str!("objects.json");

fn manifest(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    fs::read_to_string(root.join("deploy/kubernetes").join(name)).unwrap()
}

fn objects(name: &str) -> Vec<Value> {
    let text = manifest(name);
    let all = serde_yaml_ng::Deserializer::from_str(&text);
    all.map(|one| Value::deserialize(one).unwrap()).collect()
}

fn find<'o>(objects: &'o [Value], kind: &str) -> &'o Value {
    let mut found = objects.iter().filter(|one| one["kind"] == kind);
    let one = found.next().unwrap_or_else(|| panic!("there is no {kind}"));
    assert!(found.next().is_none(), "two of {kind}");
    one
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// A container of the DaemonSet.
fn container(name: &str) -> Value {
    let objects = objects("node.yaml");
    let pod = &find(&objects, "DaemonSet")["spec"]["template"]["spec"];
    let all = [&pod["initContainers"], &pod["containers"]].into_iter().flat_map(list);
    all.into_iter().find(|one| one["name"] == name).unwrap().clone()
}

/// What a container runs, with its environment but for what is said here, of which it has to have each.
fn command(name: &str, environment: &[(&str, &Path)]) -> Command {
    let container = container(name);
    let words = [&container["command"], &container["args"]].into_iter().flat_map(list).map(text);
    let words: Vec<&str> = words.collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    for one in list(&container["env"]) {
        command.env(text(&one["name"]), text(&one["value"]));
    }
    for (name, value) in environment {
        assert!(list(&container["env"]).iter().any(|one| one["name"] == *name), "{name}");
        command.env(name, value);
    }
    command
}

fn program(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn what_the_manifests_name_is_there() {
    let objects = objects("node.yaml");
    let set = find(&objects, "DaemonSet");
    let (pod, labels) =
        (&set["spec"]["template"]["spec"], &set["spec"]["template"]["metadata"]["labels"]);
    assert_eq!(&set["spec"]["selector"]["matchLabels"], labels);
    let account = find(&objects, "ServiceAccount");
    let (role, binding) = (find(&objects, "ClusterRole"), find(&objects, "ClusterRoleBinding"));
    assert_eq!(pod["serviceAccountName"], account["metadata"]["name"]);
    assert_eq!(binding["subjects"][0]["name"], account["metadata"]["name"]);
    assert_eq!(binding["subjects"][0]["namespace"], set["metadata"]["namespace"]);
    assert_eq!(account["metadata"]["namespace"], set["metadata"]["namespace"]);
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    // It may list what it asks kubectl for, and nothing else.
    let may: BTreeSet<&str> =
        list(&role["rules"]).iter().flat_map(|rule| list(&rule["resources"])).map(text).collect();
    assert!(list(&role["rules"]).iter().all(|rule| rule["verbs"] == serde_json::json!(["list"])));
    let script = text(&container("policies")["args"][0]).to_owned();
    let asked = script.split("kubectl get ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    assert_eq!(may, asked.split(',').collect());
    let volumes: BTreeSet<&str> =
        list(&pod["volumes"]).iter().map(|one| text(&one["name"])).collect();
    let mut used = BTreeSet::new();
    for one in [&pod["initContainers"], &pod["containers"]].into_iter().flat_map(list) {
        assert_eq!(one["image"], "hayate-node:0.1.0");
        used.extend(list(&one["volumeMounts"]).iter().map(|one| text(&one["name"]).to_owned()));
    }
    assert_eq!(volumes, used.iter().map(String::as_str).collect());
    let containerfile = manifest("Containerfile");
    assert!(
        containerfile.contains("hayate-node:0.1.0") && containerfile.contains("guest/hayate-agent")
    );
    assert_eq!(container("agent")["command"][0], "/hayate-agent");
}

#[test]
fn the_network_is_one_that_the_plugin_takes() {
    let objects = objects("network.yaml");
    let network = find(&objects, "NetworkAttachmentDefinition");
    let conf = Conf::read(text(&network["spec"]["config"]).as_bytes()).unwrap();
    let name = &network["metadata"]["name"];
    assert_eq!(name, conf.name.as_str());
    let pod = find(&objects, "Pod");
    assert_eq!(&pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"], name);
    let resource = &network["metadata"]["annotations"]["k8s.v1.cni.cncf.io/resourceName"];
    let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(limits[text(resource)], "1");
    let plugin: Value = serde_json::from_str(&manifest("device-plugin.json")).unwrap();
    let one = &plugin["resourceList"][0];
    assert_eq!(
        format!("{}/{}", text(&one["resourcePrefix"]), text(&one["resourceName"])),
        text(resource)
    );
}

#[test]
fn the_plugin_is_installed_and_the_vfs_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let card = path("sys/devices/card");
    for made in [&path("bin"), &path("sys/class/net/eth1"), &card.join("virtio0")] {
        fs::create_dir_all(made).unwrap();
    }
    std::os::unix::fs::symlink(card.join("virtio0"), path("sys/class/net/eth1/device")).unwrap();
    fs::write(card.join("sriov_totalvfs"), "8\n").unwrap();
    fs::write(card.join("sriov_numvfs"), "0\n").unwrap();
    program(&path("plugin"), "echo this is it");
    let (plugin, bin, sys) = (path("plugin"), path("bin"), path("sys"));
    let install = || {
        let mut command = command("install", &[("PLUGIN", &plugin), ("BIN", &bin), ("SYS", &sys)]);
        assert!(command.status().unwrap().success());
    };
    install();
    assert_eq!(fs::read_to_string(card.join("sriov_numvfs")).unwrap(), "8\n");
    let said = Command::new(bin.join("hayate-cni")).output().unwrap();
    assert_eq!(said.stdout, b"this is it\n");
    // VFs that are there are left alone: pods have them.
    fs::write(card.join("sriov_numvfs"), "4\n").unwrap();
    install();
    assert_eq!(fs::read_to_string(card.join("sriov_numvfs")).unwrap(), "4\n");
    assert_eq!(fs::read_dir(&bin).unwrap().count(), 1);
}

/// Ends with it.
struct Loop(Child);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn policies_are_put_in_force_when_they_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let lines = |name: &str| fs::read_to_string(path(name)).unwrap_or_default().lines().count();
    fs::create_dir(path("bin")).unwrap();
    let shown = |path: PathBuf| path.display().to_string();
    let (now, asked) = (shown(path("now.json")), shown(path("asked")));
    program(&path("bin/kubectl"), &format!("echo \"$@\" >>{asked}\ncat {now}"));
    let (real, applied, state) =
        (env!("CARGO_BIN_EXE_hayate-cni"), shown(path("applied")), shown(path("state")));
    // The plugin as it is, but for where it keeps what it knows.
    program(
        &path("plugin"),
        &format!("{real} \"$@\" --state-dir {state} --agent {state}/none && echo >>{applied}"),
    );
    let put = |text: &str| {
        fs::write(path("next.json"), text).unwrap();
        fs::rename(path("next.json"), path("now.json")).unwrap();
    };
    put(OBJECTS);
    let (plugin, each) = (path("plugin"), PathBuf::from("0.02"));
    let mut command = command("policies", &[("PLUGIN", &plugin), ("EACH", &each)]);
    let search = format!("{}:{}", shown(path("bin")), std::env::var("PATH").unwrap());
    let quiet = command.env("PATH", search).env("TMPDIR", dir.path()).stdout(Stdio::null());
    let _loop = Loop(quiet.spawn().unwrap());
    until("they are in force", || lines("applied") == 1);
    let before = lines("asked");
    until("nothing has changed for a while", || lines("asked") > before + 5);
    assert_eq!(lines("applied"), 1);
    assert!(
        fs::read_to_string(&asked)
            .unwrap()
            .starts_with("get networkpolicies,pods,namespaces -A -o json\n")
    );
    // What cannot be compiled is tried again, and what comes then counts.
    put("{");
    let before = lines("asked");
    until("it was tried", || lines("asked") > before + 3);
    assert_eq!(lines("applied"), 1);
    put(&OBJECTS.replace("web-0", "web-1"));
    until("the others are in force", || lines("applied") == 2);
}
