//! A guest that writes without end and knows what must be on its disk, also after its daemon was
//! killed at any moment.
//!
//! Every sector carries its own stamp, so that a torn one is noticed. A sector is written again only
//! after the end of the earlier write was seen: from then on the older stamp must never be found
//! again, whatever a successor submits anew. The guest does not notice that its daemon dies, so what
//! has ended must be there, flushed or not: the host and its page cache have not died.

use std::collections::BTreeMap;

use super::{BlockDriver, BlockError, Done, Layout, Request, SECTOR, device, status};
use crate::driver::Shape;

/// Most sectors of one request.
const MOST: u64 = 16;

/// What must be found in a sector.
#[derive(Clone, Copy, Debug)]
struct Sector {
    /// The stamp of the last write; 0: all zeroes.
    stamp: u64,
    /// A request that touches it is in flight.
    busy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Read,
    Write,
    Flush,
}

/// A request in flight, and the sectors it touches.
#[derive(Clone, Copy, Debug)]
struct Flight {
    what: What,
    first: u64,
    count: u64,
}

/// The guest.
pub struct Writer {
    /// Its disk.
    pub driver: BlockDriver,
    /// Requests in flight in each queue, at most.
    depth: usize,
    /// Sectors that are written together at least: a block of the disk.
    unit: u64,
    sectors: Vec<Sector>,
    flights: BTreeMap<(usize, u16), Flight>,
    stamp: u64,
    /// Writes and flushes that were seen to end.
    ended: [u64; 2],
    rng: u64,
}

impl Writer {
    /// A guest that uses the first so many sectors of its disk, which are all zeroes.
    ///
    /// # Errors
    /// The configuration space cannot be read.
    pub fn new(
        mut driver: BlockDriver,
        sectors: u64,
        depth: usize,
        seed: u64,
    ) -> Result<Writer, BlockError> {
        let config = driver.frontend.get_config(60)?;
        let block = config[device::CONFIG_BLK_SIZE..].first_chunk();
        let block = block.map_or(0, |raw| u32::from_le_bytes(*raw));
        Ok(Writer {
            driver,
            depth,
            unit: (u64::from(block) / SECTOR).max(1),
            sectors: vec![Sector { stamp: 0, busy: false }; sectors as usize],
            flights: BTreeMap::new(),
            stamp: 0,
            ended: [0; 2],
            rng: seed,
        })
    }

    /// Writes, and flushes, that were seen to end.
    #[must_use]
    pub fn ended(&self) -> [u64; 2] {
        self.ended
    }

    /// Requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Takes what has ended, and submits as much as there is room for. Returns how much had ended.
    ///
    /// # Errors
    /// The device broke a ring.
    ///
    /// # Panics
    /// A request failed, or the disk has what it must not have.
    pub fn step(&mut self) -> Result<usize, BlockError> {
        let mut ended = 0;
        for queue in 0..self.driver.queues.len() {
            // First: tokens of what has ended are given out again.
            while let Some(done) = self.driver.poll(queue)? {
                self.end(queue, &done);
                ended += 1;
            }
            while self.driver.outstanding(queue) < self.depth && self.submit(queue) {}
            self.driver.kick(queue);
        }
        Ok(ended)
    }

    /// Waits for all that is in flight, then reads everything and compares it with what must be
    /// there.
    ///
    /// # Errors
    /// See [`BlockError`].
    ///
    /// # Panics
    /// As [`Writer::step`].
    pub fn settle(&mut self) -> Result<(), BlockError> {
        for (queue, done) in self.driver.drain()? {
            self.end(queue, &done);
        }
        assert!(self.flights.is_empty());
        for first in (0..self.sectors.len() as u64).step_by(64) {
            let count = (self.sectors.len() as u64 - first).min(64);
            let done = self.driver.run(&Request::read(first, (count * SECTOR) as u32))?;
            assert_eq!(done.status, Some(status::OK), "read of {first}");
            self.check(first, &done.data);
        }
        Ok(())
    }

    /// A request of some kind, if there is room in the ring and on the disk.
    fn submit(&mut self, queue: usize) -> bool {
        let blocks = self.sectors.len() as u64 / self.unit;
        let most = (MOST / self.unit).max(1);
        let count = 1 + self.below(most);
        let first = self.below(blocks - count + 1) * self.unit;
        let count = count * self.unit;
        let kind = self.below(16);
        let what = match kind {
            0 => What::Flush,
            1..4 => What::Read,
            _ => What::Write,
        };
        let flight = Flight { what, first, count: if kind == 0 { 0 } else { count } };
        if self.touched(flight).iter().any(|sector| sector.busy) {
            // Elsewhere; in the end another time.
            return self.below(4) != 0;
        }
        self.stamp += 1;
        let stamp = if kind == 4 { 0 } else { self.stamp };
        let request = match what {
            What::Flush => Request::flush(),
            What::Read => Request::read(first, (count * SECTOR) as u32),
            What::Write if stamp == 0 => {
                let unmap = self.below(2) == 0;
                Request::write_zeroes(first, count as u32, unmap)
            }
            What::Write => {
                let all = first..first + count;
                Request::write(first, &all.flat_map(|at| stamped(at, stamp)).collect::<Vec<_>>())
            }
        };
        let shape = if self.below(2) == 0 { Shape::Direct } else { Shape::Indirect };
        let layout = Layout { shape, ..Layout::usual(&request) };
        let Some(token) = self.driver.submit(queue, &request, &layout) else { return false };
        self.flights.insert((queue, token), flight);
        for sector in self.touched(flight) {
            sector.busy = true;
            if what == What::Write {
                sector.stamp = stamp;
            }
        }
        true
    }

    fn touched(&mut self, flight: Flight) -> &mut [Sector] {
        &mut self.sectors[flight.first as usize..(flight.first + flight.count) as usize]
    }

    fn end(&mut self, queue: usize, done: &Done) {
        let Some(flight) = self.flights.remove(&(queue, done.token)) else {
            panic!("a request ended that was not in flight: {done:?}")
        };
        assert_eq!(done.status, Some(status::OK), "{flight:?}");
        match flight.what {
            What::Read => self.check(flight.first, &done.data),
            What::Write => self.ended[0] += 1,
            What::Flush => self.ended[1] += 1,
        }
        self.touched(flight).iter_mut().for_each(|sector| sector.busy = false);
    }

    /// Compares what was read from `first` on with what must be there.
    fn check(&self, first: u64, bytes: &[u8]) {
        for (sector, found) in (first..).zip(bytes.chunks(SECTOR as usize)) {
            let stamp = self.sectors[sector as usize].stamp;
            let expected = if stamp == 0 { vec![0; found.len()] } else { stamped(sector, stamp) };
            let words: Vec<u64> =
                found.as_chunks().0.iter().map(|raw| u64::from_le_bytes(*raw)).collect();
            assert!(
                found == expected,
                "sector {sector} is not as in write {stamp}, but {:?} at its start and {:?} at its end",
                &words[..2],
                &words[words.len() - 2..],
            );
        }
    }

    /// From 0 to `n` - 1 (SplitMix64).
    pub fn below(&mut self, n: u64) -> u64 {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rng;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n.max(1)
    }
}

/// A sector with this stamp, wherever one looks.
fn stamped(sector: u64, stamp: u64) -> Vec<u8> {
    [sector.to_le_bytes(), stamp.to_le_bytes()].concat().repeat(SECTOR as usize / 16)
}
