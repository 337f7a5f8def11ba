//! Offloads switched off on one side, in many combinations: what arrives must be what was sent.

use e2e::suite::{Case, Suite, case};
use e2e::traffic::{datagrams, transfer};
use e2e::{Result, ensure};

use super::{Lab, Link, ip, ip6};

/// A device of b; a's has everything. What b cannot take the switch has to do.
struct Device {
    name: &'static str,
    props: &'static str,
    /// Frames to b have to be segmented.
    segments: bool,
    /// Checksums of frames to b have to be completed.
    completes: bool,
}

const fn passes(name: &'static str, props: &'static str) -> Device {
    Device { name, props, segments: false, completes: false }
}

const fn segments(name: &'static str, props: &'static str) -> Device {
    Device { name, props, segments: true, completes: false }
}

const NO_HOST: &str = "host_tso4=off,host_tso6=off,host_ecn=off,host_uso=off,host_ufo=off";
const NO_GUEST: &str = "guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_uso4=off,guest_uso6=off";

/// By index: link `i`. (QEMU never offers USO on a vhost-user device: it is tried over TAP ports.)
const DEVICES: [Device; 12] = [
    passes("everything", ""),
    passes(
        "csum=off",
        "csum=off,host_tso4=off,host_tso6=off,host_ecn=off,host_uso=off,host_ufo=off",
    ),
    Device {
        name: "guest_csum=off",
        props: "guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_uso4=off,guest_uso6=off,guest_ufo=off",
        segments: true,
        completes: true,
    },
    segments("guest_tso4=off", "guest_tso4=off"),
    segments("guest_tso6=off", "guest_tso6=off"),
    segments("guest_offloads=off", NO_GUEST),
    passes("host_tso4=off", "host_tso4=off"),
    passes("host_offloads=off", NO_HOST),
    passes("mrg_rxbuf=off", "mrg_rxbuf=off"),
    segments(
        "mrg_rxbuf=off,guest_offloads=off",
        "mrg_rxbuf=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_uso4=off,guest_uso6=off",
    ),
    segments("packed,mrg_rxbuf=off,guest_tso4=off", "packed=on,mrg_rxbuf=off,guest_tso4=off"),
    passes("indirect_desc=off,event_idx=off", "indirect_desc=off,event_idx=off"),
];

/// What a guest switches off itself, on link 0.
const ETHTOOL: [&str; 9] = [
    "tx off",
    "rx off",
    "tso off",
    "tx-tcp-segmentation off",
    "tx-tcp6-segmentation off",
    "tx-udp-segmentation off",
    "gso off",
    "gro off",
    "tx off rx off sg off tso off gso off gro off",
];

fn boot() -> Result<Lab> {
    let links = DEVICES.map(|d| Link::new("", d.props));
    Lab::boot(&links, &|_| Ok([Vec::new(), Vec::new()]))
}

/// Files both ways over IPv4 and IPv6, datagrams both ways, some of them cut by the device.
fn exchange(lab: &mut Lab, i: usize) -> Result<String> {
    let names = [format!("a{i}"), format!("b{i}")];
    let before = [lab.hayate.port(&names[0])?, lab.hayate.port(&names[1])?];
    transfer(&mut lab.a, &mut lab.b, &ip(i, 2), 4)?;
    transfer(&mut lab.b, &mut lab.a, &ip(i, 1), 4)?;
    transfer(&mut lab.a, &mut lab.b, &ip6(i, 2), 4)?;
    transfer(&mut lab.b, &mut lab.a, &ip6(i, 1), 4)?;
    datagrams(&mut lab.a, &mut lab.b, &ip(i, 2), 64, 1400, 0)?;
    datagrams(&mut lab.a, &mut lab.b, &ip(i, 2), 64, 0, 1000)?;
    datagrams(&mut lab.b, &mut lab.a, &ip6(i, 1), 64, 0, 1200)?;
    lab.hayate.conserved(&format!("n{i}"))?;
    let mut text = Vec::new();
    for (name, before) in names.iter().zip(before) {
        let (now, was) = (lab.hayate.port(name)?.to_port, before.to_port);
        let (segmented, completed) =
            (now.segmented - was.segmented, now.csum_completed - was.csum_completed);
        let to_b = name.starts_with('b');
        let device = &DEVICES[i];
        ensure!(
            (segmented > 0) == (to_b && device.segments),
            "{segmented} frames to {name} were segmented"
        );
        ensure!(
            (completed > 0) == (to_b && device.completes),
            "checksums of {completed} frames to {name} were completed"
        );
        text.push(format!(
            "to {}: {} frames, {} GSO, {} segmented, {} checksums completed",
            &name[..1],
            now.frames - was.frames,
            now.gso_frames - was.gso_frames,
            segmented,
            completed
        ));
    }
    Ok(text.join("; "))
}

fn by_guest(lab: &mut Lab, side: usize, off: &str) -> Result<String> {
    let guest = |lab: &mut Lab, command: &str| {
        let g = if side == 0 { &mut lab.a } else { &mut lab.b };
        g.sh(command)
    };
    // What cannot be switched on this kernel is said; the exchange must work all the same.
    let said = guest(lab, &format!("ethtool -K eth0 {off} 2>&1 || true"))?;
    let result = exchange(lab, 0);
    guest(
        lab,
        "for f in sg tx rx tso gso gro tx-udp-segmentation; do ethtool -K eth0 $f on; done >/dev/null 2>&1; true",
    )?;
    let fixed = said.contains("Could not change") || said.contains("Cannot change");
    result.map(|t| if fixed { format!("(cannot be changed) {t}") } else { t })
}

pub(crate) fn group(suite: &mut Suite) {
    let mut cases: Vec<Case<Lab>> = Vec::new();
    for (i, device) in DEVICES.iter().enumerate() {
        cases.push(case(format!("device::{}", device.name), move |l: &mut Lab| exchange(l, i)));
    }
    for off in ETHTOOL {
        for (side, which) in ["a", "b"].iter().enumerate() {
            let name = format!("ethtool::{which}::{}", off.replace(" off", "").replace(' ', "+"));
            cases.push(case(name, move |l: &mut Lab| by_guest(l, side, off)));
        }
    }
    suite.group("offload", boot, cases, |lab| {
        let Lab { a, b, hayate } = lab;
        drop((a, b));
        hayate.stop()?;
        Ok("no panic".into())
    });
}
