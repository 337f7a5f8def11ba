//! Proves that the means of the other tests work, without hayate: two QEMU guests boot and talk
//! through dpdk-testpmd's vhost switch. What fails here is not hayate's fault.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use e2e::endpoint::Endpoint;
use e2e::guest::{Config, Guest, Nic};
use e2e::process::{pause, wait_for};
use e2e::suite::{Case, case, main as run};
use e2e::testpmd::{Testpmd, VirtioUser};
use e2e::traffic::{datagrams, iperf, must_ping, transfer};
use e2e::{Context, Result, assets, ensure};

struct Pair {
    a: Guest,
    b: Guest,
    _switch: Testpmd,
    _dir: tempfile::TempDir,
}

fn boot() -> Result<Pair> {
    let assets = assets::get()?;
    let dir = tempfile::Builder::new().prefix("hayate-e2e-").tempdir()?;
    let (sa, sb) = (dir.path().join("a.sock"), dir.path().join("b.sock"));
    let switch = Testpmd::switch(&[&sa, &sb], 1)?;
    let start = |name: &str, socket: &Path, n| {
        Guest::start(assets, dir.path(), Config::new(name).nic(Nic::new(socket, n)))
    };
    let (mut a, mut b) = (start("a", &sa, 1)?, start("b", &sb, 2)?);
    a.wait_ready()?;
    b.wait_ready()?;
    for (g, n) in [(&mut a, 1), (&mut b, 2)] {
        // testpmd forwards frames as they are: what is not finished in the guest stays unfinished.
        g.sh(&format!(
            "ethtool -K eth0 tx off >/dev/null; ip addr add 10.0.0.{n}/24 dev eth0; \
             ip addr add fd00::{n}/64 dev eth0 nodad; ip link set eth0 up"
        ))?;
    }
    Ok(Pair { a, b, _switch: switch, _dir: dir })
}

/// Our end, testpmd as a switch, testpmd as a guest that sends back.
fn reflect(packed: bool, mergeable: bool, in_order: bool) -> Result<String> {
    let dir = tempfile::Builder::new().prefix("hayate-e2e-").tempdir()?;
    let (ours, theirs) = (dir.path().join("a.sock"), dir.path().join("b.sock"));
    let _switch = Testpmd::switch(&[&ours, &theirs], 1)?;
    let _guest = Testpmd::reflector(&VirtioUser {
        socket: theirs,
        mac: "02:00:00:00:00:aa".into(),
        queues: 1,
        packed,
        mergeable,
        in_order,
        size: 256,
    })?;
    let mut endpoint = Endpoint::connect(&ours, 0)?;
    pause(Duration::from_millis(300))?;
    for size in [64, 1518] {
        endpoint.round(64, size, 16)?;
    }
    Ok("frames of 64 and 1518 bytes intact".into())
}

fn guests() -> Vec<Case<Pair>> {
    vec![
        case("guests_boot_and_ping", |p: &mut Pair| {
            let r = must_ping(&mut p.a, "10.0.0.2", 10, "")?;
            let (a, b) = (p.a.boot_seconds, p.b.boot_seconds);
            Ok(format!("booted in {a:.1} and {b:.1} s, round trip {:.2} ms", r.rtt_ms[1]))
        }),
        case("iperf3", |p: &mut Pair| {
            let r = iperf(&mut p.a, &mut p.b, "10.0.0.2", 2, "")?;
            let u = iperf(&mut p.a, &mut p.b, "10.0.0.2", 2, "-u -b 50M -l 1400")?;
            ensure!(u.datagrams > 0, "no datagrams");
            Ok(format!("TCP {:.0}, UDP {:.0} Mbit/s", r.received / 1e6, u.received / 1e6))
        }),
        case("transfer_with_hash", |p: &mut Pair| {
            transfer(&mut p.a, &mut p.b, "10.0.0.2", 8)?;
            transfer(&mut p.b, &mut p.a, "fd00::1", 8)?;
            Ok("8 MB each way, IPv4 and IPv6".into())
        }),
        case("datagrams_with_pattern", |p: &mut Pair| {
            datagrams(&mut p.a, &mut p.b, "10.0.0.2", 200, 1400, 0)?;
            datagrams(&mut p.b, &mut p.a, "fd00::1", 200, 0, 1000)
        }),
        case("login_shell", |p: &mut Pair| {
            let mut shell = UnixStream::connect(p.a.path("shell"))?;
            shell.set_read_timeout(Some(Duration::from_secs(1)))?;
            let mut said = String::new();
            wait_for("an answer of the shell", Duration::from_secs(20), || {
                shell.write_all(b"echo sum-$((40+2)) $(tty)\n")?;
                let mut chunk = [0; 4096];
                if let Ok(n) = shell.read(&mut chunk) {
                    said.push_str(&String::from_utf8_lossy(&chunk[..n]));
                }
                Ok(said.contains("sum-42 /dev/hvc0").then_some(()))
            })
            .context(|| format!("it said {said:?}"))?;
            Ok("a terminal answers".into())
        }),
        case("reboot", |p: &mut Pair| {
            let s = p.b.reboot()?;
            p.b.sh(
                "ethtool -K eth0 tx off; ip addr add 10.0.0.2/24 dev eth0; ip link set eth0 up",
            )?;
            must_ping(&mut p.a, "10.0.0.2", 3, "")?;
            Ok(format!("{s:.1} s"))
        }),
    ]
}

fn main() -> ExitCode {
    run(|suite| {
        let reflected =
            [(false, true, false), (true, true, false), (true, false, true), (false, false, true)];
        let cases = reflected.map(|(packed, mergeable, in_order)| {
            case(
                format!("packed_{packed}_mergeable_{mergeable}_in_order_{in_order}"),
                move |(): &mut ()| reflect(packed, mergeable, in_order),
            )
        });
        suite.group("endpoint_without_hayate", || Ok(()), cases.into(), |()| Ok(String::new()));
        let cases = guests();
        suite.group("guests_without_hayate", boot, cases, |_| Ok(String::new()));
    })
}
