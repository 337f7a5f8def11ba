use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

/// A network namespace of its own for each test.
struct Netns(String);

impl Netns {
    fn new() -> Option<Netns> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            println!("not root: not tested");
            return None;
        }
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let netns = Netns(format!("hayate-sys-{}-{id}", std::process::id()));
        let status = Command::new("ip").args(["netns", "add", &netns.0]).status().unwrap();
        assert!(status.success());
        Some(netns)
    }

    /// Runs `ip` in it. Returns what it said, if it succeeded.
    fn ip(&self, args: &str) -> Option<String> {
        let mut command = Command::new("ip");
        let output = command.args(["-n", &self.0]).args(args.split(' ')).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    fn config<'a>(&'a self, ifname: &'a str, queues: u16) -> TapConfig<'a> {
        TapConfig { ifname, netns: Some(&self.0), queues }
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[test]
fn lives_in_the_namespace_and_as_long_as_its_queues() {
    let Some(netns) = Netns::new() else { return };
    let mut queues = Tap::create(&netns.config("hy0", 4)).unwrap();
    assert_eq!(queues.len(), 4);
    let shown = netns.ip("-d link show hy0").unwrap();
    assert!(shown.contains(",UP") && shown.contains("multi_queue"), "{shown}");
    // Not in ours.
    assert!(!Command::new("ip").args(["link", "show", "hy0"]).output().unwrap().status.success());

    let tap = queues[3].tap();
    assert_eq!(tap.name().unwrap(), "hy0");
    let mac = tap.mac().unwrap().map(|byte| format!("{byte:02x}")).join(":");
    assert!(shown.contains(&mac), "{mac} {shown}");
    netns.ip("link set hy0 address 02:00:00:00:00:05").unwrap();
    assert_eq!(tap.mac().unwrap(), [2, 0, 0, 0, 0, 5]);
    tap.set_mtu(9000).unwrap();
    tap.set_up(false).unwrap();
    let shown = netns.ip("link show hy0").unwrap();
    assert!(shown.contains("mtu 9000") && !shown.contains(",UP"), "{shown}");
    // Renamed by somebody else.
    netns.ip("link set hy0 name other").unwrap();
    assert_eq!(tap.name().unwrap(), "other");
    tap.set_mtu(1280).unwrap();
    tap.set_up(true).unwrap();
    assert!(netns.ip("link show other").unwrap().contains("mtu 1280"));
    assert_eq!(tap.set_mtu(10).unwrap_err().kind(), io::ErrorKind::InvalidInput);

    queues.truncate(1);
    assert!(netns.ip("link show other").is_some());
    queues.clear();
    assert!(netns.ip("link show other").is_none());
}

#[test]
fn carrier() {
    let Some(netns) = Netns::new() else { return };
    let queues = Tap::create(&netns.config("hy1", 1)).unwrap();
    queues[0].set_carrier(false).unwrap();
    assert!(netns.ip("link show hy1").unwrap().contains("NO-CARRIER"));
    queues[0].set_carrier(true).unwrap();
    assert!(!netns.ip("link show hy1").unwrap().contains("NO-CARRIER"));
}

#[test]
fn offloads_reach_the_interface() {
    let Some(netns) = Netns::new() else { return };
    let queues = Tap::create(&netns.config("hy2", 2)).unwrap();
    let offloads = queues[0].tap().offloads();
    assert_eq!(offloads & 0x0f, 0x0f);
    let shown = netns.ip("-d link show hy2").unwrap();
    assert!(shown.contains("vnet_hdr on") && shown.contains("pi off"), "{shown}");
    assert_eq!(queues[0].tap().has_uso(), offloads & 0x60 == 0x60);
}

#[test]
fn says_what_is_wrong() {
    let Some(netns) = Netns::new() else { return };
    let fails = |config: &TapConfig<'_>| Tap::create(config).map(|_| ()).unwrap_err();
    let _held = Tap::create(&netns.config("hy3", 1)).unwrap();
    let error = fails(&netns.config("hy3", 1));
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(error.to_string(), "an interface named hy3 exists already");
    // Also one of another kind, and one that could take more queues.
    assert_eq!(fails(&netns.config("lo", 1)).kind(), io::ErrorKind::AlreadyExists);
    let _many = Tap::create(&netns.config("hy5", 2)).unwrap();
    assert_eq!(fails(&netns.config("hy5", 2)).kind(), io::ErrorKind::AlreadyExists);

    for name in ["", "a/b", "sixteen-is-too-long".get(..16).unwrap(), "a b", "..", "a:1", "a\0"] {
        assert_eq!(fails(&netns.config(name, 1)).kind(), io::ErrorKind::InvalidInput, "{name:?}");
    }
    for queues in [0, MAX_QUEUES + 1, u16::MAX] {
        assert_eq!(fails(&netns.config("hy6", queues)).kind(), io::ErrorKind::InvalidInput);
    }
    let nowhere = TapConfig { ifname: "hy7", netns: Some("hayate-no-such"), queues: 1 };
    let error = fails(&nowhere);
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(error.to_string().contains("/run/netns/hayate-no-such"), "{error}");
    let wrong = TapConfig { netns: Some("/proc/self/ns/mnt"), ..nowhere };
    assert_eq!(fails(&wrong).kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn kernel_chooses_the_number() {
    let Some(netns) = Netns::new() else { return };
    let path = format!("/run/netns/{}", netns.0);
    let config = TapConfig { ifname: "hy%d", netns: Some(&path), queues: 2 };
    let a = Tap::create(&config).unwrap();
    let b = Tap::create(&config).unwrap();
    assert_eq!(
        (a[0].tap().name().unwrap(), b[1].tap().name().unwrap()),
        ("hy0".into(), "hy1".into())
    );
}

/// The kernel in the namespace answers an ARP request, so frames pass both ways with their headers.
#[test]
fn frames_both_ways() {
    let Some(netns) = Netns::new() else { return };
    let queues = Tap::create(&netns.config("hy8", 1)).unwrap();
    let (queue, mac) = (&queues[0], queues[0].tap().mac().unwrap());
    netns.ip("addr add 192.0.2.1/24 dev hy8").unwrap();
    let ours = [2, 0, 0, 0, 0, 9];
    let mut request = [0xff; 6].to_vec();
    request.extend(ours);
    request.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    request.extend(ours);
    request.extend([192, 0, 2, 9]);
    request.extend([0; 6]);
    request.extend([192, 0, 2, 1]);
    request.resize(60, 0);
    let pieces = [IoSlice::new(&[0; VNET_HDR_LEN]), IoSlice::new(&request)];
    assert_eq!(queue.write(&pieces).unwrap(), VNET_HDR_LEN + 60);

    let deadline = Instant::now() + Duration::from_secs(20);
    let mut buf = [0; 2048];
    loop {
        match queue.read(&mut buf) {
            Ok(len) => {
                let frame = &buf[VNET_HDR_LEN..len];
                // What else the kernel says on a new interface (IPv6) is not looked at.
                if frame[12..14] == [8, 6] && frame[20..22] == [0, 2] {
                    assert_eq!((&frame[..6], &frame[22..28]), (&ours[..], &mac[..]));
                    assert_eq!(frame[28..32], [192, 0, 2, 1]);
                    break;
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                assert!(Instant::now() < deadline, "no answer");
                let second = Timespec { tv_sec: 1, tv_nsec: 0 };
                poll(&mut [PollFd::new(queue, PollFlags::IN)], Some(&second)).unwrap();
            }
        }
    }
    assert_eq!(
        queue.write(&[IoSlice::new(&[0; 5])]).unwrap_err().kind(),
        io::ErrorKind::InvalidInput
    );
}
