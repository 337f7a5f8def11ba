//! Frames as lists of tags, and a switch written the plain way: maps, one thread, no memory of
//! verdicts, nothing shared with the crate but the types of its interface.
#![allow(dead_code, clippy::unwrap_used)] // each test binary uses its part

use std::collections::BTreeMap;

use packet::{Head, Mac};
use switch::{DropReason, LinkState, NetworkId, PortId, Snapshot, Verdict, VlanMode};

/// A tag: protocol and TCI.
pub(crate) type Tag = (u16, u16);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) dst: Mac,
    pub(crate) src: Mac,
    pub(crate) tags: Vec<Tag>,
}

impl Frame {
    pub(crate) fn new(dst: u64, src: u64) -> Self {
        Self { dst: Mac::from_u64(dst), src: Mac::from_u64(src), tags: Vec::new() }
    }

    pub(crate) fn tagged(mut self, tags: &[Tag]) -> Self {
        self.tags = tags.to_vec();
        self
    }

    pub(crate) fn head(&self) -> Head {
        let mut bytes = [self.dst.0, self.src.0].concat();
        for (protocol, tci) in &self.tags {
            bytes.extend(protocol.to_be_bytes());
            bytes.extend(tci.to_be_bytes());
        }
        bytes.extend([0x88, 0xb5]);
        bytes.resize(60, 0);
        let mut head = Head::new();
        head.copy_from(&bytes);
        head
    }

    /// The tags of a frame after what the switch did to it.
    fn tags_of(head: &Head) -> Vec<Tag> {
        let mut words =
            head.bytes()[12..].chunks(2).map(|word| u16::from_be_bytes([word[0], word[1]]));
        let mut tags = Vec::new();
        while let Some(protocol @ (0x8100 | 0x88a8)) = words.next() {
            tags.push((protocol, words.next().unwrap()));
        }
        tags
    }
}

/// What becomes of a frame: where copies leave, with which tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Forward(PortId, Vec<Tag>),
    Flood(BTreeMap<PortId, Vec<Tag>>),
    Drop(DropReason),
}

/// Carries out a verdict.
pub(crate) fn outcome(snapshot: &Snapshot, verdict: Verdict, frame: &Frame) -> Outcome {
    let edited = |edit| {
        let mut head = frame.head();
        assert!(head.edit(edit), "{edit:?} of {frame:?}");
        Frame::tags_of(&head)
    };
    match verdict {
        Verdict::Drop(reason) => Outcome::Drop(reason),
        Verdict::Forward { port, edit } | Verdict::Router { port, edit } => {
            Outcome::Forward(port, edited(edit))
        }
        Verdict::Flood(flood) => {
            let members: Vec<_> =
                snapshot.flood(flood, frame.dst).map(|m| (m.port, edited(m.edit))).collect();
            let map: BTreeMap<_, _> = members.iter().cloned().collect();
            assert_eq!(map.len(), members.len(), "a port twice in {members:?}");
            Outcome::Flood(map)
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) port: PortId,
    pub(crate) stamp: u64,
    pub(crate) fixed: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) network: NetworkId,
    pub(crate) vlan: VlanMode,
    pub(crate) up: bool,
    pub(crate) running: bool,
    pub(crate) link: LinkState,
    pub(crate) limit: Option<usize>,
    /// The only address learned here; the port gets no others.
    pub(crate) only: Option<Mac>,
    /// Priority of untagged frames.
    pub(crate) qos: Option<u8>,
}

impl Port {
    /// Up or down; whether that is new.
    pub(crate) fn set_up(&mut self) -> bool {
        let up = match self.link {
            LinkState::Auto => self.running,
            LinkState::Enable => true,
            LinkState::Disable => false,
        };
        std::mem::replace(&mut self.up, up) != up
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Network {
    pub(crate) limit: usize,
    pub(crate) age_ms: u64,
    /// By (FID, address).
    pub(crate) entries: BTreeMap<(u16, Mac), Entry>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) networks: BTreeMap<NetworkId, Network>,
    pub(crate) ports: BTreeMap<PortId, Port>,
}

impl Network {
    fn learned(&self, port: Option<PortId>) -> usize {
        let counts = |e: &&Entry| !e.fixed && port.is_none_or(|port| e.port == port);
        self.entries.values().filter(counts).count()
    }
}

impl Model {
    pub(crate) fn forget(&mut self, port: PortId, fixed_too: bool) {
        for network in self.networks.values_mut() {
            network.entries.retain(|_, e| e.port != port || (e.fixed && !fixed_too));
        }
    }

    pub(crate) fn maintain(&mut self, now: u64) {
        for network in self.networks.values_mut() {
            let age = network.age_ms;
            network.entries.retain(|_, e| e.fixed || now - e.stamp < age);
        }
    }

    pub(crate) fn frame(&mut self, in_port: PortId, frame: &Frame, now: u64) -> Outcome {
        let drop = Outcome::Drop;
        let Some(port) = self.ports.get(&in_port).filter(|port| port.up).cloned() else {
            return drop(DropReason::PortDown);
        };
        if frame.src.is_zero() || frame.src.is_multicast() {
            return drop(DropReason::SrcMacInvalid);
        }
        if frame.dst.0[..5] == [1, 0x80, 0xc2, 0, 0] && frame.dst.0[5] < 16 {
            return drop(DropReason::ReservedMulticast);
        }
        let Some(fid) = ingress(&port.vlan, &frame.tags) else {
            return drop(DropReason::VlanNotAllowed);
        };
        if port.only.is_none_or(|only| only == frame.src) {
            self.learn(in_port, &port, (fid, frame.src), now);
        }
        // On a port that gives its own, what the guest says is not heard.
        let access = matches!(port.vlan, VlanMode::Access(_));
        let given = port.qos.filter(|_| access).map(|qos| u16::from(qos) << 13);
        let mut frame = frame.clone();
        match (given, frame.tags.first_mut()) {
            (Some(given), Some((0x8100, tci))) if *tci & 0xfff == 0 => *tci = given,
            _ => {}
        }
        let untagged = frame.tags.first().is_none_or(|(protocol, _)| *protocol != 0x8100);
        let given = given.filter(|_| untagged).unwrap_or(0);
        let network = &self.networks[&port.network];
        if !frame.dst.is_multicast()
            && let Some(entry) = network.entries.get(&(fid, frame.dst))
        {
            if entry.port == in_port {
                return drop(DropReason::SamePort);
            }
            let to = &self.ports[&entry.port];
            match egress(&to.vlan, fid, &frame.tags, given) {
                Some(Err(())) => return drop(DropReason::VlanNotAllowed),
                Some(Ok(_)) if !to.up => return drop(DropReason::PortDown),
                Some(Ok(tags)) => return Outcome::Forward(entry.port, tags),
                None => {}
            }
        }
        let others = self
            .ports
            .iter()
            .filter(|(id, other)| **id != in_port && other.up && other.network == port.network)
            .filter(|(_, other)| {
                frame.dst.is_multicast() || other.only.is_none_or(|only| only == frame.dst)
            });
        let members: BTreeMap<_, _> = others
            .filter_map(|(id, other)| {
                Some((*id, egress(&other.vlan, fid, &frame.tags, given)?.ok()?))
            })
            .collect();
        if members.is_empty() { drop(DropReason::NoDestination) } else { Outcome::Flood(members) }
    }

    fn learn(&mut self, in_port: PortId, port: &Port, key: (u16, Mac), now: u64) {
        let network = self.networks.get_mut(&port.network).unwrap();
        let port_full = port.limit.is_some_and(|limit| network.learned(Some(in_port)) >= limit);
        let full = port_full || network.learned(None) >= network.limit;
        match network.entries.get_mut(&key) {
            Some(entry) if entry.fixed => {}
            Some(entry) if entry.port == in_port => {
                let fresh = now - entry.stamp < 1000;
                entry.stamp = if fresh { entry.stamp } else { now };
            }
            Some(entry) if !port_full => {
                *entry = Entry { port: in_port, stamp: now, fixed: false };
            }
            None if !full => {
                network.entries.insert(key, Entry { port: in_port, stamp: now, fixed: false });
            }
            _ => {}
        }
    }
}

/// VLAN a frame is in (0: none), if the port allows it.
fn ingress(mode: &VlanMode, tags: &[Tag]) -> Option<u16> {
    let untagged = match mode {
        VlanMode::None => Some(0),
        VlanMode::Access(vid) => Some(*vid),
        VlanMode::Trunk { native, .. } => *native,
    };
    let transparent = *mode == VlanMode::None;
    match tags {
        [] => untagged,
        [(0x8100, tci), rest @ ..] if tci & 0xfff == 0 => {
            untagged.filter(|_| transparent || rest.is_empty())
        }
        [(0x8100, tci), ..] => {
            let vid = tci & 0xfff;
            let allowed = match mode {
                VlanMode::None => true,
                VlanMode::Access(_) => false,
                VlanMode::Trunk { allowed, native } => {
                    allowed.iter().any(|other| other == vid) || *native == Some(vid)
                }
            };
            (allowed && vid < 4095).then_some(vid)
        }
        _ => untagged.filter(|_| transparent),
    }
}

/// Tags a frame of a VLAN leaves with; `Some(Err)`: it must not, `None`: not a member.
fn egress(mode: &VlanMode, fid: u16, tags: &[Tag], given: u16) -> Option<Result<Vec<Tag>, ()>> {
    let strip = match mode {
        VlanMode::None if fid == 0 => return Some(Ok(tags.to_vec())),
        VlanMode::None => false,
        VlanMode::Access(vid) if *vid == fid => true,
        VlanMode::Trunk { native: Some(vid), .. } if *vid == fid => true,
        VlanMode::Trunk { allowed, .. } if allowed.iter().any(|vid| vid == fid) => false,
        _ => return None,
    };
    // A tag with VLAN id 0 is a priority; it does not count as one, but gives its priority.
    let (priority, payload) = match tags {
        [(0x8100, tci), rest @ ..] => (tci & 0xf000, rest),
        other => (given, other),
    };
    if !strip {
        return Some(Ok([&[(0x8100, priority | fid)], payload].concat()));
    }
    let had_tag = payload.len() != tags.len();
    Some(if had_tag && !payload.is_empty() { Err(()) } else { Ok(payload.to_vec()) })
}
