//! VFs come and go, guests and daemons too; nothing is left of them.

use std::time::Instant;

use api::PortState;
use e2e::traffic::{Host, must_not_ping, must_ping};
use e2e::{Result, ensure};

use crate::lab::{Lab, OUTSIDE, PF, VFS, ip};
use crate::pass::must_all_talk;

/// Writes to `sriov_numvfs`, and reboots of the guest: a few, unless all are asked for.
fn rounds(few: u32, all: u32) -> u32 {
    if std::env::var_os("E2E_VF_FULL").is_some() { all } else { few }
}

/// Numbers that are the same in every run.
fn random(seed: &mut u32, below: u32) -> u32 {
    *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    (*seed >> 16) % below
}

/// Traffic that does not care whether it arrives: a VF that is there sends to the PF and to the outside,
/// and the outside to the VF and to the PF.
struct Noise {
    processes: Vec<e2e::process::Process>,
}

impl Noise {
    fn start(lab: &Lab) -> Result<Self> {
        let mac = lab.pf()?.functions[1].mac;
        let mut outside = lab.outside.borrow_mut();
        // The address is there before its owner, and frames for it go to whoever has it.
        outside.sh(&format!("ip neigh replace {} lladdr {mac} dev outside", ip(0)))?;
        let mut processes = Vec::new();
        for to in [&ip(0), PF] {
            let log = outside.scratch().join(format!("{to}.log")).display().to_string();
            processes
                .extend(outside.background(&format!("ping -q -n -i 0.01 -s 1200 {to}"), &log)?);
        }
        // Whatever card comes first is VF 0 or as good as it.
        lab.guest(&format!(
            "(while [ ! -e /tmp/quiet ]; do \
             for d in /sys/class/net/eth*; do d=${{d##*/}}; [ $d = eth0 ] && continue; \
             ip link set $d up; ip addr add {}/24 dev $d; \
             ping -q -I $d -i 0.01 -c 40 -W 1 {OUTSIDE}; ip addr flush dev $d; done; sleep 0.05; \
             done) >/dev/null 2>&1 </dev/null &",
            ip(0)
        ))?;
        Ok(Self { processes })
    }

    fn stop(self, lab: &Lab) -> Result<()> {
        drop(self.processes);
        let gone = "while pidof ping >/dev/null; do sleep 0.1; done; sleep 0.3";
        lab.guest(&format!("touch /tmp/quiet; {gone}; rm -f /tmp/quiet"))?;
        lab.outside.borrow_mut().sh(&format!("ip neigh del {} dev outside", ip(0)))?;
        Ok(())
    }
}

/// The guest writes whatever comes to its mind, while frames flow.
pub(crate) fn writes(lab: &mut Lab) -> Result<String> {
    let count = rounds(30, 200);
    let base = lab.base()?;
    let noise = Noise::start(lab)?;
    let (start, mut seed, mut refused) = (Instant::now(), 7, 0);
    for _ in 0..count {
        // Another number than 0 is taken only after 0, and none above what there is.
        let vfs = if random(&mut seed, 2) == 0 { 0 } else { random(&mut seed, u32::from(VFS) + 2) };
        let out = lab
            .guest(&format!("echo {vfs} > /sys/class/net/eth0/device/../sriov_numvfs; echo $?"))?;
        refused += u32::from(!out.trim().ends_with('0'));
    }
    let each = start.elapsed().as_secs_f64() / f64::from(count);
    noise.stop(lab)?;
    lab.must_hold(&base)?;
    lab.enable(4)?;
    must_all_talk(lab, 4)?;
    lab.must_hold(&base)?;
    lab.hayate.conserved("lan")?;
    Ok(format!(
        "{count} writes, {refused} of them refused by the kernel, {each:.2} s each; then all talk, and the daemon holds what it did: {base}"
    ))
}

/// The guest reboots with VFs in use: they are gone afterwards, and can be had again.
pub(crate) fn reboots(lab: &mut Lab) -> Result<String> {
    let count = rounds(2, 20);
    let base = lab.base()?;
    let (mut seed, mut seconds) = (3, 0.0);
    for _ in 0..count {
        let vfs = 1 + random(&mut seed, u32::from(VFS)) as u16;
        lab.enable(vfs)?;
        let mut v0 = lab.place(0)?;
        must_ping(&mut v0, OUTSIDE, 1, "")?;
        v0.background(&format!("ping -q -i 0.01 {OUTSIDE}"), "/tmp/reboot.log")?;
        seconds += lab.web.borrow_mut().reboot()?;
        lab.configure_pf()?;
        let vfs = lab.guest("cat /sys/class/net/eth0/device/../sriov_numvfs")?;
        ensure!(vfs.trim() == "0", "{vfs} VFs after a reboot");
        lab.wait_running(0)?;
        must_not_ping(&mut *lab.outside.borrow_mut(), &ip(0))?;
        must_ping(&mut *lab.outside.borrow_mut(), PF, 1, "")?;
    }
    lab.must_hold(&base)?;
    lab.enable(4)?;
    must_all_talk(lab, 4)?;
    lab.must_hold(&base)?;
    let each = seconds / f64::from(count);
    Ok(format!("{count} reboots of {each:.1} s; then all talk, and the daemon holds what it did"))
}

/// QEMU is killed with VFs in use; the next one finds its sockets.
pub(crate) fn qemu_killed(lab: &mut Lab) -> Result<String> {
    lab.enable(4)?;
    let mut v0 = lab.place(0)?;
    must_ping(&mut v0, OUTSIDE, 1, "")?;
    lab.web.borrow_mut().kill9();
    for function in lab.pf()?.functions {
        lab.hayate.wait_state(function.port.as_str(), PortState::Waiting)?;
    }
    let alone = lab.holdings()?;
    lab.start_again()?;
    lab.enable(4)?;
    must_all_talk(lab, 4)?;
    Ok(format!("{alone} while it was away; then all talk"))
}

/// The daemon is killed, and started again: VFs in use go on, and what the guest did to others
/// meanwhile counts.
pub(crate) fn daemon_killed(lab: &mut Lab) -> Result<String> {
    lab.enable(4)?;
    must_all_talk(lab, 4)?;
    lab.hayate.kill9();
    lab.launch()?;
    lab.wait_running(4)?;
    must_ping(&mut *lab.outside.borrow_mut(), &ip(3), 3, "")?;
    lab.hayate.kill9();
    lab.guest("echo 0 > /sys/class/net/eth0/device/../sriov_numvfs")?;
    lab.launch()?;
    lab.wait_running(0)?;
    must_not_ping(&mut *lab.outside.borrow_mut(), &ip(3))?;
    lab.hayate.kill9();
    lab.guest("echo 4 > /sys/class/net/eth0/device/../sriov_numvfs")?;
    lab.launch()?;
    lab.wait_running(4)?;
    must_all_talk(lab, 4)?;
    lab.enable(0)?;
    lab.hayate.check()?;
    Ok("with VFs in use, disabled and enabled meanwhile".into())
}
