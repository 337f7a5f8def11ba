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
    /// round trip of one frame between two guests, by size
    Rtt,
    /// CPU of the switch and loss at 0, 10 k, 100 k and 1 M frames a second
    Cpu,
    /// frames both ways between two guests, by size
    SwitchLoopback,
    /// frames through a virtual machine that forwards them, by size
    VmLoopback,
    /// 1, 2, 4, 8 and 32 pairs of guests on one worker
    Pairs,
    /// 1, 1 k, 100 k and 1 M flows between two machines
    Flows,
    /// 1, 1 k, 100 k and 1 M machines at either side
    Macs,
    /// guests with 1 and 4 queue pairs
    Queues,
    /// frames of 9000 bytes
    Jumbo,
    /// TCP segments of 64 KiB that pass in one piece
    Tso,
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
    /// One frame in flight.
    RoundTrips,
    /// So many frames a second.
    Rate(u32),
}

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
    /// Flows, or machines at either side.
    pub flows: u32,
    /// Frames a second; none: as many as go.
    pub rate: Option<u32>,
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
        let plain = Cell { kind, rings, size: 64, pairs: 1, queues: 1, flows: 1, rate: None };
        let many = [1, 1_000, 100_000, 1_000_000];
        match kind {
            Kind::Throughput | Kind::Rtt | Kind::SwitchLoopback | Kind::VmLoopback => {
                cells.extend(self.sizes.iter().map(|&size| Cell { size, ..plain }));
            }
            Kind::Cpu => {
                let rates = [0, 10_000, 100_000, 1_000_000];
                cells.extend(rates.map(|rate| Cell { rate: Some(rate), ..plain }));
            }
            Kind::Pairs => cells.extend([1, 2, 4, 8, 32].map(|pairs| Cell { pairs, ..plain })),
            Kind::Flows | Kind::Macs => {
                cells.extend(many.map(|flows| Cell { flows, ..plain }));
            }
            Kind::Queues => cells.extend([1, 4].map(|queues| Cell { queues, ..plain })),
            Kind::Jumbo => cells.push(Cell { size: 9_000, ..plain }),
            Kind::Tso => cells.push(Cell { size: 65_000, ..plain }),
        }
    }
}

impl Cell {
    /// How it is measured.
    #[must_use]
    pub fn method(&self) -> Method {
        match (self.kind, self.rate) {
            (Kind::Rtt, _) => Method::RoundTrips,
            (_, Some(rate)) => Method::Rate(rate),
            (_, None) => Method::Flood,
        }
    }

    /// The switch it needs.
    #[must_use]
    pub fn topology(&self) -> Topology {
        let ports = if self.kind == Kind::VmLoopback { 4 } else { 2 * self.pairs };
        let mtu = (self.kind == Kind::Jumbo).then_some(9_000);
        let macs = if self.kind == Kind::Macs { 2 * self.flows } else { 0 };
        Topology { ports, queues: self.queues, mtu, macs, offloads: self.kind == Kind::Tso }
    }

    /// The traffic.
    #[must_use]
    pub fn traffic(&self, touch: Touch) -> TrafficSpec {
        let packed = self.rings == Rings::Packed;
        TrafficSpec {
            card: CardSpec {
                packed,
                in_order: packed,
                entries: 256,
                queues: self.queues,
                offloads: self.kind == Kind::Tso,
            },
            size: self.size,
            paths: match self.kind {
                Kind::SwitchLoopback => Paths::BothWays,
                Kind::VmLoopback => Paths::Forwarded,
                _ => Paths::OneWay,
            },
            flows: self.flows,
            vary: if self.kind == Kind::Macs { Flows::Macs } else { Flows::Ports },
            touch,
        }
    }

    /// What it differs in from its neighbours in the table.
    #[must_use]
    pub fn label(&self) -> String {
        match self.kind {
            Kind::Cpu => match self.rate {
                Some(rate) => format!("{} frames/s", count(rate)),
                None => String::new(),
            },
            Kind::Pairs => format!("{} pairs", self.pairs),
            Kind::Flows => format!("{} flows", count(self.flows)),
            Kind::Macs => format!("{} machines", count(self.flows)),
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
                let choice =
                    Choice { kinds: vec![kind], sizes: vec![64, 1518], rings: vec![rings] };
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
