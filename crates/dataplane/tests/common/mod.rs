//! A running data plane, virtual machines on its sockets, and what tests ask of both.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

pub(crate) mod duo;
pub(crate) mod frames;
pub(crate) mod pair;
pub(crate) mod plane;
pub(crate) mod process;
pub(crate) mod vm;
pub(crate) mod wheel;

use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up on it. Only a hang takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something to come true.
pub(crate) fn wait(what: impl FnMut() -> String, done: impl FnMut() -> bool) {
    wait_for(PATIENCE, what, done);
}

/// The same with another patience.
pub(crate) fn wait_for(
    patience: Duration,
    mut what: impl FnMut() -> String,
    mut done: impl FnMut() -> bool,
) {
    let start = Instant::now();
    let mut spins = 0u32;
    while !done() {
        assert!(start.elapsed() < patience, "in vain: {}", what());
        spins += 1;
        if spins < 64 { thread::yield_now() } else { thread::sleep(Duration::from_micros(50)) }
    }
}

/// Numbers that are the same in every run (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed ^ 0x6a09_e667_f3bc_c909)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `n` - 1.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// From `low` to `high`, both possible.
    pub(crate) fn range(&mut self, low: usize, high: usize) -> usize {
        low + self.below((high - low + 1) as u64) as usize
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.next().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }
}
