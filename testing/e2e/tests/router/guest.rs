//! A router that is a stock Linux guest of QEMU, with the agent as guests get it.

use e2e::suite::{Case, Suite, case};
use e2e::{Result, bail, ensure};

use crate::lab::{B, Kind, Lab, Machine};
use crate::packets::B4;
use crate::traffic::{SECOND, Way};
use crate::{finish, same};

/// Emulated, it takes its time.
const PACKETS: u32 = 24_000;
const BY_B: Way = (1, B);

pub fn group(suite: &mut Suite) {
    let cases: Vec<Case<Lab>> = vec![
        case("packets", |lab: &mut Lab| same::packets(lab, PACKETS)),
        case("agent_killed", agent_killed),
        case("reboot", reboot),
        case("qemu_killed", qemu_killed),
    ];
    suite.group("guest", || same::set_up(Kind::Guest, 0), cases, finish);
}

/// QEMU keeps the connection of an agent that is killed: its lease ends what it delegated.
fn agent_killed(lab: &mut Lab) -> Result<String> {
    restart_agent(lab, 1000)?;
    lab.with_traffic(&[B4], |r, hayate, t| {
        t.bypasses(r, hayate)?;
        r.kill_agent()?;
        let event = t.now();
        t.wait(event + SECOND)?;
        t.by_the_router(r, hayate)?;
        t.until("frames by B", |_, way| way == Some(BY_B))?;
        r.start_agent(hayate, "--lease 1s")?;
        t.bypasses(r, hayate)?;
        Ok("all by the router after its lease, then past it again".into())
    })
}

/// A guest that reboots says nothing any more, so that its lease ends. It routes again without its
/// agent, which then delegates anew.
fn reboot(lab: &mut Lab) -> Result<String> {
    restart_agent(lab, 1000)?;
    let (seconds, after) = lab.with_traffic(&[B4], |r, hayate, t| {
        t.bypasses(r, hayate)?;
        let Machine::Guest(guest) = &mut r.machine else { bail!("no guest") };
        let event = t.now();
        let seconds = guest.reboot()?;
        let after = t.last(event, |_, way| way == BY_B).map_or(0, |n| n + 1 - event);
        // A second to go down, and its lease.
        ensure!(after <= 2 * SECOND, "{after} frames after the command one went past the router");
        t.until("no frames", |_, way| way.is_none())?;
        r.name_cards()?;
        Ok((seconds, after))
    })?;
    same::configure(lab, Kind::Guest, 0)?;
    lab.with_traffic(&[B4], |r, hayate, t| {
        t.until("frames by B", |_, way| way == Some(BY_B))?;
        t.by_the_router(r, hayate)?;
        r.start_agent(hayate, "--lease 1s")?;
        t.bypasses(r, hayate)
    })?;
    Ok(format!(
        "none went past it later than {after} ms after the command, until the next agent; back after \
         {seconds:.1} s"
    ))
}

/// With QEMU its ports go.
fn qemu_killed(lab: &mut Lab) -> Result<String> {
    restart_agent(lab, 60_000)?;
    lab.with_traffic(&[B4], |r, hayate, t| {
        t.bypasses(r, hayate)?;
        let Machine::Guest(guest) = &mut r.machine else { bail!("no guest") };
        let begun = t.now();
        guest.kill9();
        let after = t.gone(begun, SECOND, BY_B)?;
        t.until("no frames", |_, way| way.is_none())?;
        let shown = r.show(hayate)?;
        ensure!(shown["router"]["placed"] == 0, "{shown:#}");
        Ok(format!("none later than {after} after the signal"))
    })
}

/// Another agent, with this lease, which delegates all.
fn restart_agent(lab: &mut Lab, lease_ms: u64) -> Result<()> {
    let Lab { router, hayate, .. } = lab;
    router.kill_agent()?;
    // What the one before delegated must not be taken for its.
    router.wait(hayate, "the end of a lease", |shown| shown["router"]["nexthops"] == 0)?;
    router.start_agent(hayate, &format!("--lease {lease_ms}ms"))?;
    same::wait(lab)
}
