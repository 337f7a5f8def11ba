//! What is to be measured, as it is typed.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};

use crate::cell::{Cell, Choice, Kind, Rings};
use crate::disk::{self, Medium, run::Waiting};
use crate::generator::{Touch, frames};
use crate::place::Place;
use crate::sut::System;
use crate::vf;

/// The paper sizes: 64 to 1518 bytes.
const SIZES: [u32; 7] = [64, 128, 256, 512, 1024, 1280, 1518];

/// Options of `hayate bench`.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "\
Examples:
  hayate bench --quick                   (the headline table, in three minutes)
  hayate bench --cells throughput,rtt --rings packed --sizes 64,1518
  hayate bench --cells pairs,flows --systems hayate,ovs --rounds 1
  hayate bench --cells throughput --offloads             (guests with offloads, as Linux has them)
  hayate bench --cells disk --quick                      (4 KiB and 1 MiB requests to disks in memory)
  hayate bench --cells disk,disk-idle --disk-dir /mnt    (all of disks, also on the file system there)
  hayate bench --cells store             (disks and mounts of a store, beside NBD and Gfarm)
  hayate bench --cells store --disk-systems store-gfarm-tcp,gfarm,qsd-nbd   (a store whose images are in Gfarm)
  hayate bench --cells store-guest --disk-size 256   (the same disks in a QEMU guest, after `make setup`)
  hayate bench --cells vf --rounds 7     (pods of a QEMU guest: virtual VFs, and a bridge of the guest)
  HAYATE_BIN=old/hayate hayate bench --quick --systems hayate   (another build)

Needs root and two CPUs with nothing else to do. Packages of the switches that are compared are
installed if they are missing; huge pages are reserved and given back.")]
pub struct Options {
    /// Only the headline: throughput and round trips at 64 and 1518 bytes, against all systems; with
    /// --cells, of those tables
    #[arg(long, conflicts_with = "sizes")]
    pub quick: bool,
    /// Tables to measure, with commas between [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cells: Vec<Table>,
    /// Frame sizes in bytes, without virtio-net header and FCS, for the tables by size [default:
    /// 64,128,256,512,1024,1280,1518]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(i64::from(frames::MIN_SIZE)..=1518))]
    pub sizes: Vec<u32>,
    /// Ring formats
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "packed,split")]
    pub rings: Vec<Rings>,
    /// Systems, in the order they take turns; each in the tables it has a place in
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    #[arg(
        default_value = "hayate,hayate-latency,hayate-power,hayate-routed,testpmd,ovs,ovs-sleep,bridge,limit"
    )]
    pub systems: Vec<System>,
    /// Rounds: in each of them every system has its turn, with the same guest memory
    #[arg(long, value_name = "N", default_value = "3")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Windows of a cell in a round
    #[arg(long, value_name = "N", default_value = "5")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub windows: u32,
    /// At most so many more rounds of what has too few windows of one regime in tables of frames, on a
    /// machine that is not quiet: fewer than 12, or than were asked for
    #[arg(long, value_name = "N", default_value = "3")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub more_rounds: u32,
    /// Seconds to go on in a round for windows of a cell that count, on a machine that is not quiet
    #[arg(long, value_name = "SECONDS", default_value = "2")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub patience: u32,
    /// What the guests do with frames, but in the table `touch`
    #[arg(long, value_name = "WHAT", default_value = "headers")]
    pub touch: Touch,
    /// Entries of each queue of the guests, a power of two
    #[arg(long, value_name = "N", default_value = "256", value_parser = entries)]
    pub entries: u16,
    /// Guests have checksum and segmentation offload, as Linux has
    #[arg(long)]
    pub offloads: bool,
    /// CPU of the switch and CPU of the guests
    #[arg(long, value_name = "SWITCH,GUESTS", default_value = "0,1", value_parser = place)]
    pub cpus: Place,
    /// Systems of the tables of disks, in the order they take turns; in every second round the other way round
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "hayate,qsd,fio,null,store-shm,store-libfabric,store-tcp,store-gfarm-tcp,qsd-nbd,fuse-shm,fuse-libfabric,fuse-tcp,gfarm,nbd"
    )]
    pub disk_systems: Vec<disk::System>,
    /// Where the images of disks are
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "tmpfs,disk")]
    pub disk_media: Vec<Medium>,
    /// Only cells of disks whose name has this in it, such as `random read, QD 128`
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub disk_only: String,
    /// A directory on a file system that is not in memory, for the images of `disk`
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub disk_dir: PathBuf,
    /// A directory on a tmpfs, for the images of `tmpfs`
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub tmpfs_dir: PathBuf,
    /// Size of the disk that has requests, in MiB
    #[arg(long, value_name = "MIB", default_value = "1024")]
    #[arg(value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    pub disk_size: u64,
    /// The folder in which `make setup` has put QEMU and what boots, for the guests of `store-guest` and `vf`
    #[arg(long, value_name = "DIR", default_value = "build")]
    pub guest: PathBuf,
    /// How the client of disks waits for answers
    #[arg(long, value_name = "HOW", default_value = "poll")]
    pub disk_wait: Waiting,
    /// Directory for the report: figures.json, README.md and SVG figures
    #[arg(long, value_name = "DIR", default_value = "docs/performance")]
    pub out: PathBuf,
}

fn entries(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|n: &u16| n.is_power_of_two() && (64..=1024).contains(n));
    number.ok_or_else(|| "64, 128, 256, 512 or 1024".into())
}

fn place(text: &str) -> Result<Place, String> {
    let parse = |part: &str| part.trim().parse::<usize>().ok();
    match text.split_once(',').map(|(switch, guests)| (parse(switch), parse(guests))) {
        Some((Some(switch), Some(guests))) if switch != guests && switch < 128 && guests < 128 => {
            Ok(Place { switch, guests })
        }
        _ => Err("two different CPU numbers below 128, like 0,1".into()),
    }
}

impl Options {
    /// The cells that were chosen.
    #[must_use]
    pub fn chosen(&self) -> Vec<Cell> {
        let of_frames = |table| match table {
            Table::Frames(kind) => Some(kind),
            Table::Disks(_) | Table::Pods(_) => None,
        };
        let kinds = self.tables().into_iter().filter_map(of_frames).collect();
        let sizes = match self.sizes.as_slice() {
            _ if self.quick => vec![64, 1518],
            [] => SIZES.to_vec(),
            some => some.to_vec(),
        };
        let Options { entries, touch, offloads, .. } = *self;
        Choice { kinds, sizes, rings: self.rings.clone(), entries, touch, offloads }.cells()
    }

    /// The cells of disks that were chosen.
    #[must_use]
    pub fn disk_cells(&self) -> Vec<disk::Cell> {
        let of_disks = |table| match table {
            Table::Disks(table) => Some(table),
            Table::Frames(_) | Table::Pods(_) => None,
        };
        let tables: Vec<disk::Table> = self.tables().into_iter().filter_map(of_disks).collect();
        let mut cells = disk::cell::cells(&tables, &self.disk_media, self.quick);
        cells.retain(|cell| cell.label().contains(&self.disk_only));
        cells
    }

    /// The cells of pods that were chosen.
    #[must_use]
    pub fn pod_cells(&self) -> Vec<vf::Cell> {
        let of_pods = |table| match table {
            Table::Pods(table) => Some(table),
            Table::Frames(_) | Table::Disks(_) => None,
        };
        let tables: Vec<vf::Table> = self.tables().into_iter().filter_map(of_pods).collect();
        vf::cell::cells(&tables, self.quick)
    }

    /// The tables that were chosen.
    fn tables(&self) -> Vec<Table> {
        match self.cells.as_slice() {
            [] if self.quick => vec![Table::Frames(Kind::Throughput), Table::Frames(Kind::Rtt)],
            [] => Table::value_variants().to_vec(),
            some => some.to_vec(),
        }
    }
}

/// A table, as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Of frames.
    Frames(Kind),
    /// Of disks.
    Disks(disk::Table),
    /// Of pods.
    Pods(vf::Table),
}

impl ValueEnum for Table {
    fn value_variants<'a>() -> &'a [Table] {
        static ALL: LazyLock<Vec<Table>> = LazyLock::new(|| {
            let frames = Kind::value_variants().iter().copied().map(Table::Frames);
            let disks = disk::Table::value_variants().iter().copied().map(Table::Disks);
            let pods = vf::Table::value_variants().iter().copied().map(Table::Pods);
            frames.chain(disks).chain(pods).collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Table::Frames(kind) => kind.to_possible_value(),
            Table::Disks(table) => table.to_possible_value(),
            Table::Pods(table) => table.to_possible_value(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn parse(words: &[&str]) -> Result<Options, clap::Error> {
        let words = std::iter::once("bench").chain(words.iter().copied());
        Cli::try_parse_from(words).map(|cli| cli.options)
    }

    #[test]
    fn the_headline_has_eight_cells() {
        let quick = parse(&["--quick"]).unwrap();
        assert_eq!(quick.chosen().len(), 8);
        assert!(quick.disk_cells().is_empty());
        assert_eq!(quick.cpus, Place { switch: 0, guests: 1 });
    }

    #[test]
    fn lists_are_lists() {
        let options =
            parse(&["--cells", "rtt,cpu", "--sizes", "64,512", "--rings", "split"]).unwrap();
        assert_eq!(options.chosen().len(), 2 + 5);
    }

    #[test]
    fn tables_of_frames_and_of_disks_are_one_list() {
        let all = parse(&[]).unwrap();
        assert!(!all.chosen().is_empty());
        assert_eq!(all.disk_cells().len(), 2 * 18 + 1 + 11 + 5);
        let disks = parse(&["--cells", "disk,disk-idle", "--disk-media", "disk"]).unwrap();
        assert_eq!((disks.chosen().len(), disks.disk_cells().len()), (0, 18 + 1));
        let few = parse(&["--cells", "disk", "--disk-only", "random write, QD 128"]).unwrap();
        assert_eq!(few.disk_cells().len(), 2 * 2);
        let pods = parse(&["--cells", "vf"]).unwrap();
        assert_eq!((pods.chosen().len(), pods.pod_cells().len()), (0, 13));
        let quick = parse(&["--quick", "--cells", "disk"]).unwrap();
        assert_eq!((quick.chosen().len(), quick.disk_cells().len()), (0, 8));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for wrong in [
            &["--sizes", "63"][..],
            &["--cpus", "1,1"],
            &["--cpus", "x"],
            &["--cells", "speed"],
            &["--rounds", "0"],
            &["--entries", "100"],
            &["--quick", "--sizes", "64"],
            &["--disk-size", "1"],
            &["--disk-media", "tape"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
