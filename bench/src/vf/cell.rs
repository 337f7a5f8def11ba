//! What is measured of pods.

use serde::{Deserialize, Serialize};

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
pub enum Table {
    /// pods of a QEMU guest, with virtual VFs and behind the guest's own bridge: bulk and round trips
    Vf,
}

/// How pods reach the outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// By veth, a bridge and the rules of the guest.
    Bridge,
    /// By a virtual VF each, with rules at the host.
    Vf,
    /// By one card of the guest, without rules.
    Port,
}

impl Way {
    /// All of them, in the order they take turns.
    pub const ALL: [Way; 3] = [Way::Bridge, Way::Vf, Way::Port];

    /// Its name in tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Way::Bridge => "before: bridge",
            Way::Vf => "after: virtual VFs",
            Way::Port => "ideal: a card",
        }
    }
}

/// What pods and outside do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Pods send as much as goes; what arrives outside counts.
    Send,
    /// Pods receive; the highest rate without loss counts.
    Receive,
    /// The same, by programs that fetch what the kernel has put together (`UDP_GRO`, as QUIC servers do).
    Gro,
    /// Requests from outside that pods answer, one at a time for each pod.
    Trips,
    /// The same, while the outside sends to another pod what the policy refuses.
    Refused,
}

impl Task {
    /// All of them.
    pub const ALL: [Task; 5] = [Task::Send, Task::Receive, Task::Gro, Task::Trips, Task::Refused];
}

/// One cell: everything that is the same for all ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cell {
    /// What is done.
    pub task: Task,
    /// By how many pods at the same time.
    pub pods: u16,
}

/// Pods there are.
pub const PODS: u16 = 4;
/// Bytes of a datagram of [`Task::Send`], [`Task::Receive`] and [`Task::Gro`]: a full frame.
pub const BULK: u32 = 1472;
/// Bytes of a request and of its answer.
pub const TRIP: u32 = 64;
/// Datagrams a second that are refused in [`Task::Refused`], each of [`BULK`] bytes.
pub const REFUSED: u32 = 20_000;

/// The cells of the tables.
#[must_use]
pub fn cells(tables: &[Table], quick: bool) -> Vec<Cell> {
    if tables.is_empty() {
        return Vec::new();
    }
    let pods: &[u16] = if quick { &[1, PODS] } else { &[1, 2, PODS] };
    let of = |task| {
        // The last pod is not asked in it.
        let some = pods.iter().filter(move |&&pods| task != Task::Refused || pods == 1);
        some.map(move |&pods| Cell { task, pods })
    };
    Task::ALL.into_iter().flat_map(of).collect()
}

impl Cell {
    /// What it differs in from its neighbours in the table.
    #[must_use]
    pub fn label(&self) -> String {
        match self.pods {
            1 => "1 pod".to_owned(),
            pods => format!("{pods} pods"),
        }
    }

    /// What is done, in a word or two.
    #[must_use]
    pub fn task(&self) -> &'static str {
        match self.task {
            Task::Send => "pods send",
            Task::Receive => "pods receive",
            Task::Gro => "receive, GRO",
            Task::Trips => "round trips",
            Task::Refused => "trips, refusing",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_all_tasks() {
        assert!(cells(&[], false).is_empty());
        assert_eq!(cells(&[Table::Vf], false).len(), 13);
        assert_eq!(cells(&[Table::Vf], true).len(), 9);
    }
}
