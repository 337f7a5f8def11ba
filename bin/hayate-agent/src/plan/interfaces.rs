//! The router as a whole: its interfaces, and whether it is plain.

use std::collections::BTreeSet;

use api::channel::{Interface, Interfaces, SourceCheck};

use super::{Call, Frame, Mode, Plan};
use crate::state::{Family, Ifindex, Kind, Link, State};

/// Interfaces that fit into one line, whatever the daemon would take.
const INTERFACES_MAX: usize = 256;
/// Bounds of `router.status`.
const REASONS_MAX: usize = 32;
const REASON_LEN: usize = 200;
/// Longest name of an interface, bytes.
const NAME_LEN: usize = 32;

impl Plan {
    /// Works out anew what concerns the router as a whole.
    pub(super) fn reframe(&mut self, state: &State) {
        let frame = self.frame_of(state);
        if frame == self.frame {
            return;
        }
        if (frame.v4, frame.v6) != (self.frame.v4, self.frame.v6) {
            self.look_at_all(state);
            // What was told under other rules does not wait for its turn.
            self.void = self.interfaces.is_some();
        }
        self.frame = frame;
        self.numbers.doubt_all();
        self.connections.look_at_all();
    }

    fn frame_of(&self, state: &State) -> Frame {
        let most = INTERFACES_MAX.min(self.limits.interfaces as usize);
        let links =
            || state.links.iter().filter(|(index, _)| state.link_refusal(**index).is_none());
        let interfaces: Vec<Interface> =
            links().filter_map(|(index, link)| interface(state, *index, link)).take(most).collect();
        let mode = |family| match links().any(|(_, link)| state.forwards(link, family)) {
            false => Mode::Off,
            true => state.filters().of(family).map_or(Mode::Plain, Mode::Stateful),
        };
        let (v4, v6) = (mode(Family::V4), mode(Family::V6));
        let mut frame = Frame { interfaces, v4, v6, reasons: Vec::new() };
        if frame.interfaces.is_empty() {
            frame.reasons.push("no Ethernet interface is up".to_owned());
        } else if (v4, v6) == (Mode::Off, Mode::Off) {
            frame.reasons.push(
                "forwarding is off (net.ipv4.ip_forward, net.ipv6.conf.all.forwarding)".to_owned(),
            );
        }
        let prefixes = state.local.len() + state.main.len() + state.neighbour_count();
        let plain = v4 == Mode::Plain || v6 == Mode::Plain;
        if plain && prefixes > self.limits.prefixes as usize {
            // Which it is of them changes too often to be told.
            let most = self.limits.prefixes;
            frame.reasons.push(format!("there are more than {most} prefixes, the most allowed"));
        }
        let concerns = |family: Option<Family>| family.is_none_or(|one| frame.forwards(one));
        let found = state.obstacles().filter(|obstacle| concerns(obstacle.family));
        let found: BTreeSet<String> =
            found.map(|obstacle| short(&obstacle.what, REASON_LEN)).collect();
        frame.reasons.extend(found);
        frame.reasons.truncate(REASONS_MAX);
        frame
    }

    /// Tells the interfaces, if they are others now and nothing leads over those that go.
    pub(super) fn next_interfaces(&mut self) -> Option<Call> {
        let told = self.interfaces.iter().flatten();
        let stays = |old: &&Interface| {
            let same = |new: &Interface| {
                (new.id, new.mac, new.card, new.vlan) == (old.id, old.mac, old.card, old.vlan)
            };
            self.frame.interfaces.iter().any(same)
        };
        let leaving: BTreeSet<Ifindex> = told.filter(|old| !stays(old)).map(|old| old.id).collect();
        if leaving != self.places.leaving {
            self.places.leaving = leaving;
            self.numbers.doubt_all();
        }
        if self.interfaces.as_ref() == Some(&self.frame.interfaces) {
            return None;
        }
        if self.numbers.lead_over(&self.places.leaving) {
            return None;
        }
        self.places.leaving.clear();
        self.numbers.doubt_all();
        // Until the answer says where they are, new ones are nowhere.
        let told = self.interfaces.iter().flatten();
        let kept: BTreeSet<Ifindex> = told.filter(stays).map(|one| one.id).collect();
        self.places.placed.retain(|id, _| kept.contains(id));
        self.interfaces = Some(self.frame.interfaces.clone());
        Some(Call::Interfaces(Interfaces { interfaces: self.frame.interfaces.clone() }))
    }
}

/// A link as it is told.
fn interface(state: &State, index: Ifindex, link: &Link) -> Option<Interface> {
    let mac = link.mac?;
    let (card, vlan) = match link.kind {
        Kind::Ethernet => (link.permanent.unwrap_or(mac), None),
        Kind::Vlan { parent, vid } => {
            let parent = state.links.get(&parent)?;
            (parent.permanent.or(parent.mac)?, Some(vid))
        }
        Kind::Other => return None,
    };
    let check = |family| {
        let rp_filter = match family {
            Family::V4 => link.v4.rp_filter.max(state.settings.rp_filter),
            // Linux checks no sources of IPv6 packets but by netfilter.
            Family::V6 => 0,
        };
        match rp_filter {
            _ if !state.forwards(link, family) => SourceCheck::Closed,
            0 => SourceCheck::Off,
            2 => SourceCheck::Loose,
            _ => SourceCheck::Strict,
        }
    };
    Some(Interface {
        id: index,
        name: short(&link.name, NAME_LEN),
        mac,
        card: (card != mac).then_some(card),
        vlan,
        mtu: link.mtu,
        source_check: check(Family::V4),
        source_check_v6: check(Family::V6),
    })
}

/// A text, of so many bytes at most.
fn short(text: &str, len: usize) -> String {
    let end = (0..=len.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or_default().to_owned()
}
