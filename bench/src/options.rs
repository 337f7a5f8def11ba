//! What is to be measured, as it is typed.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cell::{Cell, Choice, Kind, Rings};
use crate::generator::{Touch, frames};
use crate::place::Place;
use crate::sut::System;

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
  HAYATE_BIN=old/hayate hayate bench --quick --systems hayate   (another build)

Needs root and two CPUs with nothing else to do. Packages of the switches that are compared are
installed if they are missing; huge pages are reserved and given back.")]
pub struct Options {
    /// Only the headline: throughput and round trips at 64 and 1518 bytes, against all systems
    #[arg(long, conflicts_with_all = ["cells", "sizes"])]
    pub quick: bool,
    /// Tables to measure, with commas between [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cells: Vec<Kind>,
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
        let all = |given: &[Kind]| match given {
            [] => Kind::value_variants().to_vec(),
            some => some.to_vec(),
        };
        let (kinds, sizes) = if self.quick {
            (vec![Kind::Throughput, Kind::Rtt], vec![64, 1518])
        } else {
            let sizes = if self.sizes.is_empty() { SIZES.to_vec() } else { self.sizes.clone() };
            (all(&self.cells), sizes)
        };
        let Options { entries, touch, offloads, .. } = *self;
        Choice { kinds, sizes, rings: self.rings.clone(), entries, touch, offloads }.cells()
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
        assert_eq!(quick.cpus, Place { switch: 0, guests: 1 });
    }

    #[test]
    fn lists_are_lists() {
        let options =
            parse(&["--cells", "rtt,cpu", "--sizes", "64,512", "--rings", "split"]).unwrap();
        assert_eq!(options.chosen().len(), 2 + 5);
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
            &["--quick", "--cells", "rtt"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
