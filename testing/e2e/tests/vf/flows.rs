//! Flow rules that the guest sets on its functions, with the agent in it.

use std::time::Duration;

use api::channel::Flows;
use e2e::process::{pause, wait_for};
use e2e::traffic::{Host, must_not_ping, must_ping, ping};
use e2e::{Context, Result, ensure};

use crate::lab::{Lab, OUTSIDE, Spot, ip};

/// Starts the agent in the guest. The name of its port is a link to it where there is a udev.
const AGENT: &str = "mkdir -p /dev/virtio-ports; for d in /sys/class/virtio-ports/*; do \
    [ \"$(cat $d/name)\" != org.hayate.0 ] || \
    ln -sf /dev/${d##*/} /dev/virtio-ports/org.hayate.0; done; \
    (hayate-agent run --channel /dev/virtio-ports/org.hayate.0 >>/tmp/agent.log 2>&1 </dev/null &)";

/// Drops with counters that move; frames that go elsewhere, and copies; more than there may be.
pub(crate) fn rules(lab: &mut Lab) -> Result<String> {
    lab.enable(3)?;
    let (mut v0, mut v1, mut v2) = (lab.place(0)?, lab.place(1)?, lab.place(2)?);
    lab.guest(AGENT)?;
    let list = || -> Result<Flows> {
        let text = lab.guest("hayate-agent flow list eth0 --json")?;
        serde_json::from_str(&text).context(|| text.clone())
    };
    wait_for("the agent answers", Duration::from_secs(30), || {
        pause(Duration::from_millis(100))?;
        Ok(list().ok())
    })?;
    let packets = |id: u64| -> Result<u64> {
        let flows = list()?;
        let one = flows.rules.iter().find(|one| one.rule.id == id);
        Ok(one.context(|| format!("no rule {id}"))?.count.packets)
    };
    must_ping(&mut v1, &ip(0), 2, "")?;

    // What is dropped is counted, and other frames pass.
    let id = lab.guest("hayate-agent flow add eth0 vf0 to priority 9 proto icmp drop")?;
    ensure!(id.trim() == "1", "the first rule has number {id:?}");
    must_not_ping(&mut v1, &ip(0))?;
    let dropped = packets(1)?;
    ensure!(dropped > 0, "nothing was counted");
    must_not_ping(&mut *lab.outside.borrow_mut(), &ip(0))?;
    ensure!(packets(1)? > dropped, "the counter does not move");
    let shown = lab.hayate.cli("vf rules web-pf0")?;
    ensure!(shown.contains("vf0 to id 1 priority 9 proto icmp drop"), "{shown}");
    lab.guest("hayate-agent flow del eth0 1")?;
    must_ping(&mut v1, &ip(0), 2, "")?;

    // Only what was asked for comes in: by the state of connections.
    let file = r"default vf0 to drop\nvf0 to id 1 ethertype arp accept\n";
    let file = [file, r"vf0 to id 2 state established accept\n"].concat();
    lab.guest(&format!("printf '{file}' | hayate-agent flow replace eth0 -"))?;
    must_not_ping(&mut v1, &ip(0))?;
    must_ping(&mut v0, OUTSIDE, 2, "")?;
    ensure!(packets(2)? >= 2, "no answer was established");
    lab.guest("hayate-agent flow del eth0 --on vf0")?;

    // A copy of what VF 0 sends to VF 1 comes to VF 2, and what is forwarded comes nowhere else.
    let received = |spot: &mut Spot<'_>| -> Result<u64> {
        let text = spot.sh("cat /sys/class/net/card/statistics/rx_packets")?;
        text.trim().parse().context(|| text.clone())
    };
    let mac = v1.sh("cat /sys/class/net/card/address")?;
    let to_v1 = format!("dst-mac {} proto icmp", mac.trim());
    let before = received(&mut v2)?;
    lab.guest(&format!("hayate-agent flow add eth0 vf0 from id 5 {to_v1} mirror vf2 accept"))?;
    must_ping(&mut v0, &ip(1), 5, "")?;
    let copies = received(&mut v2)? - before;
    ensure!(copies >= 5, "{copies} copies of 5 pings");
    lab.guest("hayate-agent flow del eth0 5")?;
    lab.guest(&format!("hayate-agent flow add eth0 vf0 from id 6 {to_v1} forward vf2"))?;
    let before = received(&mut v2)?;
    ensure!(
        ping(&mut v0, &ip(1), 3, "-W 1")?.received == 0,
        "VF 1 answered what it should not get"
    );
    let forwarded = received(&mut v2)? - before;
    ensure!(forwarded >= 3 && packets(6)? >= 3, "{forwarded} of 3 pings were forwarded");

    // More than there may be: nothing of it is there.
    let many = "for i in $(seq 10 1100); do echo vf1 to id $i dst-port $i proto tcp drop; done";
    let refused =
        lab.guest(&format!("{many} | hayate-agent flow add eth0 -f - 2>&1 && echo DONE || true"))?;
    ensure!(refused.contains("1024") && !refused.contains("DONE"), "{refused}");
    ensure!(list()?.rules.len() == 1, "a part of what was refused is there");
    let many = many.replace("1100", "1009");
    lab.guest(&format!("{many} | hayate-agent flow add eth0 -f - >/dev/null"))?;
    ensure!(list()?.rules.len() == 1001, "a thousand rules in parts");

    // The agent may go: a filter stays.
    lab.guest("hayate-agent flow replace eth0 /dev/null --on vf0,vf1")?;
    lab.guest("hayate-agent flow default eth0 vf0 to drop; killall hayate-agent")?;
    must_not_ping(&mut v1, &ip(0))?;
    lab.hayate.cli("vf rules web-pf0 --clear")?;
    must_ping(&mut v1, &ip(0), 2, "")?;
    lab.enable(0)?;
    Ok(format!("{dropped} pings dropped, {copies} mirrored, {forwarded} forwarded, 1000 rules"))
}
