//! Where routes lead: each place is kept once, however many routes lead there.

use std::collections::HashMap;
use std::net::IpAddr;

use super::Ifindex;

/// A gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Gateway {
    pub(crate) interface: Ifindex,
    pub(crate) address: IpAddr,
    /// Share of the flows, from 1.
    pub(crate) weight: u32,
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    /// Addresses that are the router's own affair, as destination and as source: its own, and
    /// routes that are refusals.
    Own,
    /// Something the switch cannot do.
    Router,
    /// Neighbours on a link.
    Link(Ifindex),
    /// Gateways.
    Gateways(Box<[Gateway]>),
    /// A nexthop object.
    Object(u32),
}

/// Number of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TargetId(u32);

/// All targets, counted.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    slots: Vec<Option<(Target, usize)>>,
    free: Vec<u32>,
    numbers: HashMap<Target, TargetId>,
}

impl Targets {
    /// The number of a target, which counts as one use more.
    pub(crate) fn acquire(&mut self, target: &Target) -> TargetId {
        if let Some(&id) = self.numbers.get(target) {
            self.share(id);
            return id;
        }
        let slot = Some((target.clone(), 1));
        let number = match self.free.pop() {
            Some(number) => {
                if let Some(place) = self.slots.get_mut(number as usize) {
                    *place = slot;
                }
                number
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        };
        self.numbers.insert(target.clone(), TargetId(number));
        TargetId(number)
    }

    /// One use more. Also what is planned for a target uses it.
    pub(crate) fn share(&mut self, id: TargetId) {
        if let Some(Some((_, uses))) = self.slots.get_mut(id.0 as usize) {
            *uses += 1;
        }
    }

    /// One use less; with the last one the number is free.
    pub(crate) fn release(&mut self, id: TargetId) {
        let Some(slot) = self.slots.get_mut(id.0 as usize) else { return };
        let Some((target, uses)) = slot else { return };
        *uses -= 1;
        if *uses == 0 {
            self.numbers.remove(target);
            *slot = None;
            self.free.push(id.0);
        }
    }

    /// What has this number.
    pub(crate) fn get(&self, id: TargetId) -> Option<&Target> {
        self.slots.get(id.0 as usize)?.as_ref().map(|(target, _)| target)
    }
}
