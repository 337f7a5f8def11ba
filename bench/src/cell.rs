//! What is measured: cells of the tables.

use serde::{Deserialize, Serialize};

use crate::generator::{CardSpec, Flows, Paths, Touch, TrafficSpec};
use crate::sut::Topology;

/// A table's worth of cells.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    clap::ValueEnum,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// frames one way between two guests, as many as go, by size
    Throughput,
    /// the same between guests that write and read every byte
    Touch,
    /// round trip of one frame between two guests, by size
    Rtt,
    /// round trips at a fixed rate: one every 100 microseconds
    Pings,
    /// CPU of the switch and loss at 0, 10 k, 100 k and 1 M frames a second
    Cpu,
    /// CPU of the switch for the sender's and for the receiver's side at 500 k frames a second, by size
    Sides,
    /// frames both ways between two guests, by size
    SwitchLoopback,
    /// frames through a virtual machine that forwards them, by size
    VmLoopback,
    /// 1, 2, 4, 8 and 32 pairs of guests on one worker
    Pairs,
    /// 1, 1 k, 100 k and 1 M flows between two machines
    Flows,
    /// 2, 1 k, 100 k and 1 M machines, half of them behind either port
    Macs,
    /// guests with 1 and 4 queue pairs
    Queues,
    /// frames of 9000 bytes
    Jumbo,
    /// TCP segments of 64 KiB that pass in one piece
    Tso,
    /// frames through 0, 1, 2, 4 and 8 routers that let the switch forward for them, and by size
    Routers,
    /// frames through 1, 2, 4 and 8 routers that are virtual machines with polling drivers
    PolledRouters,
    /// frames to 1 M addresses at random through a router with 10, 1 k, 100 k and 1 M prefixes
    Prefixes,
    /// frames between two guests, and past a router, while the router of others misbehaves
    Strangers,
}

/// Ring formats.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    clap::ValueEnum,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Rings {
    /// with in-order: what DPDK guests can use
    Packed,
    /// what QEMU and Linux use by default
    Split,
}

impl Rings {
    /// Its name in tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Rings::Packed => "packed",
            Rings::Split => "split",
        }
    }
}

/// How a cell is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// As many frames as go.
    Flood,
    /// One frame in flight, the next one soon after it came back; or so many round trips a second.
    RoundTrips(Option<u32>),
    /// So many frames a second.
    Rate(u32),
}

/// How far frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// From guest to guest.
    Both,
    /// The switch takes them, but the receiver has no buffers: what sending costs.
    Sending,
}

/// What a router does to the daemon that is nobody's of those whose frames are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mischief {
    /// As many requests as go that are refused.
    Refused,
    /// As many changes of what it delegates as go.
    Changes,
    /// Connections that end in the middle of a message.
    Halves,
}

/// Frames a second in [`Kind::Pings`] and [`Kind::Sides`].
const PINGS: u32 = 10_000;
const SIDES: u32 = 500_000;

/// One cell: everything that is the same for all systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// The table it belongs to.
    pub kind: Kind,
    /// Ring format.
    pub rings: Rings,
    /// Bytes of a frame without virtio-net header and FCS.
    pub size: u32,
    /// Pairs of guests.
    pub pairs: u16,
    /// Queue pairs of a guest.
    pub queues: u16,
    /// Entries of a queue.
    pub entries: u16,
    /// Flows, or machines at each of the two ports.
    pub flows: u32,
    /// Routers on the way.
    pub routers: u16,
    /// Virtual machines on the way that forward.
    #[serde(default)]
    pub machines: u16,
    /// Prefixes that each of them has routes for.
    pub prefixes: u32,
    /// What a router of others does.
    #[serde(default)]
    pub mischief: Option<Mischief>,
    /// Frames or round trips a second; none: as many as go.
    pub rate: Option<u32>,
    /// How far frames go.
    pub side: Side,
    /// What the guests do with the bytes of frames.
    pub touch: Touch,
    /// The guests have checksum and segmentation offload, as Linux has: a switch must read every
    /// virtio-net header.
    pub offloads: bool,
}

/// What cells are made of.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Tables.
    pub kinds: Vec<Kind>,
    /// Frame sizes, for the tables by size.
    pub sizes: Vec<u32>,
    /// Ring formats.
    pub rings: Vec<Rings>,
    /// Entries of a queue.
    pub entries: u16,
    /// What guests do with frames, where the table does not say.
    pub touch: Touch,
    /// Whether they have offloads, where the table does not say.
    pub offloads: bool,
}

impl Choice {
    /// All cells, in the order of the report.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &kind in &self.kinds {
            for &rings in &self.rings {
                self.of_kind(kind, rings, &mut cells);
            }
        }
        cells
    }

    fn of_kind(&self, kind: Kind, rings: Rings, cells: &mut Vec<Cell>) {
        let plain = Cell {
            kind,
            rings,
            size: 64,
            pairs: 1,
            queues: 1,
            entries: self.entries,
            flows: 1,
            routers: 0,
            machines: 0,
            prefixes: 0,
            mischief: None,
            rate: None,
            side: Side::Both,
            touch: self.touch,
            offloads: self.offloads,
        };
        let many = [1, 1_000, 100_000, 1_000_000];
        match kind {
            Kind::Throughput | Kind::Rtt | Kind::SwitchLoopback => {
                cells.extend(self.sizes.iter().map(|&size| Cell { size, ..plain }));
            }
            Kind::VmLoopback => {
                let plain = Cell { machines: 1, ..plain };
                cells.extend(self.sizes.iter().map(|&size| Cell { size, ..plain }));
            }
            Kind::Touch => {
                let plain = Cell { touch: Touch::All, ..plain };
                cells.extend(self.sizes.iter().map(|&size| Cell { size, ..plain }));
            }
            Kind::Pings => cells.push(Cell { rate: Some(PINGS), ..plain }),
            Kind::Cpu => {
                let loads = [(1, 0), (100, 0), (1, 10_000), (1, 100_000), (1, 1_000_000)];
                let cell = |(pairs, rate)| Cell { pairs, rate: Some(rate), ..plain };
                cells.extend(loads.map(cell));
            }
            Kind::Sides => {
                for &size in &self.sizes {
                    let both = Cell { size, rate: Some(SIDES), ..plain };
                    cells.extend([Cell { side: Side::Sending, ..both }, both]);
                }
            }
            Kind::Pairs => cells.extend([1, 2, 4, 8, 32].map(|pairs| Cell { pairs, ..plain })),
            Kind::Flows => cells.extend(many.map(|flows| Cell { flows, ..plain })),
            // Half of them at either side.
            Kind::Macs => {
                let halves = many.map(|machines| machines.div_ceil(2));
                cells.extend(halves.map(|flows| Cell { flows, ..plain }));
            }
            Kind::Queues => cells.extend([1, 4].map(|queues| Cell { queues, ..plain })),
            Kind::Jumbo => cells.push(Cell { size: 9_000, ..plain }),
            Kind::Tso => cells.push(Cell { size: 65_000, offloads: true, ..plain }),
            Kind::Routers => {
                cells.extend([0, 1, 2, 4, 8].map(|routers| Cell { routers, ..plain }));
                let larger = self.sizes.iter().filter(|size| **size != plain.size);
                let routers = |&size| [0, 1].map(|routers| Cell { routers, size, ..plain });
                cells.extend(larger.flat_map(routers));
            }
            Kind::PolledRouters => {
                cells.extend([1, 2, 4, 8].map(|machines| Cell { machines, ..plain }));
            }
            Kind::Prefixes => {
                let plain = Cell { routers: 1, flows: 1_000_000, ..plain };
                let many = [10, 1_000, 100_000, 1_000_000];
                cells.extend(many.map(|prefixes| Cell { prefixes, ..plain }));
            }
            Kind::Strangers => {
                // So few that each surely has its place in a worker's memory.
                let past = Cell { routers: 1, prefixes: 10, flows: 100, ..plain };
                for cell in [plain, past] {
                    let what = [Mischief::Refused, Mischief::Changes, Mischief::Halves];
                    let what = [None].into_iter().chain(what.map(Some));
                    cells.extend(what.map(|mischief| Cell { mischief, ..cell }));
                }
            }
        }
    }
}

impl Cell {
    /// How it is measured.
    #[must_use]
    pub fn method(&self) -> Method {
        match (self.kind, self.rate) {
            (Kind::Rtt | Kind::Pings, rate) => Method::RoundTrips(rate),
            (_, Some(rate)) => Method::Rate(rate),
            (_, None) => Method::Flood,
        }
    }

    /// Whether the guests leave their CPU to others half of the time. Rates are of the other half.
    #[must_use]
    pub fn shares_cpu(&self) -> bool {
        self.kind == Kind::Strangers
    }

    /// The switch it needs.
    #[must_use]
    pub fn topology(&self) -> Topology {
        let ports = 2 * (self.pairs + self.machines);
        let mtu = (self.kind == Kind::Jumbo).then_some(9_000);
        // What every switch has room for needs not be asked for.
        let macs = if self.kind == Kind::Macs && self.flows > 500 { 2 * self.flows } else { 0 };
        let Cell { queues, offloads, routers, prefixes, mischief, .. } = *self;
        Topology { ports, queues, mtu, macs, offloads, routers, prefixes, mischief }
    }

    /// The traffic.
    #[must_use]
    pub fn traffic(&self) -> TrafficSpec {
        let packed = self.rings == Rings::Packed;
        TrafficSpec {
            card: CardSpec {
                packed,
                in_order: packed,
                entries: self.entries,
                queues: self.queues,
                offloads: self.offloads,
                listen: false,
            },
            size: self.size,
            paths: match self.kind {
                Kind::SwitchLoopback => Paths::BothWays,
                Kind::VmLoopback => Paths::Forwarded,
                Kind::PolledRouters => Paths::Routed(self.machines),
                _ => Paths::OneWay,
            },
            flows: self.flows,
            vary: match self.kind {
                Kind::Macs => Flows::Macs,
                Kind::Prefixes => Flows::Destinations,
                Kind::Strangers if self.routers > 0 => Flows::Destinations,
                Kind::Flows => Flows::Ports,
                _ => Flows::One,
            },
            routers: self.routers,
            touch: self.touch,
            deliver: self.side == Side::Both,
        }
    }

    /// What it differs in from its neighbours in the table.
    #[must_use]
    pub fn label(&self) -> String {
        match self.kind {
            Kind::Cpu if self.pairs > 1 => {
                format!("{} frames/s, {} pairs", count(self.rate.unwrap_or(0)), self.pairs)
            }
            Kind::Cpu => format!("{} frames/s", count(self.rate.unwrap_or(0))),
            Kind::Sides if self.side == Side::Sending => format!("{} B, sending", self.size),
            Kind::Pairs if self.pairs == 1 => "1 pair".to_owned(),
            Kind::Pairs => format!("{} pairs", self.pairs),
            Kind::Flows => format!("{} flows", count(self.flows)),
            Kind::Macs => format!("{} machines", count(2 * self.flows)),
            Kind::Routers => {
                let size =
                    if self.size == 64 { String::new() } else { format!("{} B, ", self.size) };
                match self.routers {
                    0 => format!("{size}no router"),
                    1 => format!("{size}1 router"),
                    many => format!("{size}{many} routers"),
                }
            }
            Kind::PolledRouters if self.machines == 1 => "1 router".to_owned(),
            Kind::PolledRouters => format!("{} routers", self.machines),
            Kind::Strangers => {
                let what = match self.mischief {
                    None => "nothing",
                    Some(Mischief::Refused) => "requests refused",
                    Some(Mischief::Changes) => "changes",
                    Some(Mischief::Halves) => "half messages",
                };
                let past = if self.routers > 0 { "past a router, " } else { "" };
                format!("{past}{what}")
            }
            Kind::Prefixes => format!("{} prefixes", count(self.prefixes)),
            Kind::Queues if self.queues == 1 => "1 queue".to_owned(),
            Kind::Queues => format!("{} queues", self.queues),
            _ => format!("{} B", self.size),
        }
    }
}

/// A round number, short.
fn count(number: u32) -> String {
    match number {
        n if n >= 1_000_000 && n % 1_000_000 == 0 => format!("{} M", n / 1_000_000),
        n if n >= 1_000 && n % 1_000 == 0 => format!("{} k", n / 1_000),
        n => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_cells_for_every_ring() {
        let kinds: Vec<Kind> = <Kind as clap::ValueEnum>::value_variants().to_vec();
        for &kind in &kinds {
            for rings in [Rings::Packed, Rings::Split] {
                let choice = Choice {
                    kinds: vec![kind],
                    sizes: vec![64, 1518],
                    rings: vec![rings],
                    entries: 256,
                    touch: Touch::Headers,
                    offloads: false,
                };
                let cells = choice.cells();
                assert!(!cells.is_empty(), "{kind:?}");
                let mut labels: Vec<String> = cells.iter().map(Cell::label).collect();
                labels.dedup();
                assert_eq!(labels.len(), cells.len(), "{kind:?}: labels differ");
                assert!(cells.iter().all(|cell| cell.kind == kind && cell.rings == rings));
            }
        }
    }

    #[test]
    fn numbers_are_short() {
        let of = [0, 1, 999, 1_000, 100_000, 1_000_000, 1_001].map(count);
        assert_eq!(of, ["0", "1", "999", "1 k", "100 k", "1 M", "1001"]);
    }
}
