//! Requests to one disk, always as many in flight as a cell says, and how long each took.

use std::time::Duration;

use blkclient::{Answer, Client, ClientError, Request, Wait};
use hdrhistogram::Histogram;
use sys::clock::{ticks, ticks_per_second};

use super::cell::Job;
use crate::window::RoundTrips;

/// Longest time that is told apart, nanoseconds.
const LONGEST: u64 = 60_000_000_000;
/// Digits of a time that count.
const DIGITS: u8 = 3;
/// Longest sleep of a client that is not called.
const SLEEP: Duration = Duration::from_millis(20);

/// Why there are no figures of a turn.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The client, or the device.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A request failed.
    #[error("a request was answered with {0:?}")]
    Refused(Answer),
    /// It was read, but not what was written.
    #[error("at byte {offset} of the {what} is not what was written")]
    Data {
        /// Where it was read.
        what: &'static str,
        /// The beginning of the piece.
        offset: u64,
    },
    /// The image, or another file.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The reason.
        source: std::io::Error,
    },
    /// The disk is smaller than it was to be.
    #[error("the disk has {0} bytes")]
    Size(u64),
    /// What fio said.
    #[error("fio: {0}")]
    Fio(String),
    /// A guest, or what it said.
    #[error("{0}")]
    Guest(String),
}

/// How long requests took, in nanoseconds to three digits.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// Without any yet.
    ///
    /// # Errors
    /// Not with these bounds.
    pub fn new() -> Result<Latencies, LoadError> {
        let histogram = Histogram::new_with_max(LONGEST, DIGITS);
        let io =
            |error| LoadError::Io { what: "a histogram", source: std::io::Error::other(error) };
        histogram.map(Latencies).map_err(io)
    }

    /// One more, of so many nanoseconds.
    pub fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos);
    }

    /// Those of another, too.
    pub(super) fn add(&mut self, other: &Latencies) {
        // Both have the same bounds.
        let _ = self.0.add(&other.0);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// Their percentiles; none of none.
    #[must_use]
    pub fn summary(&self) -> Option<RoundTrips> {
        let at = |share| self.0.value_at_quantile(share) as f64;
        let n = self.0.len() as usize;
        (n > 0).then(|| RoundTrips { n, p50: at(0.5), p99: at(0.99), p999: at(0.999) })
    }
}

/// Numbers at random, the same in every run (xorshift64).
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    /// Numbers that differ from those of another seed.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Fills bytes with them.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let number = self.number().to_le_bytes();
            piece.copy_from_slice(number.get(..piece.len()).unwrap_or_default());
        }
    }

    /// One of them.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Where the requests of a job go.
struct Places {
    /// Blocks of the disk.
    blocks: u64,
    next: u64,
    random: Option<Random>,
}

impl Places {
    /// The number of the next block.
    fn next(&mut self) -> u64 {
        if let Some(random) = &mut self.random {
            return random.number() % self.blocks;
        }
        let block = self.next;
        self.next = (block + 1) % self.blocks;
        block
    }
}

/// A job's queue.
struct Queue {
    places: Places,
    /// When the request of each slot was made.
    begun: Vec<u64>,
}

/// What was counted.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Requests that were answered.
    pub requests: u64,
    /// Looks at a queue, and those of them that found no answer.
    pub looks: u64,
    /// See `looks`.
    pub empty: u64,
    /// How long they took.
    pub latencies: Latencies,
}

/// A client at work.
pub struct Load<'a> {
    client: &'a mut Client,
    job: Job,
    queues: Vec<Queue>,
    ready: Vec<u16>,
    /// What was counted since [`Load::begin`].
    pub counts: Counts,
}

impl<'a> Load<'a> {
    /// Requests of a job to the first `size` bytes of the client's disk, none of them made yet. The
    /// client has as many queues and slots as the job needs.
    ///
    /// # Errors
    /// The disk is smaller than one request.
    pub fn new(client: &'a mut Client, job: Job, size: u64) -> Result<Load<'a>, LoadError> {
        let blocks = size.min(client.capacity()) / u64::from(job.block.max(1));
        if blocks == 0 {
            return Err(LoadError::Size(client.capacity()));
        }
        let queue = |number: u16| {
            let number = u64::from(number);
            let random = job.access.random().then(|| Random::new(number));
            let next = number * (blocks / u64::from(job.jobs.max(1)));
            Queue { places: Places { blocks, next, random }, begun: vec![0; job.depth.into()] }
        };
        let queues = (0..job.jobs).map(queue).collect();
        let mut data = vec![0; job.block as usize];
        let mut random = Random::new(u64::from(u32::MAX));
        for queue in 0..job.jobs {
            for slot in 0..job.depth {
                random.fill(&mut data);
                client.put(queue, slot, &data)?;
            }
        }
        let counts = Counts { requests: 0, looks: 0, empty: 0, latencies: Latencies::new()? };
        Ok(Load { client, job, queues, ready: Vec::new(), counts })
    }

    /// Counts from now on.
    pub fn begin(&mut self) {
        self.counts.latencies.clear();
        let counts = &mut self.counts;
        (counts.requests, counts.looks, counts.empty) = (0, 0, 0);
    }

    /// Keeps the disk busy for a time. Requests stay in flight at the end: whether the device is silent
    /// is found by [`Load::drain`].
    ///
    /// # Errors
    /// A request failed.
    pub fn run(&mut self, time: Duration) -> Result<(), LoadError> {
        let nanos = 1e9 / ticks_per_second();
        let end = ticks() + (time.as_secs_f64() * ticks_per_second()) as u64;
        for queue in 0..self.job.jobs {
            self.start(queue)?;
        }
        while ticks() < end {
            let mut any = false;
            for queue in 0..self.job.jobs {
                any |= self.turn(queue, nanos)?;
            }
            if !any && self.client.shape().wait == Wait::Event {
                self.client.sleep(SLEEP)?;
            }
        }
        Ok(())
    }

    /// Waits for what is in flight.
    ///
    /// # Errors
    /// The device is silent.
    pub fn drain(&mut self) -> Result<(), LoadError> {
        Ok(self.client.drain()?)
    }

    /// Fills a queue that has nothing in flight.
    fn start(&mut self, queue: u16) -> Result<(), LoadError> {
        if self.client.in_flight(queue) > 0 {
            return Ok(());
        }
        for slot in 0..self.job.depth {
            self.submit(queue, slot)?;
        }
        Ok(self.client.kick(queue)?)
    }

    /// Takes the answers of a queue and makes as many new requests; whether there were any.
    fn turn(&mut self, queue: u16, nanos: f64) -> Result<bool, LoadError> {
        let Load { client, queues, ready, counts, .. } = self;
        let Some(begun) = queues.get(usize::from(queue)).map(|queue| &queue.begun) else {
            return Ok(false);
        };
        ready.clear();
        counts.looks += 1;
        let mut refused = None;
        client.answers(queue, |slot, answer| {
            if answer != Answer::Done {
                refused = Some(answer);
            }
            let since = begun.get(usize::from(slot)).map_or(0, |begun| ticks() - begun);
            counts.latencies.record((since as f64 * nanos) as u64);
            ready.push(slot);
        });
        if let Some(answer) = refused {
            return Err(LoadError::Refused(answer));
        }
        if ready.is_empty() {
            counts.empty += 1;
            return Ok(false);
        }
        counts.requests += ready.len() as u64;
        for at in 0..self.ready.len() {
            if let Some(&slot) = self.ready.get(at) {
                self.submit(queue, slot)?;
            }
        }
        self.client.kick(queue)?;
        Ok(true)
    }

    fn submit(&mut self, queue: u16, slot: u16) -> Result<(), LoadError> {
        let Job { access, block: len, .. } = self.job;
        let Some(Queue { places, begun }) = self.queues.get_mut(usize::from(queue)) else {
            return Ok(());
        };
        let offset = places.next() * u64::from(len);
        if let Some(begun) = begun.get_mut(usize::from(slot)) {
            *begun = ticks();
        }
        let request = match access.writes() {
            true => Request::Write { offset, len },
            false => Request::Read { offset, len },
        };
        Ok(self.client.submit(queue, slot, request)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_exact_to_three_digits() {
        let mut latencies = Latencies::new().unwrap();
        assert_eq!(latencies.summary(), None);
        for micros in 1..=10_000_u64 {
            latencies.record(micros * 1_000);
        }
        let found = latencies.summary().unwrap();
        assert_eq!(found.n, 10_000);
        for (value, exact) in [(found.p50, 5e6), (found.p99, 9.9e6), (found.p999, 9.99e6)] {
            assert!((value / exact - 1.0).abs() < 1e-3, "{value} {exact}");
        }
        // One that took longer than can be told apart counts as the longest.
        latencies.record(u64::MAX);
        assert_eq!(latencies.summary().unwrap().n, 10_001);
        latencies.clear();
        assert_eq!(latencies.summary(), None);
    }

    #[test]
    fn places_are_on_the_disk_and_go_on() {
        let mut random = Places { blocks: 7, next: 0, random: Some(Random::new(3)) };
        let mut hit = [0; 7];
        (0..7_000).for_each(|_| hit[random.next() as usize] += 1);
        assert!(hit.iter().all(|&n| n > 700), "{hit:?}");
        let mut row = Places { blocks: 3, next: 2, random: None };
        assert_eq!([row.next(), row.next(), row.next(), row.next()], [2, 0, 1, 2]);
    }

    #[test]
    fn seeds_differ() {
        let (mut one, mut other) = ([0; 20], [0; 20]);
        Random::new(0).fill(&mut one);
        Random::new(1).fill(&mut other);
        assert_ne!(one, other);
        assert_ne!(one[16..], [0; 4]);
    }
}
