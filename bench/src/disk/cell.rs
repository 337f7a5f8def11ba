//! What is measured of disks.

use serde::{Deserialize, Serialize};

/// A table's worth of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Table {
    /// requests to a disk: random and one after the other, by size, queue depth and jobs
    Disk,
    /// CPU of the back end of 100 disks whose guests do nothing
    DiskIdle,
    /// requests to a disk or file whose image another process serves: client, back end or mount, and server
    Store,
    /// some of the same by fio in a QEMU guest, which boots from what `make setup` made
    StoreGuest,
}

/// Where the image is.
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
pub enum Medium {
    /// a file system in memory, through its page cache: what the software can do
    Tmpfs,
    /// a real file system, past the page cache (O_DIRECT)
    Disk,
}

impl Medium {
    /// Its name in tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Medium::Tmpfs => "tmpfs",
            Medium::Disk => "disk",
        }
    }

    /// Whether files are opened with O_DIRECT.
    #[must_use]
    pub fn direct(self) -> bool {
        self == Medium::Disk
    }
}

/// What requests do, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Reads, each somewhere else.
    RandomRead,
    /// Writes, each somewhere else.
    RandomWrite,
    /// Reads, one behind the other.
    Read,
    /// Writes, one behind the other.
    Write,
}

impl Access {
    /// Its name in tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Access::RandomRead => "random read",
            Access::RandomWrite => "random write",
            Access::Read => "sequential read",
            Access::Write => "sequential write",
        }
    }

    /// Whether requests write.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Access::RandomWrite | Access::Write)
    }

    /// Whether each is somewhere else.
    #[must_use]
    pub fn random(self) -> bool {
        matches!(self, Access::RandomRead | Access::RandomWrite)
    }
}

/// Requests that are made, always as many as may be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Job {
    /// What they do.
    pub access: Access,
    /// Bytes of each.
    pub block: u32,
    /// In flight for each job.
    pub depth: u16,
    /// Jobs; each has a queue of its own.
    pub jobs: u16,
}

impl Job {
    /// Whether requests are what dd makes: 4 KiB one after the other, each when the last has ended.
    #[must_use]
    pub fn as_dd(&self) -> bool {
        !self.access.random() && self.depth == 1
    }
}

/// One cell: everything that is the same for all systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cell {
    /// Where images are.
    pub medium: Medium,
    /// Disks that are connected.
    pub disks: u16,
    /// Requests to the first of them; none: all are idle.
    pub job: Option<Job>,
    /// A server has the image.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remote: bool,
    /// The page cache of who has the image has nothing of it when a window begins.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cold: bool,
    /// Requests are made in a guest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guest: bool,
}

/// Disks of [`Table::DiskIdle`].
pub const IDLE: u16 = 100;
/// Most jobs of a cell: the queues that each disk has.
pub const QUEUES: u16 = 4;

/// The cells of these tables, in the order of the report; `quick`: those of the headline, in memory.
#[must_use]
pub fn cells(tables: &[Table], media: &[Medium], quick: bool) -> Vec<Cell> {
    let mut cells = Vec::new();
    for table in tables {
        match table {
            Table::Disk if quick => {
                let at = |job: &Job| (job.jobs == 1 && job.depth < 128) && job.block != 131_072;
                let jobs = jobs().into_iter().filter(at);
                cells.extend(jobs.map(|job| Cell::of(Medium::Tmpfs, job)));
            }
            Table::Disk => {
                let jobs = jobs();
                let medium = |&medium| jobs.iter().map(move |&job| Cell::of(medium, job));
                cells.extend(media.iter().flat_map(medium));
            }
            Table::DiskIdle => {
                let idle = Cell { disks: IDLE, job: None, ..Cell::default() };
                cells.push(idle);
            }
            Table::Store => {
                let remote = |job| Cell { remote: true, ..Cell::of(Medium::Tmpfs, job) };
                cells.extend(remote_jobs().into_iter().map(remote));
                // What is in memory cannot be forgotten.
                let cold = |job: &Job| job.block == 4096 && !job.access.writes();
                let cold = remote_jobs().into_iter().filter(cold);
                let medium = Medium::Disk;
                if media.contains(&medium) {
                    cells.extend(cold.map(|job| Cell { medium, cold: true, ..remote(job) }));
                }
            }
            Table::StoreGuest => {
                let (remote, guest) = (true, true);
                let cell = |job| Cell { remote, guest, ..Cell::of(Medium::Tmpfs, job) };
                // Writes of 4 KiB are not another question than reads.
                let some = |job: &Job| job.block > 4096 || !job.access.writes();
                cells.extend(remote_jobs().into_iter().filter(some).map(cell));
            }
        }
    }
    cells
}

/// The requests to a disk whose image a server has: 4 KiB at random with 1 and 32 in flight, 4 KiB one after
/// the other as dd makes them, and 1 MiB.
fn remote_jobs() -> Vec<Job> {
    let mut all = Vec::new();
    let kinds = [(Access::RandomRead, Access::Read), (Access::RandomWrite, Access::Write)];
    for (random, sequential) in kinds {
        let at = |access, block, depth| Job { access, block, depth, jobs: 1 };
        all.extend([at(random, 4096, 1), at(random, 4096, 32)]);
        all.extend([at(sequential, 4096, 1), at(sequential, 1 << 20, 4)]);
    }
    all
}

/// The requests of the table: 4 KiB at random with 1, 32 and 128 in flight, by 1 and 4 jobs; and one
/// job that goes through the disk in steps of 4 KiB, 128 KiB and 1 MiB.
fn jobs() -> Vec<Job> {
    let mut all = Vec::new();
    for access in [Access::RandomRead, Access::RandomWrite] {
        for jobs in [1, QUEUES] {
            all.extend([1, 32, 128].map(|depth| Job { access, block: 4096, depth, jobs }));
        }
    }
    for access in [Access::Read, Access::Write] {
        let steps = [(4 << 10, 32), (128 << 10, 8), (1 << 20, 4)];
        all.extend(steps.map(|(block, depth)| Job { access, block, depth, jobs: 1 }));
    }
    all
}

impl Default for Cell {
    /// A disk in memory, of this machine's.
    fn default() -> Cell {
        let (medium, disks) = (Medium::Tmpfs, 1);
        Cell { medium, disks, job: None, remote: false, cold: false, guest: false }
    }
}

impl Cell {
    fn of(medium: Medium, job: Job) -> Cell {
        Cell { medium, job: Some(job), ..Cell::default() }
    }

    /// What it differs in from its neighbours in the table.
    #[must_use]
    pub fn label(&self) -> String {
        let Some(Job { access, block, depth, jobs }) = self.job else {
            return format!("{} idle disks", self.disks);
        };
        let size = match block {
            whole if whole.is_multiple_of(1 << 20) => format!("{} MiB", whole >> 20),
            other => format!("{} KiB", other >> 10),
        };
        let jobs = if jobs == 1 { String::new() } else { format!(", {jobs} jobs") };
        let cold = if self.cold { ", cold" } else { "" };
        let guest = if self.guest { ", guest" } else { "" };
        format!("{size} {}, QD {depth}{jobs}{cold}{guest}", access.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn a_table_has_eighteen_cells_on_either_medium_eleven_with_a_server_and_five_in_a_guest() {
        let media = [Medium::Tmpfs, Medium::Disk];
        let all = cells(Table::value_variants(), &media, false);
        assert_eq!(all.len(), 2 * 18 + 1 + 11 + 5);
        assert_eq!(cells(&[Table::Disk], &media, true).len(), 8);
        let mut once = all.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), all.len());
        assert!(all.iter().all(|cell| cell.job.is_none_or(|job| job.jobs <= QUEUES)));
    }

    #[test]
    fn labels_say_what_is_done() {
        let all = cells(&[Table::Disk, Table::DiskIdle], &[Medium::Disk], false);
        let labels: Vec<String> = all.iter().map(Cell::label).collect();
        for label in [
            "4 KiB random read, QD 1",
            "4 KiB random write, QD 128, 4 jobs",
            "128 KiB sequential read, QD 8",
            "1 MiB sequential write, QD 4",
            "100 idle disks",
        ] {
            assert!(labels.iter().any(|l| l == label), "{label}: {labels:?}");
        }
    }
}
