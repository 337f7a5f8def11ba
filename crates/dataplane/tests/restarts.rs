//! Guests outlive the data plane: the next one goes on with their rings, of which a front end that
//! was not asked for a position knows an old one only.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs;
use std::path::PathBuf;

use common::frames::{eth, mac};
use common::plane::Plane;
use common::vm::{Guest, Side, Vm};
use common::{PATIENCE, Rng};
use tempfile::TempDir;
use testkit::driver;
use testkit::frontend::{Frontend, request};

/// Where every ring here begins, in both halves.
const NEW: u32 = 0x8000_8000;

/// What lasts from one plane to the next.
struct Host(TempDir);

impl Host {
    fn new() -> Host {
        Host(tempfile::tempdir().unwrap())
    }

    fn rings(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A plane with ports of these names.
    fn plane(&self, names: &[&str]) -> Plane {
        let plane = Plane::new();
        for name in names {
            plane.port_with(name, |_, vhost| vhost.rings = Some(self.rings(name)));
        }
        plane
    }
}

fn guests() -> Vec<Guest> {
    let packed = Guest { packed: true, ..Guest::plain() };
    vec![
        packed.clone(),
        Guest { event_idx: true, ring: 16, rx_buffers: 16, ..packed.clone() },
        Guest { in_order: true, indirect: true, pairs: 2, ..packed.clone() },
        // Frames over several buffers.
        Guest { rx_buffer: (100, 200), ..packed.clone() },
        // The other format, in which guest memory says it all.
        Guest { packed: false, ..packed },
    ]
}

fn side(vm: &Vm, queue: u16) -> &Side {
    let sides = if queue.is_multiple_of(2) { &vm.rx } else { &vm.tx };
    &sides[usize::from(queue) / 2]
}

/// Connects as QEMU does when its back end is there again: with the base it has.
fn reconnect(plane: &Plane, name: &str, vm: &mut Vm, base: u32) {
    vm.frontend = Frontend::connect_within(plane.socket(name), PATIENCE).unwrap();
    vm.negotiate();
    vm.frontend.set_mem_table(&vm.memory).unwrap();
    let Vm { frontend, memory, rx, tx, .. } = vm;
    let both = rx.iter().zip(tx.iter()).flat_map(|(rx, tx)| [rx, tx]);
    for (index, Side { queue, fds, .. }) in (0..).zip(both) {
        let (at, size) = (queue.addresses(), queue.spec().size.into());
        let user = [at.desc, at.device, at.driver].map(|gpa| memory.user_addr(gpa).unwrap());
        frontend.set_ring_state(request::SET_VRING_NUM, index, size).unwrap();
        frontend.set_ring_state(request::SET_VRING_BASE, index, base).unwrap();
        frontend.set_ring_addr(index, user).unwrap();
        // Before it runs: what a disabled queue finds in its ring is dropped.
        frontend.enable_queue(index, true).unwrap();
        frontend.set_ring_fd(request::SET_VRING_KICK, index, Some(&fds.kick)).unwrap();
        frontend.set_ring_fd(request::SET_VRING_CALL, index, Some(&fds.call)).unwrap();
    }
    plane.barrier();
}

fn first_base(vm: &Vm) -> u32 {
    if vm.guest.packed { NEW } else { 0 }
}

fn frame(from: u32, to: u32, number: u32, len: usize) -> Vec<u8> {
    eth(mac(to), mac(from), &[&number.to_be_bytes(), vec![number as u8; len].as_slice()].concat())
}

/// Sends frames both ways and takes them: each arrives once, unchanged and in order.
fn talk(vms: &mut [Vm; 2], rng: &mut Rng, number: &mut u32) {
    for _ in 0..rng.range(1, 60) {
        for (from, to) in [(0, 1), (1, 0)] {
            let sent = frame(from as u32, to as u32, *number, rng.range(50, 1400));
            vms[from].send(&sent);
            assert!(vms[to].take(1)[0].frame == sent, "frame {number} from {from}");
        }
        *number += 1;
    }
}

/// Five planes, one after the other, serve two guests that never start their rings anew.
#[test]
fn guests_go_on_with_the_next_data_plane() {
    for guest in guests() {
        let host = Host::new();
        let mut rng = Rng::new(1);
        let mut number = 0;
        let mut plane = host.plane(&["a", "b"]);
        let mut vms = ["a", "b"].map(|name| plane.connect(name, &guest));
        for round in 0..5 {
            talk(&mut vms, &mut rng, &mut number);
            if round % 2 == 0 {
                // Stops and starts the queues, of which the front end learns nothing.
                for vm in &mut vms {
                    vm.frontend.set_mem_table(&vm.memory).unwrap();
                }
                plane.barrier();
                if round % 4 == 0 {
                    talk(&mut vms, &mut rng, &mut number);
                }
            }
            vms.iter_mut().for_each(Vm::drain);
            plane.end();
            // What a guest sends while nobody is there waits in its ring.
            let waiting = frame(0, 1, number, 100);
            vms[0].send(&waiting);
            number += 1;
            plane = host.plane(&["a", "b"]);
            for (name, vm) in ["b", "a"].into_iter().zip(vms.iter_mut().rev()) {
                let base = first_base(vm);
                reconnect(&plane, name, vm, base);
            }
            assert!(vms[1].take(1)[0].frame == waiting, "round {round} of {guest:?}");
        }
        talk(&mut vms, &mut rng, &mut number);
        // Where the driver sees it, and now the front end knows it too.
        for vm in &mut vms {
            vm.drain();
            vm.refilling = false;
            for queue in 0..2 * vm.guest.pairs {
                let base = vm.frontend.stop_queue(queue).unwrap();
                assert_eq!(base, side(vm, queue).queue.base());
            }
        }
        plane.end();
    }
}

/// A front end whose session was ended by the guest's fault comes back with its old base as well.
#[test]
fn a_guest_goes_on_in_the_next_session() {
    let host = Host::new();
    let plane = host.plane(&["a", "b"]);
    let guest = Guest { packed: true, ..Guest::plain() };
    let mut vms = ["a", "b"].map(|name| plane.connect(name, &guest));
    let (mut rng, mut number) = (Rng::new(2), 0);
    for _ in 0..10 {
        talk(&mut vms, &mut rng, &mut number);
        vms.iter_mut().for_each(Vm::drain);
        reconnect_after_hang_up(&plane, "a", &mut vms[0]);
    }
    talk(&mut vms, &mut rng, &mut number);
    plane.end();
}

fn reconnect_after_hang_up(plane: &Plane, name: &str, vm: &mut Vm) {
    let (left, _) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(std::mem::replace(&mut vm.frontend, Frontend::over(left).unwrap()));
    reconnect(plane, name, vm, NEW);
}

/// A guest that booted anew while no data plane was there begins at the beginning.
#[test]
fn a_new_ring_starts_at_its_base() {
    let guest = Guest { packed: true, ..Guest::plain() };
    let host = Host::new();
    let plane = host.plane(&["a", "b"]);
    let mut vms = ["a", "b"].map(|name| plane.connect(name, &guest));
    let (mut rng, mut number) = (Rng::new(3), 0);
    for _ in 0..9 {
        talk(&mut vms, &mut rng, &mut number);
    }
    vms.iter_mut().for_each(Vm::drain);
    plane.end();
    let plane = host.plane(&["a", "b"]);
    reconnect(&plane, "a", &mut vms[0], NEW);
    let b = &mut vms[1];
    let mem = b.memory.guest().clone();
    for side in b.rx.iter_mut().chain(&mut b.tx) {
        let (at, size) = (side.queue.addresses(), u32::from(side.queue.spec().size));
        assert!(driver::write(&mem, at.desc, &vec![0; 16 * size as usize]));
        side.renew(&mem);
    }
    b.refill();
    reconnect(&plane, "b", b, NEW);
    for queue in [0, 1] {
        assert_eq!(b.frontend.stop_queue(queue).unwrap(), NEW);
        b.start_queue(queue);
    }
    plane.barrier();
    talk(&mut vms, &mut rng, &mut number);
    plane.end();
}

/// What the front end was told it knows: the data plane need not remember it, and does not.
#[test]
fn a_position_that_was_told_is_forgotten() {
    let guest = Guest { packed: true, ..Guest::plain() };
    for reset in [false, true] {
        let host = Host::new();
        let plane = host.plane(&["a", "b"]);
        let mut vms = ["a", "b"].map(|name| plane.connect(name, &guest));
        talk(&mut vms, &mut Rng::new(4), &mut 0);
        let [mut a, _b] = vms;
        a.drain();
        if reset {
            a.frontend.set(request::RESET_DEVICE, &[], &[]).unwrap();
        } else {
            assert_ne!(a.frontend.stop_queue(1).unwrap(), NEW);
        }
        plane.end();
        let plane = host.plane(&["a"]);
        reconnect(&plane, "a", &mut a, NEW);
        assert_eq!(a.frontend.stop_queue(1).unwrap(), NEW, "with the base it was given");
        plane.end();
    }
}

/// A file that is none, or of a port with other queues, is replaced; one that cannot be is done
/// without.
#[test]
fn a_file_of_no_use_is_replaced() {
    let guest = Guest { packed: true, ..Guest::plain() };
    let host = Host::new();
    let (good, mut number) = (vec![0x5a; 8 * 4096], 0);
    fs::write(host.rings("a"), "no such thing").unwrap();
    fs::write(host.rings("b"), &good).unwrap();
    let plane = host.plane(&["a", "b"]);
    let mut vms = ["a", "b"].map(|name| plane.connect(name, &guest));
    talk(&mut vms, &mut Rng::new(5), &mut number);
    for name in ["a", "b"] {
        assert_eq!(fs::metadata(host.rings(name)).unwrap().len(), good.len() as u64);
    }
    plane.end();
    fs::create_dir(host.rings("c")).unwrap();
    let plane = host.plane(&["c", "d"]);
    let mut vms = ["c", "d"].map(|name| plane.connect(name, &guest));
    talk(&mut vms, &mut Rng::new(6), &mut number);
    plane.end();
}
