//! A driver that does next to nothing itself: it neither allocates nor looks at what it receives,
//! so that what is counted is the worker's.

use dataplane::PortId;
use testkit::driver::flags::{AVAIL, USED, WRITE};
use testkit::driver::{self, RawDesc};
use testkit::frontend::Frontend;

use super::PATIENCE;
use super::frames::Vnet;
use super::plane::Plane;
use super::vm::{Guest, Side, Vm};

/// Bytes from one RX buffer to the next.
const RX_STEP: u64 = 2048;

/// A queue whose descriptors all stay as they were laid out: what is used is made available again.
pub(crate) struct Wheel {
    rx: bool,
    /// Where the buffer of the first descriptor is, and of each next one.
    gpa: u64,
    step: u64,
    len: u32,
    /// Entries of the ring.
    size: u64,
    /// Made available, and seen used, since the start.
    given: u64,
    seen: u64,
}

impl Wheel {
    /// The VM's RX queue.
    pub(crate) fn rx(vm: &Vm) -> Wheel {
        let gpa = vm.memory.regions()[2].spec.guest_addr;
        let size = vm.guest.ring.into();
        Wheel { rx: true, gpa, step: RX_STEP, len: RX_STEP as u32, size, given: 0, seen: 0 }
    }

    /// Its TX queue. There is one frame for all descriptors, which lies behind the RX buffers.
    pub(crate) fn tx(vm: &Vm) -> Wheel {
        let size = u64::from(vm.guest.ring);
        let gpa = vm.memory.regions()[2].spec.guest_addr + size * RX_STEP;
        Wheel { rx: false, gpa, step: 0, len: 0, size, given: 0, seen: 0 }
    }

    /// The frame to be sent from now on.
    pub(crate) fn load(&mut self, vm: &Vm, header: &Vnet, frame: &[u8]) {
        let bytes = [header.to_bytes().as_slice(), frame].concat();
        assert!(driver::write(vm.memory.guest(), self.gpa, &bytes));
        self.len = bytes.len() as u32;
    }

    pub(crate) fn side<'v>(&self, vm: &'v Vm) -> &'v Side {
        if self.rx { &vm.rx[0] } else { &vm.tx[0] }
    }

    /// Makes `count` more buffers available, not more than the ring has room for.
    pub(crate) fn give(&mut self, vm: &Vm, count: u16) {
        let side = self.side(vm);
        let (raw, packed) = (side.queue.raw(), side.queue.spec().packed);
        let write = if self.rx { WRITE } else { 0 };
        for _ in 0..count {
            let slot = (self.given % self.size) as u16;
            let odd = self.given / self.size % 2 == 1;
            let mark = match (packed, odd) {
                (false, _) => 0,
                (true, false) => AVAIL,
                (true, true) => USED,
            };
            let addr = self.gpa + self.step * u64::from(slot);
            // A packed ring must not show a descriptor before it is whole: flags go last.
            raw.set_desc(slot, &RawDesc { addr, len: self.len, flags: write | mark, tag: slot });
            if !packed {
                raw.set_avail_entry(slot, slot);
            }
            self.given += 1;
        }
        if !packed {
            raw.set_avail_idx(self.given as u16);
        }
        if !self.rx {
            side.fds.kick.signal().unwrap();
        }
    }

    /// Gives it all the buffers it has room for.
    pub(crate) fn fill(&mut self, vm: &Vm) {
        let room = self.size - (self.given - self.seen);
        self.give(vm, room as u16);
    }

    /// Looks how many more were used.
    pub(crate) fn look(&mut self, vm: &Vm) -> u16 {
        let side = self.side(vm);
        let raw = side.queue.raw();
        let before = self.seen;
        if side.queue.spec().packed {
            while self.seen < self.given {
                let odd = self.seen / self.size % 2 == 1;
                let flags = raw.desc_flags((self.seen % self.size) as u16);
                if flags & (AVAIL | USED) != if odd { 0 } else { AVAIL | USED } {
                    break;
                }
                self.seen += 1;
            }
        } else {
            self.seen += u64::from(raw.used_idx().wrapping_sub(self.seen as u16));
        }
        (self.seen - before) as u16
    }
}

/// A port and a VM on it whose queues run and are empty.
pub(crate) fn vm(plane: &Plane, name: &str, guest: &Guest) -> (PortId, Vm) {
    let port = plane.port(name);
    let frontend = Frontend::connect_within(plane.socket(name), PATIENCE).unwrap();
    let rx_buffers = 2 * usize::from(guest.ring);
    let mut vm = Vm::stopped(
        frontend,
        &Guest { rx_buffer: (RX_STEP as usize, RX_STEP as usize), rx_buffers, ..guest.clone() },
    );
    vm.negotiate();
    vm.refilling = false;
    vm.frontend.set_mem_table(&vm.memory).unwrap();
    (0..2).for_each(|queue| vm.start_queue(queue));
    (port, vm)
}
