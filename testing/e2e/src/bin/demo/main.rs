//! The demo: two real guests and the host on one network of hayate, with traffic both ways. The
//! guests boot from disks that hayate serves, thin clones of one image.
//!
//! It makes a network namespace of its own for the host's end, so that nothing of the machine's own
//! network is touched, and leaves nothing behind, whether it succeeds, fails or is interrupted.
//! With `KEEP=1` everything goes on running and it says how to log in and how to stop it.
//! The exit status says whether all was well: no lost ping, traffic each way, every frame accounted
//! for, a file that is there after a reboot.

mod screen;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use api::{Image, Port, PortState};
use e2e::accel::{self, Accel};
use e2e::assets::{self, Assets};
use e2e::cpu::{Window, percent_over};
use e2e::guest::{Config, Guest, Nic};
use e2e::hayate::{Balance, Hayate};
use e2e::netns::Netns;
use e2e::process::{catch_signals, interrupted};
use e2e::traffic::{Host, Ping, Place, Rate, iperf, must_ping};
use e2e::{Result, ensure};
use screen::Screen;

const NETWORK: &str = "demo";
const GUESTS: [&str; 2] = ["vm1", "vm2"];
/// The image that the guests' disks are clones of.
const SYSTEM: &str = "system";
const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
/// Seconds of each iperf3 run.
const SECONDS: u32 = 4;

fn main() -> ExitCode {
    catch_signals();
    let screen = Screen::new();
    let keep = std::env::var("KEEP").is_ok_and(|v| !v.is_empty() && v != "0");
    screen.title("hayate: two guests and the host on one network, and the guests' disks");
    match demo(screen, keep) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if interrupted() => {
            screen.bad("\n  interrupted; everything has been stopped and removed\n");
            ExitCode::from(130)
        }
        Err(e) => {
            screen.bad(&format!("\n  failed: {e}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Everything that runs. Dropping it stops and removes all of it, guests first.
struct Lab {
    guests: [Guest; 2],
    hayate: Hayate,
    /// The host's end of the network: a namespace with a TAP interface.
    host: Place,
    /// Run directory, sockets and logs.
    dir: tempfile::TempDir,
}

/// What was measured.
struct Findings {
    quiet: f64,
    tcp_cpu: f64,
    udp_cpu: f64,
    ping: [Ping; 2],
    host_ping: Ping,
    tcp: [Rate; 2],
    udp: [Rate; 2],
    host_tcp: [Rate; 2],
    disk: DiskFindings,
}

/// What was seen of the disks.
struct DiskFindings {
    /// The image, and the clones of it that the guests wrote.
    images: [Image; 3],
    /// MB/s of the first guest: written, read.
    rates: [f64; 2],
    /// Seconds of its reboot.
    reboot: f64,
}

fn demo(screen: Screen, keep: bool) -> Result<()> {
    // These show their own progress when there is something to fetch or to try.
    let assets = assets::get()?;
    let accel = accel::detect(assets)?;
    screen.step("setup", || {
        let how = if accel == Accel::Kvm { "KVM" } else { "emulated: KVM is not usable here" };
        let text = format!("QEMU {}, Linux {}, {how}", assets.qemu_version, assets.kernel_version);
        Ok(((), text))
    })?;
    let mut lab = start(screen, assets, accel)?;
    let findings = measure(screen, &mut lab, accel)?;
    let ports = lab.hayate.ports()?;
    let balance = lab.hayate.conserved(NETWORK);
    let balance_now = lab.hayate.balance(NETWORK)?;
    summary(screen, &lab, &findings, &ports, &balance_now);
    balance?;
    lab.hayate.check()?;
    let [vm1, vm2] = findings.tcp;
    ensure!(vm1.received > 0.0 && vm2.received > 0.0, "no TCP throughput");
    if keep {
        return keep_running(screen, lab);
    }
    screen.step("clean up", || {
        let Lab { guests, hayate, host, dir } = lab;
        drop(guests);
        hayate.stop()?;
        drop((host, dir));
        Ok(((), "guests, daemon, namespace and files are gone".into()))
    })?;
    screen.good(
        "\n  All well: every ping answered, every frame delivered or counted, the file survived.\n",
    );
    screen.line("  `make demo KEEP=1` leaves it running for you to look around.\n");
    Ok(())
}

fn start(screen: Screen, assets: &Assets, accel: Accel) -> Result<Lab> {
    let dir = tempfile::Builder::new().prefix("hayate-demo-").tempdir()?;
    let netns = screen.step("namespace", || {
        let netns = Netns::named(&format!("hayate-demo-{}", std::process::id()))?;
        let text = format!("{} stands for the host; its own network is not touched", netns.name());
        Ok((netns, text))
    })?;
    let hayate = screen.step("daemon", || {
        let h = Hayate::start_lasting(dir.path(), &[])?;
        let text = format!("process {}, run directory {}", h.pid()?, dir.path().display());
        Ok((h, text))
    })?;
    screen.step("network", || {
        hayate.network(NETWORK)?;
        for vm in GUESTS {
            hayate.cli(&format!("vm add {vm}"))?;
            hayate.vhost(vm, NETWORK, &format!("--vm {vm}"))?;
        }
        hayate.tap("host", NETWORK, netns.name(), "")?;
        netns.ip("addr add 10.77.0.254/24 dev host")?;
        netns.ip("link set host up")?;
        Ok(((), format!("{NETWORK}, with ports vm1 and vm2 (vhost-user) and host (TAP)")))
    })?;
    screen.step("disks", || {
        hayate.cli(&format!("image import {} {SYSTEM} --format raw", assets.disk.display()))?;
        for vm in GUESTS {
            hayate.cli(&format!("image clone {SYSTEM} {vm}"))?;
            hayate.cli(&format!("disk add {vm} --image {vm} --vm {vm}"))?;
        }
        let [image, one, two] = images(&hayate)?.map(|image| bytes(image.allocated));
        Ok(((), format!("image {SYSTEM} takes {image}, its clones vm1 and vm2 {one} and {two}")))
    })?;
    let guests = screen.step("boot from their disks", || {
        let boot = |i: usize| {
            let socket = dir.path().join(format!("{}.sock", GUESTS[i]));
            let mut config = Config::new(GUESTS[i]).nic(Nic::new(&socket, 1));
            config.boots_from_disk = true;
            config.more = hayate.disk_qemu(assets, GUESTS[i], "")?;
            config.nics[0].mac = format!("52:54:00:77:00:0{}", i + 1);
            config.accel = Some(accel);
            config.lasting = true;
            Guest::start(assets, dir.path(), config)
        };
        let mut guests = [boot(0)?, boot(1)?];
        for (g, address) in guests.iter_mut().zip(ADDRESSES) {
            g.wait_ready()?;
            g.sh(&format!("ip addr add {address}/24 dev eth0; ip link set eth0 up"))?;
        }
        for vm in GUESTS {
            hayate.wait_state(vm, PortState::Running)?;
        }
        let times = guests.each_ref().map(|g| format!("{} in {:.1} s", g.name(), g.boot_seconds));
        Ok((guests, times.join(", ")))
    })?;
    Ok(Lab { guests, hayate, host: Place::of(netns)?, dir })
}

fn measure(screen: Screen, lab: &mut Lab, accel: Accel) -> Result<Findings> {
    let pid = lab.hayate.pid()?;
    let Lab { guests: [a, b], host, .. } = lab;
    let ping = |from: &mut dyn Host, to: &str, name: &str| {
        screen.step(name, || {
            let p = must_ping(from, to, 20, "")?;
            let [least, average, most] = p.rtt_ms;
            let text = format!(
                "{} of {} answered, {least:.2} / {average:.2} / {most:.2} ms",
                p.received, p.sent
            );
            Ok((p, text))
        })
    };
    let pings =
        [ping(a, ADDRESSES[1], "ping vm1 -> vm2")?, ping(b, ADDRESSES[0], "ping vm2 -> vm1")?];
    let host_ping = ping(host, ADDRESSES[0], "ping host -> vm1")?;
    let quiet = screen.step("quiet for 5 s", || {
        let percent = percent_over(pid, Duration::from_secs(5))?;
        Ok((percent, format!("the daemon used {percent:.2} % of a core")))
    })?;
    let run = |from: &mut dyn Host, to: &mut dyn Host, address: &str, options: &str, name: &str| {
        screen.step(name, || {
            let r = iperf(from, to, address, SECONDS, options)?;
            let text = if r.datagrams > 0 {
                format!("{}, {:.2} % of {} lost", bits(r.received), r.lost_percent, r.datagrams)
            } else {
                format!("{}, {} retransmitted", bits(r.received), r.retransmits)
            };
            Ok((r, text))
        })
    };
    let load = Window::open(pid)?;
    let tcp = [
        run(a, b, ADDRESSES[1], "", "TCP vm1 -> vm2")?,
        run(b, a, ADDRESSES[0], "", "TCP vm2 -> vm1")?,
    ];
    let tcp_cpu = load.percent()?;
    // About what an emulated guest can receive.
    let offer = if accel == Accel::Kvm { "-u -l 1400 -b 1G" } else { "-u -l 1400 -b 50M" };
    let load = Window::open(pid)?;
    let udp = [
        run(a, b, ADDRESSES[1], offer, "UDP vm1 -> vm2")?,
        run(b, a, ADDRESSES[0], offer, "UDP vm2 -> vm1")?,
    ];
    let udp_cpu = load.percent()?;
    let host_tcp = [
        run(host, a, ADDRESSES[0], "", "TCP host -> vm1")?,
        run(a, host, "10.77.0.254", "", "TCP vm1 -> host")?,
    ];
    let disk = measure_disk(screen, lab)?;
    Ok(Findings { disk, quiet, tcp_cpu, udp_cpu, ping: pings, host_ping, tcp, udp, host_tcp })
}

/// A guest writes a file to its disk and reads it, reboots, and reads it again.
fn measure_disk(screen: Screen, lab: &mut Lab) -> Result<DiskFindings> {
    const MEGABYTES: u32 = 64;
    let guest = &mut lab.guests[0];
    let mut rates = [0.0; 2];
    let sum = screen.step("vm1 writes a file", || {
        let seconds = |guest: &mut Guest, command: &str| -> Result<f64> {
            let took = guest.sh(&format!(
                "read a b </proc/uptime; {command}; read c d </proc/uptime; echo $a $c"
            ))?;
            let times: Vec<f64> = took.split_whitespace().filter_map(|t| t.parse().ok()).collect();
            ensure!(times.len() == 2, "{command}: {took}");
            Ok(times[1] - times[0])
        };
        guest.sh("dd if=/dev/urandom of=/tmp/file bs=1M count=64 2>/dev/null")?;
        let writing = "dd if=/tmp/file of=/root/file bs=1M conv=fsync 2>/dev/null";
        let reading = "dd if=/root/file of=/dev/null bs=1M iflag=direct 2>/dev/null";
        for (rate, command) in rates.iter_mut().zip([writing, reading]) {
            *rate = f64::from(MEGABYTES) * 1.048_576 / seconds(guest, command)?.max(0.01);
        }
        let sum = guest.sh("sha256sum /root/file; rm /tmp/file")?;
        let [wrote, read] = rates;
        Ok((sum, format!("{MEGABYTES} MiB, {wrote:.0} MB/s, and reads it, {read:.0} MB/s")))
    })?;
    let reboot = screen.step("vm1 reboots", || {
        let seconds = guest.reboot()?;
        let again = guest.sh("sha256sum /root/file")?;
        ensure!(again == sum, "the file was {sum}, after the reboot it is {again}");
        guest.sh(&format!("ip addr add {}/24 dev eth0; ip link set eth0 up", ADDRESSES[0]))?;
        Ok((seconds, format!("in {seconds:.1} s, and finds its file, byte for byte")))
    })?;
    Ok(DiskFindings { images: images(&lab.hayate)?, rates, reboot })
}

/// The image that was imported, and its clones.
fn images(hayate: &Hayate) -> Result<[Image; 3]> {
    let [one, two] = GUESTS;
    Ok([hayate.image(SYSTEM)?, hayate.image(one)?, hayate.image(two)?])
}

fn summary(screen: Screen, lab: &Lab, f: &Findings, ports: &[Port], balance: &Balance) {
    screen.title("  Summary");
    let cells = |v: &[&str]| v.iter().map(ToString::to_string).collect::<Vec<String>>();
    screen.row("", &cells(&["vm1 -> vm2", "vm2 -> vm1"]));
    let rtt = |p: &Ping| format!("{:.2} ms", p.rtt_ms[1]);
    screen.row("round trip", &f.ping.each_ref().map(rtt));
    screen.row("TCP", &f.tcp.map(|r| bits(r.received)));
    let udp = |r: Rate| format!("{}, {:.2} % lost", bits(r.received), r.lost_percent);
    screen.row("UDP, 1400 bytes", &f.udp.map(udp));
    screen.line("");
    screen.row("", &cells(&["host -> vm1", "vm1 -> host"]));
    screen.row("round trip", &[rtt(&f.host_ping)]);
    screen.row("TCP", &f.host_tcp.map(|r| bits(r.received)));
    screen.line("");
    screen.row(
        "CPU of the daemon",
        &[format!(
            "{:.2} % of a core when quiet, {:.0} % under TCP, {:.0} % under UDP",
            f.quiet, f.tcp_cpu, f.udp_cpu
        )],
    );
    let boots = lab.guests.each_ref().map(|g| format!("{} {:.1} s", g.name(), g.boot_seconds));
    screen.row("boot", &[boots.join(", ")]);
    let DiskFindings { images: [system, one, two], rates: [wrote, read], reboot } = &f.disk;
    screen.row(
        "disks",
        &[format!(
            "image {} of {}; written by vm1 {}, by vm2 {}",
            bytes(system.allocated),
            bytes(system.size),
            bytes(one.allocated),
            bytes(two.allocated)
        )],
    );
    screen.row(
        "",
        &[format!(
            "vm1 wrote {wrote:.0} MB/s, read {read:.0} MB/s, kept its file over a reboot of {reboot:.1} s"
        )],
    );
    for p in ports.iter().filter(|p| GUESTS.contains(&p.name.as_str())) {
        let offload = |n: &&String| {
            n.contains("csum")
                || n.contains("tso")
                || n.contains("uso")
                || n.contains("ecn")
                || *n == "mrg_rxbuf"
        };
        let list: Vec<&str> = p.features.iter().filter(offload).map(String::as_str).collect();
        let (first, second) = list.split_at(list.len().min(7));
        screen.row(&format!("offloads, {}", p.name), &[first.join(" ")]);
        if !second.is_empty() {
            screen.row("", &[second.join(" ")]);
        }
    }
    screen.line("");
    let mut rows = vec![cells(&[
        "port",
        "state",
        "frames in",
        "bytes in",
        "GSO in",
        "frames out",
        "bytes out",
        "GSO out",
        "segmented",
        "dropped",
    ])];
    for p in ports {
        let (i, o) = (&p.from_port, &p.to_port);
        let mut row = cells(&[p.name.as_str(), p.state.as_str()]);
        let numbers = [
            i.frames,
            i.bytes,
            i.gso_frames,
            o.frames,
            o.bytes,
            o.gso_frames,
            o.segmented,
            p.dropped(),
        ];
        row.extend(numbers.map(grouped));
        rows.push(row);
    }
    screen.table(&rows);
    screen.line("");
    let drops: Vec<String> = ports
        .iter()
        .flat_map(|p| {
            p.drops.iter().map(move |(why, n)| format!("{}: {why} {}", p.name, grouped(*n)))
        })
        .collect();
    screen
        .row("drops by reason", &[if drops.is_empty() { "none".into() } else { drops.join(", ") }]);
    screen.row(
        "frames accounted for",
        &[format!(
            "{} in + {} copies {}= {} out + {} dropped; unexplained: {}",
            grouped(balance.entered),
            grouped(balance.copies),
            if balance.added == 0 {
                String::new()
            } else {
                format!("+ {} by segmentation ", balance.added)
            },
            grouped(balance.left),
            grouped(balance.dropped),
            balance.missing()
        )],
    );
    screen.line("");
}

/// Leaves everything running, with a script that stops it.
fn keep_running(screen: Screen, mut lab: Lab) -> Result<()> {
    let dir = lab.dir.path().to_path_buf();
    let pids = [lab.guests[0].pid(), lab.guests[1].pid(), lab.hayate.pid()?];
    let stop = dir.join("stop");
    fs::write(&stop, stop_script(&dir, lab.host.netns.name(), pids))?;
    fs::set_permissions(&stop, fs::Permissions::from_mode(0o755))?;
    for g in &mut lab.guests {
        g.leave_running();
    }
    lab.hayate.leave_running();
    lab.host.netns.keep();
    screen.good("  Everything goes on running.\n");
    for (vm, address) in GUESTS.iter().zip(ADDRESSES) {
        screen.row(
            &format!("log in to {vm}"),
            &[format!(
                "socat -,raw,echo=0,escape=0x1d {}   ({address})",
                dir.join(format!("{vm}.shell")).display()
            )],
        );
    }
    screen.row("", &["press Enter for a prompt; Ctrl-] leaves".into()]);
    let ns = lab.host.netns.name();
    screen.row("from the host's end", &[format!("ip netns exec {ns} ping {}", ADDRESSES[0])]);
    let command = format!("{} --run-dir {}", lab.hayate.binary().display(), dir.display());
    screen.row("ask hayate", &[format!("{command} show")]);
    screen.row("", &[format!("{command} image list")]);
    screen.row("stop and remove all", &[stop.display().to_string()]);
    screen.line("");
    let _ = lab.dir.keep();
    Ok(())
}

/// Ends exactly the processes of this demo: a process id is only used when its command line still
/// names this run's folder.
fn stop_script(dir: &Path, netns: &str, pids: [u32; 3]) -> String {
    let dir = dir.display();
    let pids = pids.map(|p| p.to_string()).join(" ");
    format!(
        "#!/bin/sh\n# Stops the demo and removes everything it made.\n\
         ours() {{ tr '\\0' ' ' <\"/proc/$1/cmdline\" 2>/dev/null | grep -qF '{dir}'; }}\n\
         for p in {pids}; do ours $p && kill $p; done\n\
         for i in 1 2 3 4 5 6 7 8 9 10; do\n    left=\n\
         \x20   for p in {pids}; do ours $p && left=1; done\n\
         \x20   [ -z \"$left\" ] && break\n    sleep 0.3\ndone\n\
         for p in {pids}; do ours $p && kill -9 $p; done\n\
         ip netns del {netns}\nrm -rf '{dir}'\necho 'stopped and removed'\n"
    )
}

/// Bytes in the next smaller unit.
fn bytes(n: u64) -> String {
    if n >= 10 << 20 { format!("{} MiB", n >> 20) } else { format!("{} KiB", n >> 10) }
}

fn bits(per_second: f64) -> String {
    if per_second >= 1e9 {
        format!("{:.2} Gbit/s", per_second / 1e9)
    } else {
        format!("{:.0} Mbit/s", per_second / 1e6)
    }
}

/// 1234567 as `1,234,567`.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, d) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(d);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(n), text);
        }
    }

    #[test]
    fn stop_script_is_a_shell_script() {
        let text = stop_script(Path::new("/tmp/x"), "ns", [1, 2, 3]);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("s");
        fs::write(&file, text).unwrap();
        e2e::process::run("sh", &["-n", &file.to_string_lossy()]).unwrap();
    }
}
