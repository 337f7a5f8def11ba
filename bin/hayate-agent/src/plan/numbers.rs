//! Numbers of next hops: what each stands for, what was told of it, and who uses it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use api::channel::{Counted, HopCount, NextHop, To};

use super::ways::{Resolved, Way};
use super::{LINE_ROOM, nexthop_len};
use crate::state::{Ifindex, Target};

/// A number in use.
#[derive(Debug)]
struct Slot {
    way: Way<'static>,
    /// Prefixes and connections that were told to take it.
    users: usize,
    told: Option<Resolved>,
    /// What was counted last, by hop.
    counted: Vec<HopCount>,
}

/// All numbers.
#[derive(Debug)]
pub(super) struct Numbers {
    /// Numbers are below it.
    limit: u32,
    slots: Vec<Option<Slot>>,
    free: BTreeSet<u32>,
    targets: HashMap<Target, u32>,
    neighbours: HashMap<(Ifindex, IpAddr), u32>,
    /// What they lead to may have changed.
    doubted: BTreeSet<u32>,
    /// Nothing takes them.
    unused: BTreeSet<u32>,
    /// There were not enough of them.
    starved: bool,
    passed: HopCount,
}

impl Numbers {
    /// Number of what goes to the router because the switch cannot do it.
    pub(super) const ROUTER: u32 = 0;

    /// Numbers below a limit, none of them told.
    pub(super) fn new(limit: u32) -> Self {
        let mut numbers = Self {
            limit,
            slots: Vec::new(),
            free: BTreeSet::new(),
            targets: HashMap::new(),
            neighbours: HashMap::new(),
            doubted: BTreeSet::new(),
            unused: BTreeSet::new(),
            starved: false,
            passed: HopCount::default(),
        };
        for target in [Target::Router, Target::Own] {
            let number = numbers.of(Way::To(&target));
            // These two stay.
            numbers.take(number);
        }
        numbers
    }

    /// The number of a way. If there are no more numbers, it goes to the router.
    pub(super) fn of(&mut self, way: Way<'_>) -> u32 {
        let known = match &way {
            Way::To(target) => self.targets.get(*target),
            Way::Owned(target) => self.targets.get(target),
            Way::Neighbour(interface, address) => self.neighbours.get(&(*interface, *address)),
        };
        if let Some(&number) = known {
            return number;
        }
        let number = match self.free.pop_first() {
            Some(number) => number,
            None if (self.slots.len() as u64) < u64::from(self.limit) => {
                self.slots.push(None);
                self.slots.len() as u32 - 1
            }
            None => {
                self.starved = true;
                return Self::ROUTER;
            }
        };
        let way = way.into_owned();
        match &way {
            Way::Owned(target) => drop(self.targets.insert(target.clone(), number)),
            Way::Neighbour(interface, address) => {
                self.neighbours.insert((*interface, *address), number);
            }
            Way::To(_) => {}
        }
        if let Some(slot) = self.slots.get_mut(number as usize) {
            *slot = Some(Slot { way, users: 0, told: None, counted: Vec::new() });
        }
        self.doubted.insert(number);
        self.unused.insert(number);
        number
    }

    /// One prefix or connection more takes it.
    pub(super) fn take(&mut self, number: u32) {
        if let Some(slot) = self.slot(number) {
            slot.users += 1;
            self.unused.remove(&number);
        }
    }

    /// One prefix or connection less takes it.
    pub(super) fn leave(&mut self, number: u32) {
        if let Some(slot) = self.slot(number) {
            slot.users -= 1;
            if slot.users == 0 {
                self.unused.insert(number);
            }
        }
    }

    /// What all of them lead to may have changed.
    pub(super) fn doubt_all(&mut self) {
        self.doubt(|_| true);
    }

    /// Nexthop objects may lead elsewhere.
    pub(super) fn doubt_objects(&mut self) {
        self.doubt(|way| matches!(way, Way::Owned(Target::Object(_))));
    }

    /// Neighbours have changed.
    pub(super) fn doubt_neighbours(&mut self, changed: &HashSet<(Ifindex, IpAddr)>) {
        let numbers = changed.iter().filter_map(|key| self.neighbours.get(key));
        self.doubted.extend(numbers);
        let concerned = self.targets.iter().filter(|(target, _)| match target {
            Target::Gateways(gateways) => {
                gateways.iter().any(|one| changed.contains(&(one.interface, one.address)))
            }
            Target::Object(_) => true,
            Target::Own | Target::Router | Target::Link(_) => false,
        });
        self.doubted.extend(concerned.map(|(_, number)| *number));
    }

    fn doubt(&mut self, which: impl Fn(&Way<'_>) -> bool) {
        for (number, slot) in self.slots.iter().enumerate() {
            if slot.as_ref().is_some_and(|slot| which(&slot.way)) {
                self.doubted.insert(number as u32);
            }
        }
    }

    /// The next hops that are to be told, as many as fit into a line. From now on they count as
    /// told.
    pub(super) fn changed(
        &mut self,
        resolve: impl Fn(&Way<'_>) -> Resolved,
    ) -> Option<Vec<NextHop>> {
        let mut set = Vec::new();
        let mut room = LINE_ROOM;
        while let Some(number) = self.doubted.pop_first() {
            let Some(slot) = self.slot(number) else { continue };
            let now = resolve(&slot.way);
            if slot.told.as_ref().is_some_and(|told| told.to == now.to) {
                slot.told = Some(now);
                continue;
            }
            let next = NextHop { id: number, to: now.to.clone() };
            let Some(left) = room.checked_sub(nexthop_len(&next)) else {
                self.doubted.insert(number);
                break;
            };
            room = left;
            slot.told = Some(now);
            set.push(next);
        }
        (!set.is_empty()).then_some(set)
    }

    /// Whether any that was told leads over one of these interfaces.
    pub(super) fn lead_over(&self, interfaces: &BTreeSet<Ifindex>) -> bool {
        let hops = |told: &Resolved| match &told.to {
            To::Via(hops) => hops.iter().any(|hop| interfaces.contains(&hop.interface)),
            To::Own => false,
        };
        !interfaces.is_empty()
            && self.slots.iter().flatten().any(|slot| slot.told.as_ref().is_some_and(hops))
    }

    /// Those that nothing takes, as many as fit into a line. From now on they are free.
    pub(super) fn unused(&mut self) -> Vec<u32> {
        let mut del = Vec::new();
        while del.len() < LINE_ROOM / "4294967295,".len() {
            let Some(number) = self.unused.pop_first() else { break };
            let slot = self.slots.get_mut(number as usize).and_then(Option::take);
            let Some(slot) = slot else { continue };
            match &slot.way {
                Way::Owned(target) => drop(self.targets.remove(target)),
                Way::Neighbour(interface, address) => {
                    self.neighbours.remove(&(*interface, *address));
                }
                Way::To(_) => {}
            }
            for count in &slot.counted {
                self.passed.packets += count.packets;
                self.passed.bytes += count.bytes;
            }
            self.doubted.remove(&number);
            self.free.insert(number);
            if slot.told.is_some() {
                del.push(number);
            }
        }
        del
    }

    /// Whether there were not enough numbers since this was asked last.
    pub(super) fn take_starved(&mut self) -> bool {
        std::mem::take(&mut self.starved)
    }

    /// Notes what was counted; returns the neighbours that were sent to.
    pub(super) fn counted(&mut self, counted: &Counted) -> Vec<(Ifindex, IpAddr)> {
        let mut used = BTreeSet::new();
        for one in &counted.nexthops {
            let Some(slot) = self.slot(one.id) else { continue };
            let Some(told) = &slot.told else { continue };
            let before = slot.counted.iter().map(|count| count.packets).chain(std::iter::repeat(0));
            for ((now, before), key) in one.hops.iter().zip(before).zip(&told.neighbours) {
                if now.packets > before {
                    used.insert(*key);
                }
            }
            let hops = told.neighbours.len();
            slot.counted = one.hops.iter().take(hops).copied().collect();
        }
        used.into_iter().collect()
    }

    /// What passed the router by.
    pub(super) fn passed(&self) -> HopCount {
        let counts = self.slots.iter().flatten().flat_map(|slot| &slot.counted);
        counts.fold(self.passed, |sum, one| HopCount {
            packets: sum.packets + one.packets,
            bytes: sum.bytes + one.bytes,
        })
    }

    /// How many are told.
    pub(super) fn told(&self) -> usize {
        self.slots.iter().flatten().filter(|slot| slot.told.is_some()).count()
    }

    /// Whether any is told.
    pub(super) fn any_told(&self) -> bool {
        self.slots.iter().flatten().any(|slot| slot.told.is_some())
    }

    fn slot(&mut self, number: u32) -> Option<&mut Slot> {
        self.slots.get_mut(number as usize)?.as_mut()
    }
}
