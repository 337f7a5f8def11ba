//! A machine as the plugin sees it: a namespace that is the host, others that are pods, interfaces that go
//! between them. Only where VFs are found is made up, a tree as sysfs has it: no kernel without such a device
//! has one. Interfaces are veth, so what a real VF does when its namespace ends is for the tests with a guest.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use hayate_cni::error::Error;
use hayate_cni::netns::Netns;
use hayate_cni::{Machine, run};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const PF: &str = "0000:01:00.0";

/// Which network, container and interface, and what of the configuration is special.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) variables: BTreeMap<String, String>,
    pub(crate) conf: Value,
}

impl Ask {
    pub(crate) fn conf(mut self, key: &str, value: Value) -> Self {
        self.conf[key] = value;
        self
    }

    pub(crate) fn var(mut self, key: &str, value: &str) -> Self {
        self.variables.insert(format!("CNI_{key}"), value.into());
        self
    }
}

pub(crate) struct Lab {
    dir: TempDir,
    name: String,
    pods: u32,
}

impl Lab {
    /// A host with a PF `hpf` and so many VFs `hvf1`..., and pods `p1`...
    pub(crate) fn new(vfs: u32, pods: u32) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("hcni-{}-{number}", std::process::id());
        let lab = Self { dir: tempfile::tempdir().unwrap(), name, pods };
        let mut batch = String::new();
        for ns in lab.namespaces() {
            sh(&format!("ip netns add {ns} && ip -n {ns} link set lo up"));
        }
        let bus = lab.path("sys/bus/pci/devices");
        let devices = lab.path("sys/devices/pci0000:00");
        let class = lab.path("sys/class/net");
        for dir in [&bus, &devices, &class] {
            fs::create_dir_all(dir).unwrap();
        }
        for number in 0..=vfs {
            let address = address(number);
            let device = devices.join(&address);
            let name = if number == 0 { "hpf".to_owned() } else { format!("hvf{number}") };
            let net = device.join(format!("virtio{number}/net/{name}"));
            fs::create_dir_all(&net).unwrap();
            symlink(format!("../../../virtio{number}"), net.join("device")).unwrap();
            fs::write(net.join("address"), format!("{}\n", mac(number))).unwrap();
            symlink(format!("../../../devices/pci0000:00/{address}"), bus.join(&address)).unwrap();
            symlink(
                format!("../../devices/pci0000:00/{address}/virtio{number}/net/{name}"),
                class.join(&name),
            )
            .unwrap();
            if number == 0 {
                fs::write(device.join("sriov_totalvfs"), "64\n").unwrap();
            } else {
                symlink(format!("../{PF}"), device.join("physfn")).unwrap();
                let function = devices.join(PF).join(format!("virtfn{}", number - 1));
                symlink(format!("../{address}"), function).unwrap();
            }
            batch += &format!(
                "link add {name} address {} type veth peer name b{number} netns {}-sw\n",
                mac(number),
                lab.name
            );
        }
        let file = lab.path("batch");
        fs::write(&file, batch).unwrap();
        sh(&format!("ip -n {}-host -batch {}", lab.name, file.display()));
        sh(&format!(
            "ip -n {}-sw link add br0 type bridge && ip -n {}-sw link set br0 up",
            lab.name, lab.name
        ));
        for number in 0..=vfs {
            sh(&format!("ip -n {}-sw link set b{number} master br0 up", lab.name));
        }
        lab
    }

    fn namespaces(&self) -> Vec<String> {
        let pods = (1..=self.pods).map(|pod| format!("p{pod}"));
        let all = ["host".to_owned(), "sw".to_owned()].into_iter().chain(pods);
        all.map(|one| format!("{}-{one}", self.name)).collect()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The namespace of a pod, or of the host.
    pub(crate) fn netns(&self, of: &str) -> String {
        format!("/run/netns/{}-{of}", self.name)
    }

    /// `ip ...` in one of them; its output.
    pub(crate) fn ip(&self, of: &str, words: &str) -> String {
        sh(&format!("ip -n {}-{of} {words}", self.name))
    }

    /// `command` for pod `p{pod}`.
    pub(crate) fn ask(&self, command: &str, pod: u32) -> Ask {
        let conf = json!({
            "cniVersion": "1.1.0", "name": "vfs", "type": "hayate-cni", "pf": "hpf",
            "stateDir": self.path("state"),
        });
        let ask = Ask { variables: BTreeMap::new(), conf };
        ask.var("COMMAND", command)
            .var("CONTAINERID", &format!("container{pod}"))
            .var("NETNS", &self.netns(&format!("p{pod}")))
            .var("IFNAME", "net1")
            .var("PATH", &self.path("bin").to_string_lossy())
    }

    /// What the plugin answers, in a thread of this process.
    pub(crate) fn run(&self, ask: &Ask) -> Result<Option<Value>, Error> {
        let machine = Machine { sysfs: self.path("sys") };
        let host = Netns::open(Path::new(&self.netns("host"))).unwrap();
        let input = serde_json::to_vec(&ask.conf).unwrap();
        host.enter(|| Ok(run(&machine, &ask.variables, &input))).unwrap()
    }

    /// The number of the error that it has to answer.
    pub(crate) fn refused(&self, ask: &Ask) -> u32 {
        let error = self.run(ask).unwrap_err();
        assert!(!error.details.is_empty());
        error.code.number()
    }

    /// The same in a process of its own, under a program (and its options) if there is one.
    pub(crate) fn spawn(&self, ask: &Ask, answer: &Path, under: &[&str]) -> Child {
        let me = std::env::current_exe().unwrap();
        let mut argv: Vec<&std::ffi::OsStr> = under.iter().map(AsRef::as_ref).collect();
        argv.extend([me.as_os_str(), "child".as_ref(), "--exact".as_ref()]);
        let input = answer.with_extension("conf");
        fs::write(&input, serde_json::to_vec(&ask.conf).unwrap()).unwrap();
        Command::new(argv[0])
            .args(&argv[1..])
            .envs(&ask.variables)
            .env("CHILD_SYSFS", self.path("sys"))
            .env("CHILD_HOST", self.netns("host"))
            .env("CHILD_ANSWER", answer)
            .stdin(fs::File::open(&input).unwrap())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Names of the host's VFs with their addresses, which shows whether they are as they were.
    pub(crate) fn vfs(&self) -> Vec<(String, String)> {
        let text = self.ip("host", "-j link show");
        let links: Vec<Value> = serde_json::from_str(&text).unwrap();
        let text = |link: &Value, key: &str| link[key].as_str().unwrap_or_default().to_owned();
        let mut all: Vec<_> = links
            .iter()
            .filter(|link| link["ifname"] != "lo" && link["ifname"] != "hpf")
            .map(|link| {
                assert_eq!(link["mtu"], 1500, "{link}");
                (text(link, "ifname"), text(link, "address"))
            })
            .collect();
        all.sort_by_key(|(name, _)| name[3..].parse::<u32>().unwrap_or(0));
        all
    }

    /// Those that it has to have when nobody has one.
    pub(crate) fn all(&self, vfs: u32) -> Vec<(String, String)> {
        (1..=vfs).map(|number| (format!("hvf{number}"), mac(number))).collect()
    }

    /// How many attachments there are records of.
    pub(crate) fn attachments(&self) -> usize {
        fs::read_dir(self.path("state/attachments")).map_or(0, |all| {
            all.flatten()
                .filter(|entry| entry.path().extension().is_some_and(|e| e == "json"))
                .count()
        })
    }

    /// A plugin that manages addresses, which notes what it is asked. `answer` is what ADD says, and `status` how
    /// it ends.
    pub(crate) fn ipam(&self, answer: &str, status: u32) {
        let (bin, log) = (self.path("bin"), self.path("ipam.log"));
        fs::create_dir_all(&bin).unwrap();
        let script = format!(
            "#!/bin/sh\ncat >{}\necho $CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME >>{}\n\
             [ $CNI_COMMAND = ADD ] || exit 0\ncat <<'X'\n{answer}\nX\nexit {status}\n",
            self.path("ipam.conf").display(),
            log.display()
        );
        let new = bin.join("new");
        let mut file = fs::File::create(&new).unwrap();
        file.write_all(script.as_bytes()).unwrap();
        drop(file);
        sh(&format!(
            "chmod 755 {} && mv {} {}/addresses",
            new.display(),
            new.display(),
            bin.display()
        ));
    }

    pub(crate) fn ipam_log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("ipam.log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for ns in self.namespaces() {
            let _ = Command::new("ip").args(["netns", "del", &ns]).status();
        }
    }
}

pub(crate) fn address(number: u32) -> String {
    format!("0000:01:{:02x}.{:x}", number / 8, number % 8)
}

pub(crate) fn mac(number: u32) -> String {
    format!("02:00:00:00:01:{number:02x}")
}

/// Runs a command line, which has to succeed; its output.
pub(crate) fn sh(line: &str) -> String {
    let Output { status, stdout, stderr } = Command::new("sh").args(["-c", line]).output().unwrap();
    assert!(status.success(), "{line}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8_lossy(&stdout).into_owned()
}
