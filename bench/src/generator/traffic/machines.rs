//! Virtual machines on the way, which forward what they get: cards `2m - 1` and `2m` are machine `m`'s.

use std::time::{Duration, Instant};

use super::{PATIENCE, Paths, Traffic, frames_of, settle, two};
use crate::generator::buffers::HEADER;
use crate::generator::card::BURST;
use crate::generator::ring::Ring;
use crate::generator::{GeneratorError, frames};

impl<R: Ring> Traffic<R> {
    /// What virtual machine `machine`, counted from 1, has in its buffers so far is made its own, to be
    /// sent.
    pub(super) fn compose(&mut self, machine: usize) {
        if let Some(inside) = self.cards.get(2 * machine - 1) {
            inside.prefill(&self.mem, &frames_of(2 * machine, &self.spec));
        }
    }

    /// Brings a virtual machine's two rings to the same entry: from then on a buffer is received and
    /// sent under one number. What is sent for that moves the rings of the next machine.
    pub(super) fn align(&mut self, machine: usize) -> Result<(), GeneratorError> {
        let start = Instant::now();
        loop {
            let cards = self.cards.get_mut(2 * machine - 1..);
            let Some([inside, outside, last, ..]) = cards else {
                return Err(GeneratorError::Pairing);
            };
            let mut aligned = true;
            for (rx, tx) in inside.rx.iter().zip(&mut outside.tx) {
                tx.ring.reap(BURST, |_, _| ());
                let idle = tx.ring.position().0 == tx.ring.position().1;
                let there = rx.ring.position().1 == tx.ring.position().0;
                aligned &= idle && there;
                if idle && !there {
                    tx.ring.publish(1);
                    tx.kick();
                }
            }
            settle(last);
            if aligned {
                // All that was sent arrived.
                let quiet = Instant::now();
                while quiet.elapsed() < Duration::from_millis(5) {
                    settle(last);
                }
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err(GeneratorError::Silent { patience: PATIENCE });
            }
        }
    }

    /// The virtual machines in between: what the one card of each received leaves by the other one.
    #[inline(always)]
    pub(super) fn forward(&mut self) {
        for machine in 1..=self.spec.paths.machines() {
            self.forward_at(machine);
        }
    }

    fn forward_at(&mut self, machine: usize) {
        let (into, out) = (2 * machine - 1, 2 * machine);
        let routes = matches!(self.spec.paths, Paths::Routed(_));
        let Some((inside, outside)) = two(&mut self.cards, into, out) else { return };
        let mut macs = [0; 12];
        macs[..6].copy_from_slice(&frames::mac(out as u16 + 1, 0));
        macs[6..].copy_from_slice(&frames::mac(out as u16, 0));
        for (rx, tx) in inside.rx.iter_mut().zip(&mut outside.tx) {
            let buffers = *rx.ring.buffers();
            let mem = &self.mem;
            let count = rx.ring.reap(BURST, |slot, _| {
                if let Some(place) = mem.slice(buffers.address(slot.into()), buffers.len) {
                    place.store([0; HEADER as usize]);
                    let frame = place.skip(HEADER as usize);
                    frame.store(macs);
                    if routes {
                        frames::count_down(frame);
                    }
                }
            });
            if count > 0 {
                tx.ring.publish(count);
                tx.kick_if_seen();
            }
            // Buffers go back to the first card in the order in which they came from it.
            let sent = tx.ring.reap(BURST, |_, _| ());
            rx.ring.publish(sent);
        }
    }
}
