//! VFs carry what they are given.

use std::time::{Duration, Instant};

use api::{MAX_VFS, PortState};
use e2e::process::pause;
use e2e::traffic::{Host, must_ping, transfer};
use e2e::{Result, bail, cpu, ensure};

use crate::lab::{Lab, OUTSIDE, PEER, PF, VFS, ip};

/// Megabytes of each transfer.
const BULK: u32 = 4;

/// Pings, and a transfer each way; every byte is compared.
fn both_ways(a: &mut dyn Host, b: &mut dyn Host, ips: [&str; 2]) -> Result<()> {
    must_ping(a, ips[1], 3, "")?;
    must_ping(b, ips[0], 3, "")?;
    transfer(a, b, ips[1], BULK)?;
    transfer(b, a, ips[0], BULK)
}

/// Four VFs, each in a namespace: with each other, with their PF, another VM and the outside.
pub(crate) fn four_vfs(lab: &mut Lab) -> Result<String> {
    lab.wait_running(0)?;
    ensure!(lab.pf()?.functions[0].state == PortState::Running, "the PF does not run");
    let start = Instant::now();
    lab.enable(4)?;
    let seconds = start.elapsed().as_secs_f64();
    must_all_talk(lab, 4)?;
    Ok(format!("ready after {seconds:.1} s; each other, PF, VM and TAP, {BULK} MB each way"))
}

/// Puts enabled VFs into namespaces: the first two talk to each other, the second to the outside, the
/// third to the PF, the fourth to another VM.
pub(crate) fn must_all_talk(lab: &Lab, vfs: u16) -> Result<()> {
    let mut spots = Vec::new();
    for vf in 0..vfs {
        spots.push(lab.place(vf)?);
    }
    let [v0, v1, v2, v3, ..] = &mut spots[..] else { bail!("{vfs} VFs are too few") };
    both_ways(v0, v1, [&ip(0), &ip(1)])?;
    both_ways(v1, &mut *lab.outside.borrow_mut(), [&ip(1), OUTSIDE])?;
    both_ways(v2, &mut lab.pf_spot()?, [&ip(2), PF])?;
    both_ways(v3, &mut lab.peer_spot(), [&ip(3), PEER])
}

/// All VFs of the PF, those that are reached by ARI too.
pub(crate) fn all(lab: &mut Lab) -> Result<String> {
    let base = lab.base()?;
    lab.enable(VFS)?;
    let last = VFS - 1;
    let (mut first, mut last_one) = (lab.place(0)?, lab.place(last)?);
    both_ways(&mut first, &mut last_one, [&ip(0), &ip(last)])?;
    both_ways(&mut last_one, &mut *lab.outside.borrow_mut(), [&ip(last), OUTSIDE])?;
    lab.must_hold(&base)?;
    Ok(format!("VF {last} talks to VF 0 and to the outside"))
}

/// As many VFs as there can be.
pub(crate) fn pool() -> Result<Lab> {
    Lab::with(MAX_VFS, 1, "")
}

/// A guest that sees 255 VFs and enables some; the daemon does nothing for the rest.
pub(crate) fn of_255(lab: &mut Lab) -> Result<String> {
    const SOME: u16 = 20;
    let total = lab.guest("cat /sys/class/net/eth0/device/../sriov_totalvfs")?;
    ensure!(total.trim() == MAX_VFS.to_string(), "the guest sees {total}");
    lab.wait_running(0)?;
    pause(Duration::from_secs(1))?;
    let idle = cpu::percent_over(lab.hayate.pid()?, Duration::from_secs(2))?;
    lab.enable(SOME)?;
    must_all_talk(lab, 4)?;
    let mut last = lab.place(SOME - 1)?;
    both_ways(&mut last, &mut lab.peer_spot(), [&ip(SOME - 1), PEER])?;
    let boot = lab.web.borrow().boot_seconds;
    lab.enable(0)?;
    Ok(format!(
        "booted in {boot:.1} s, {SOME} enabled; the daemon used {idle:.2} % of a CPU while all were disabled; {}",
        lab.holdings()?
    ))
}
