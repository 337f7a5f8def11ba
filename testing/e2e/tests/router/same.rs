//! With and without a bypass: the same bytes at B, and the same answers at A.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use e2e::netns::Netns;
use e2e::process::wait_for;
use e2e::{Result, ensure};

use crate::lab::{A, B, Kind, Lab, Mac, Machine, PATIENCE, ip, text};
use crate::packets::{
    Link, OWN4, Rng, Sent, answered_by_the_router, for_the_router, is_barrier, random, sum,
};

/// Packets between two looks at what came of them: few enough that a router has room for its
/// answers to all of them.
const BATCH: usize = 16;

/// What came of some packets: frames, and how many of each.
type Came = BTreeMap<Vec<u8>, u32>;

/// A router with two interfaces and a VLAN on each.
pub fn set_up(kind: Kind, source_check: u8) -> Result<Lab> {
    let mut lab = Lab::new(kind, 2, &script(kind, source_check)?, "")?;
    wait(&mut lab)?;
    Ok(lab)
}

/// Sets the router up again, without its agent.
pub fn configure(lab: &mut Lab, kind: Kind, source_check: u8) -> Result<()> {
    lab.router.lines(&script(kind, source_check)?)
}

/// Routes of every kind. All neighbours are known for good: what waits for one that is not takes the
/// room of other answers.
fn script(kind: Kind, source_check: u8) -> Result<String> {
    let (a, b) = (text(A), text(B));
    let mut lines = format!(
        "link set r0 mtu 9000
         link set r0 up
         link set r1 up
         addr add 10.1.0.1/24 brd + dev r0
         addr add 10.2.0.1/24 brd + dev r1
         addr add fd00:1::1/64 dev r0 nodad
         addr add fd00:2::1/64 dev r1 nodad
         neigh add 10.1.0.2 lladdr {a} dev r0 nud permanent
         neigh add 10.2.0.2 lladdr {b} dev r1 nud permanent
         neigh add 10.2.0.0 lladdr {b} dev r1 nud permanent
         neigh add fd00:1::2 lladdr {a} dev r0 nud permanent
         neigh add fd00:2::2 lladdr {b} dev r1 nud permanent
         neigh add fe80::77 lladdr {a} dev r0 nud permanent
         neigh add fe80::b lladdr {b} dev r1 nud permanent
         route add 192.168.0.0/16 via 10.2.0.2
         route add 172.16.0.0/16 via 10.1.0.2
         route add blackhole 198.18.0.0/24
         route add unreachable 198.18.1.0/24
         route add prohibit 198.18.2.0/24
         route add fd00:4d::/32 via fd00:1::2
         route add 2001:db8:1::/48 via fd00:2::2
         route add 2001:db8:3::/48 via fe80::b dev r1
         route add blackhole 2001:db8:18::/48
         route add unreachable 2001:db8:19::/48
         route add prohibit 2001:db8:1a::/48"
    );
    // Not every kernel has them. What is sent into a VLAN is the router's to drop, then.
    if kind == Kind::Guest || Netns::new()?.ip("link add link lo name lo.1 type vlan id 1").is_ok()
    {
        let _ = write!(
            lines,
            "
             link add link r0 name r0.10 type vlan id 10
             link add link r1 name r1.20 type vlan id 20
             link set r0.10 up
             link set r1.20 up
             addr add 10.1.10.1/24 brd + dev r0.10
             addr add 10.2.20.1/24 brd + dev r1.20
             addr add fd00:1:a::1/64 dev r0.10 nodad
             addr add fd00:2:14::1/64 dev r1.20 nodad
             neigh add 10.1.10.2 lladdr {a} dev r0.10 nud permanent
             neigh add 10.2.20.2 lladdr {b} dev r1.20 nud permanent
             neigh add fe80::77 lladdr {a} dev r0.10 nud permanent
             neigh add fd00:1:a::2 lladdr {a} dev r0.10 nud permanent
             neigh add fd00:2:14::2 lladdr {b} dev r1.20 nud permanent
             route add 192.168.200.0/24 via 10.2.20.2
             route add 2001:db8:2::/48 via fd00:2:14::2"
        );
    }
    // Rates of ICMP errors are not what is compared here.
    let settings = format!(
        "sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
         net.ipv4.icmp_ratelimit=0 net.ipv4.icmp_msgs_per_sec=1000000 \
         net.ipv4.icmp_msgs_burst=1000000 net.ipv6.icmp.ratelimit=0 \
         net.ipv6.auto_flowlabels=0 net.ipv4.conf.all.rp_filter={source_check} \
         net.ipv4.conf.default.rp_filter={source_check} net.ipv4.conf.all.send_redirects=0 \
         net.ipv4.conf.default.send_redirects=0 && \
         for i in r0 r1; do echo 0 >/proc/sys/net/ipv4/conf/$i/send_redirects; done"
    );
    // Linux in a guest holds segments of TCP back, past packets that are sent after them.
    let gro = if kind == Kind::Guest { "ethtool -K r0 gro off" } else { "" };
    // Nor when it gives up a neighbour that does not answer.
    let patient = "for i in /proc/sys/net/ipv[46]/neigh/r*/mcast_solicit; do echo 10000 >$i; done";
    Ok(format!("{settings}\n{gro}\n{}{patient}", ip(&lines)))
}

/// Waits until all is delegated.
pub fn wait(lab: &mut Lab) -> Result<()> {
    let Lab { router, hayate, .. } = lab;
    router.wait(hayate, "all routes to be delegated", |shown| {
        let router = &shown["router"];
        router["policy"] == "plain" && router["prefixes"].as_u64() > Some(30)
    })?;
    // Until it has its link-local addresses it answers from others.
    wait_for("addresses of the links", PATIENCE, || {
        let tentative = router.sh("ip -6 addr show")?;
        let links = router.sh("ip -6 addr show scope link")?;
        Ok((!tentative.contains("tentative") && links.matches("fe80::").count() >= 2).then_some(()))
    })
}

/// So many packets, with the bypass and without.
pub fn packets(lab: &mut Lab, packets: u32) -> Result<String> {
    let link = Link { a: A, router: lab.router.macs[0] };
    let mut rng = Rng::new(20);
    let mut all: Vec<Sent> = (0..packets).map(|n| random(&mut rng, link, n)).collect();
    if let Machine::Guest(_) = lab.router.machine {
        // Packets that its card brings it together with another one to the same destination, Linux
        // forwards without a look at their source. Which they are is chance.
        all.retain(|sent| !own_source(&sent.frame));
    }
    let packets = u32::try_from(all.len())?;
    lab.router.bypass(&lab.hayate, false)?;
    // Linux answers some packets only the first time.
    pass(lab, &all)?;
    let without = pass(lab, &all)?;
    lab.router.bypass(&lab.hayate, true)?;
    let before = lab.router.bypassed(&lab.hayate)?;
    let with = pass(lab, &all)?;
    let bypassed = lab.router.bypassed(&lab.hayate)? - before;
    let (mut forwarded, mut answers) = (0, 0);
    let mut again = 0;
    for ((with, without), sent) in with.iter().zip(&without).zip(all.chunks(BATCH)) {
        if compare(with, without, sent).is_err() {
            // A frame that a busy machine lost is not lost again.
            lab.router.bypass(&lab.hayate, false)?;
            let without = pass(lab, sent)?;
            lab.router.bypass(&lab.hayate, true)?;
            let with = pass(lab, sent)?;
            for (with, without) in with.iter().zip(&without) {
                compare(with, without, sent)?;
            }
            again += 1;
        }
        answers += without[0].values().sum::<u32>();
        forwarded += without[1].values().sum::<u32>();
    }
    // Of those that reach B a part must have gone past the router, or nothing was compared.
    ensure!(forwarded > packets / 8, "only {forwarded} of {packets} frames reached B");
    ensure!(
        bypassed > u64::from(packets / 10),
        "only {bypassed} of {packets} went past the router"
    );
    ensure!(answers > packets / 50, "only {answers} answers");
    ensure!(
        again <= 2,
        "{again} times something came with the bypass, or without, that never came again"
    );
    Ok(format!(
        "{packets} packets: {forwarded} frames at B, {answers} answers at A, the same each time; \
         {bypassed} went past the router; asked again {again} times"
    ))
}

fn compare(with: &[Came; 2], without: &[Came; 2], sent: &[Sent]) -> Result<()> {
    for ((host, with), without) in ["A", "B"].into_iter().zip(with).zip(without) {
        same(host, with, without, sent)?;
    }
    Ok(())
}

fn same(host: &str, with: &Came, without: &Came, sent: &[Sent]) -> Result<()> {
    let differ = |one: &Came, other: &Came| -> Vec<String> {
        let more = one.iter().filter(|(frame, count)| other.get(*frame) != Some(count));
        more.map(|(frame, count)| format!("{count} x {}", hex(frame))).collect()
    };
    let (only_with, only_without) = (differ(with, without), differ(without, with));
    if only_with.is_empty() && only_without.is_empty() {
        return Ok(());
    }
    // Which packet it was: its number is in it.
    let sent: Vec<String> = sent.iter().map(|one| hex(&one.frame)).collect();
    e2e::bail!(
        "{host} got with the bypass\n  {}\nand without\n  {}\nof\n  {}",
        only_with.join("\n  "),
        only_without.join("\n  "),
        sent.join("\n  ")
    )
}

/// The beginning of a frame, and its length.
fn hex(frame: &[u8]) -> String {
    let digits: String = frame.iter().take(90).map(|byte| format!("{byte:02x}")).collect();
    format!("{digits} ({})", frame.len())
}

/// Sends all packets; what came to A and to B of each batch.
fn pass(lab: &mut Lab, all: &[Sent]) -> Result<Vec<[Came; 2]>> {
    let link = Link { a: A, router: lab.router.macs[0] };
    let mut batches = Vec::new();
    for (n, batch) in (0u32..).zip(all.chunks(BATCH)) {
        for Sent { header, frame } in batch {
            lab.send(header, frame)?;
        }
        // What the router does with these two it does after all it does with those before.
        for Sent { header, frame } in [for_the_router(link, n), answered_by_the_router(link, n)] {
            lab.send(&header, &frame)?;
        }
        lab.hosts[0].flush()?;
        let at_a = lab.until("the router's answer", 0, |frame| is_barrier(frame, n))?;
        let at_b = lab.until("a packet by way of the router", 1, |frame| is_barrier(frame, n))?;
        let macs = &lab.router.macs;
        batches.push([at_a, at_b].map(|came| {
            let mut counted = Came::new();
            for (header, frame) in came {
                if is_of_interest(macs, &frame) && !is_barrier(&frame, n) {
                    *counted.entry(comparable(&header, frame)).or_default() += 1;
                }
            }
            counted
        }));
    }
    Ok(batches)
}

/// Offset of layer 3 and EtherType.
fn network(frame: &[u8]) -> (usize, [u8; 2]) {
    if frame[12..14] == [0x81, 0] {
        (18, [frame[16], frame[17]])
    } else {
        (14, [frame[12], frame[13]])
    }
}

/// Whether the source is an address of the router, of IPv4.
fn own_source(frame: &[u8]) -> bool {
    let (l3, ethertype) = network(frame);
    let own = OWN4.iter().any(|own| frame.get(l3 + 12..l3 + 16) == Some(own));
    ethertype == [8, 0] && own
}

/// Not what a router sends by its own clock: ARP, neighbour discovery (redirects among it), MLD, and
/// that there is no route (ICMP for IPv4), which Linux says five times and then once a second.
fn is_of_interest(macs: &[Mac], frame: &[u8]) -> bool {
    let from_router = macs.iter().any(|mac| frame[6..12] == *mac);
    let (l3, ethertype) = network(frame);
    let v6 = ethertype == [0x86, 0xdd];
    let discovery =
        v6 && frame.get(l3 + 6) == Some(&58) && matches!(frame.get(l3 + 40), Some(130..=143));
    let no_route = ethertype == [8, 0]
        && frame.get(l3 + 9) == Some(&1)
        && matches!(icmp_v4(frame, l3), Some([3, 0 | 1 | 13]));
    let listener = v6 && frame.get(l3 + 6) == Some(&0) && frame.get(l3 + 40) == Some(&58);
    from_router && ethertype != [0x08, 0x06] && !discovery && !listener && !no_route
}

/// Type and code of ICMP for IPv4.
fn icmp_v4(frame: &[u8], l3: usize) -> Option<[u8; 2]> {
    let l4 = l3 + 4 * usize::from(frame.get(l3)? & 15);
    frame.get(l4..l4 + 2)?.try_into().ok()
}

/// The header as far as it says something, and the frame. Of the router's own packets (ICMP) the
/// identification is a counter, or a number at random in fragments of IPv6: it is left out, once the
/// checksum over it, if there is one, was found right.
fn comparable(header: &[u8; 12], mut frame: Vec<u8>) -> Vec<u8> {
    let (l3, ethertype) = network(&frame);
    if own_source(&frame) {
        let header = frame.len().min(l3 + 4 * usize::from(frame[l3] & 15));
        if sum(&frame[l3..header]) == 0xffff {
            frame[l3 + 4..l3 + 6].fill(0);
            frame[l3 + 10..l3 + 12].fill(0);
        }
    }
    let fragment = ethertype == [0x86, 0xdd] && frame.get(l3 + 6) == Some(&44);
    let interface = [0, 0, 0, 0, 0, 0, 0, 1];
    if fragment && frame.get(l3 + 16..l3 + 24) == Some(&interface[..]) && frame.len() > l3 + 48 {
        frame[l3 + 44..l3 + 48].fill(0);
    }
    let [flags, gso, _, _, size0, size1, start0, start1, offset0, offset1, ..] = *header;
    // Only with its flag have the checksum's fields a meaning.
    let csum = if flags & 1 != 0 { [1, start0, start1, offset0, offset1] } else { [0; 5] };
    [&csum[..], &[gso, size0, size1], &frame].concat()
}
