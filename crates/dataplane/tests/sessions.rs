//! What a front end may do with a running session: stop, start, new memory, new connections, and
//! requests to the network.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::os::unix::net::UnixListener;

use common::frames::{BROADCAST, Vnet, eth, mac};
use common::pair::Pair;
use common::plane::Plane;
use common::vm::{Guest, Side, Vm};
use common::{Rng, wait};
use dataplane::{PortState, SocketMode};
use rustix::fs::ftruncate;
use testkit::driver;
use testkit::frontend::{Region, SharedMemory, request};

/// What a stopped queue's memory is filled with.
const SCRIBBLE: u8 = 0x5c;

/// Frame `number`.
fn frame(number: u32) -> Vec<u8> {
    eth(mac(1), mac(0), &[&number.to_be_bytes(), [number as u8; 60].as_slice()].concat())
}

/// The number of a frame, which is whole.
fn number(bytes: &[u8]) -> u32 {
    let number = u32::from_be_bytes(bytes[14..18].try_into().unwrap());
    assert!(bytes == frame(number), "frame {number} was changed on the way");
    number
}

/// Numbers of the frames in the inbox.
fn numbers(vm: &mut Vm) -> Vec<u32> {
    vm.poll();
    vm.inbox.drain(..).map(|received| number(&received.frame)).collect()
}

/// Some time for the worker to get anywhere in its work.
fn pause(rng: &mut Rng) {
    for _ in 0..rng.below(2000) {
        std::hint::spin_loop();
    }
}

/// Where the parts of a ring are, with their lengths.
fn areas(side: &Side) -> [(u64, u32); 3] {
    let (at, spec) = (side.queue.addresses(), side.queue.spec());
    let n = u32::from(spec.size);
    let [driver, device] = if spec.packed { [4, 4] } else { [4 + 2 * n, 4 + 8 * n] };
    [(at.desc, 16 * n), (at.driver, driver), (at.device, device)]
}

/// Once GET_VRING_BASE is answered the device touches nothing of the ring and its buffers.
#[test]
fn a_stopped_tx_queue_is_left_alone() {
    const RING: u16 = 4096;
    for guest in Guest::formats() {
        let long =
            Guest { ring: RING, tx_max: 100, tx_buffers: 4000, rx_buffers: 4000, ..guest.clone() };
        let sender = Guest { rx_buffers: 1, ..long.clone() };
        let Pair { plane, mut a, mut b, .. } = Pair::on(Plane::new(), [&sender, &long]);
        let (_, mut c) = plane.vm("c", &guest);
        let mut rng = Rng::new(1);
        let (mut next, mut expected) = (0, 0);
        for _ in 0..40 {
            let first = next;
            for _ in 0..rng.range(1, 4000) {
                assert!(a.add(0, &Vnet::default(), &frame(next)));
                next += 1;
            }
            a.flush(0);
            pause(&mut rng);
            let base = a.frontend.stop_queue(1).unwrap();
            // Every frame has one descriptor; the ring started anew this round.
            let taken = if guest.packed {
                assert_eq!(base >> 16, base & 0xffff, "avail and used are the same when quiet");
                (base & 0x7fff) + if base & 0x8000 == 0 { RING.into() } else { 0 }
            } else {
                base
            };
            assert!(taken <= next - first, "base {base:#x} after {} frames", next - first);

            let mem = a.memory.guest();
            for (gpa, len) in areas(&a.tx[0]) {
                assert!(driver::write(mem, gpa, &vec![SCRIBBLE; len as usize]));
            }
            // Others go on, so the worker passes by.
            let hello = eth(BROADCAST, mac(2), b"others go on");
            let mut got = Vec::new();
            for _ in 0..10 {
                c.send(&hello);
                let mut heard = false;
                wait(
                    || "the others".into(),
                    || {
                        b.poll();
                        for one in b.inbox.drain(..) {
                            if one.frame == hello {
                                heard = true;
                            } else {
                                got.push(number(&one.frame));
                            }
                        }
                        heard
                    },
                );
            }
            for (gpa, len) in areas(&a.tx[0]) {
                let now = driver::read(mem, gpa, len).unwrap();
                assert!(now.iter().all(|byte| *byte == SCRIBBLE), "written after the stop");
            }
            assert_eq!(got, (first..first + taken).collect::<Vec<_>>(), "base {base:#x}");
            expected += taken;
            a.tx[0].renew(&mem.clone());
            a.start_queue(1);
            plane.barrier();
        }
        // Nearly always some were stopped in the middle, but nobody can promise that.
        assert!(expected > 0 && expected <= next, "{expected} of {next}");
        plane.end();
    }
}

/// The same of an RX queue, its ring and its buffers.
#[test]
fn a_stopped_rx_queue_is_left_alone() {
    for guest in Guest::formats() {
        let Pair { plane, mut a, mut b, from, to } = Pair::new(&guest);
        let mut rng = Rng::new(2);
        let (mut next, mut received) = (0, 0);
        for _ in 0..60 {
            for _ in 0..rng.range(1, 200) {
                a.send(&frame(next));
                next += 1;
            }
            pause(&mut rng);
            b.refilling = false;
            let base = b.frontend.stop_queue(0).unwrap();
            let before = b.rx[0].completed;
            let got = numbers(&mut b);
            assert!(got.is_sorted_by(|a, b| a < b));
            received += got.len();
            assert_eq!(
                base,
                b.rx[0].queue.base(),
                "after {} more frames",
                b.rx[0].completed - before
            );
            let mem = b.memory.guest().clone();
            let far = b.memory.regions()[2].spec;
            let mut places = areas(&b.rx[0]).to_vec();
            places.push((far.guest_addr, far.size as u32));
            for (gpa, len) in &places {
                assert!(driver::write(&mem, *gpa, &vec![SCRIBBLE; *len as usize]));
            }
            for _ in 0..10 {
                a.send(&frame(next));
                next += 1;
                a.drain();
            }
            for (gpa, len) in places {
                let now = driver::read(&mem, gpa, len).unwrap();
                assert!(now.iter().all(|byte| *byte == SCRIBBLE), "written after the stop");
            }
            b.rx[0].renew(&mem);
            b.refilling = true;
            b.refill();
            b.start_queue(0);
            plane.barrier();
        }
        a.drain();
        let balance = plane.settle(&[from, to], a.sent);
        received += numbers(&mut b).len();
        assert_eq!(received as u64, balance.to.frames);
        assert_eq!(received as u64 + balance.dropped(), a.sent);
        plane.end();
    }
}

/// With all queues stopped the memory may go: nobody looks at it.
#[test]
fn memory_of_stopped_queues_may_vanish() {
    for guest in Guest::formats() {
        let Pair { plane, mut a, mut b, to: port, .. } = Pair::new(&guest);
        let (_, mut c) = plane.vm("c", &guest);
        for n in 0..100 {
            a.send(&eth(BROADCAST, mac(0), &[n; 46]));
        }
        for queue in [0, 1] {
            b.frontend.stop_queue(queue).unwrap();
        }
        b.memory.regions().iter().for_each(|region| ftruncate(&region.fd, 0).unwrap());
        c.take(100);
        a.drain();
        for n in 0..100 {
            a.send(&eth(mac(1), mac(0), &[n; 46]));
        }
        c.take(100);
        b.frontend.get_u64(request::GET_FEATURES).unwrap();
        assert_eq!(plane.status(port).state, PortState::Connected);
        assert_eq!(plane.status(port).last_fault, None);
        plane.end();
    }
}

/// Memory that vanishes while nothing is sent is noticed too: the guest's kicks lead nowhere, for
/// ever, if the port goes on as if nothing had happened.
#[test]
fn memory_that_vanishes_under_an_idle_queue_is_noticed() {
    for guest in Guest::formats() {
        let plane = Plane::new();
        let (port, vm) = plane.vm("vm", &guest);
        vm.memory.regions().iter().for_each(|region| ftruncate(&region.fd, 0).unwrap());
        vm.tx[0].fds.kick.signal().unwrap();
        let noticed = || {
            let fault = plane.status(port).last_fault;
            fault.is_some_and(|fault| fault.starts_with("device-fault: memory-vanished"))
        };
        wait(|| format!("a fault of {:#?}", plane.status(port)), noticed);
        plane.end();
    }
}

/// Stopped and started 200 times while frames are sent: each arrives once and in order.
#[test]
fn restarts_of_a_tx_queue_lose_no_frame() {
    for guest in Guest::formats() {
        let Pair { plane, mut a, mut b, from, to } = Pair::new(&guest);
        let mut rng = Rng::new(4);
        let (mut next, mut got) = (0, Vec::new());
        for _ in 0..200 {
            for _ in 0..rng.range(0, 60) {
                if !a.add(0, &Vnet::default(), &frame(next)) {
                    break;
                }
                next += 1;
            }
            a.flush(0);
            pause(&mut rng);
            let base = a.frontend.stop_queue(1).unwrap();
            a.poll();
            assert_eq!(base, a.tx[0].queue.base(), "where the driver sees it");
            got.extend(numbers(&mut b));
            a.start_queue(1);
        }
        // Whatever was exposed before the last start needs no kick.
        a.drain();
        plane.settle(&[from, to], a.sent);
        got.extend(numbers(&mut b));
        assert_eq!(got, (0..next).collect::<Vec<_>>());
        plane.end();
    }
}

/// The same at the receiver: what arrives, arrives once and in order; the rest has a name.
#[test]
fn restarts_of_an_rx_queue_lose_no_completed_frame() {
    for guest in Guest::formats() {
        let Pair { plane, mut a, mut b, from, to } = Pair::new(&guest);
        let mut rng = Rng::new(5);
        let (mut next, mut got) = (0, Vec::new());
        for _ in 0..200 {
            for _ in 0..rng.range(0, 60) {
                a.send(&frame(next));
                next += 1;
            }
            pause(&mut rng);
            b.refilling = false;
            let base = b.frontend.stop_queue(0).unwrap();
            got.extend(numbers(&mut b));
            assert_eq!(base, b.rx[0].queue.base(), "where the driver sees it");
            b.start_queue(0);
            b.refilling = true;
            b.refill();
        }
        a.drain();
        plane.barrier();
        a.send(&frame(next));
        a.drain();
        let balance = plane.settle(&[from, to], a.sent);
        got.extend(numbers(&mut b));
        assert!(got.is_sorted_by(|a, b| a < b), "in order, none twice");
        assert_eq!(got.last(), Some(&next));
        assert_eq!(got.len() as u64 + balance.dropped(), a.sent);
        assert_eq!(got.len() as u64, balance.to.frames);
        plane.end();
    }
}

/// Regions come and go, and whole tables, under a sender: none of its frames is lost, and frames
/// from a new region arrive too.
#[test]
fn the_memory_of_a_sender_changes_under_traffic() {
    for guest in Guest::formats() {
        let Pair { plane, mut a, mut b, from, to } = Pair::new(&guest);
        let mut rng = Rng::new(6);
        let (mut next, mut got) = (0, Vec::new());
        let gpa = 1 << 30;
        for round in 0..100 {
            let mut send = |a: &mut Vm, next: &mut u32, most| {
                for _ in 0..rng.range(0, most) {
                    a.send(&frame(*next));
                    *next += 1;
                }
                pause(&mut rng);
            };
            send(&mut a, &mut next, 60);
            if round % 3 == 2 {
                a.frontend.set_mem_table(&a.memory).unwrap();
                send(&mut a, &mut next, 20);
                continue;
            }
            let extra = SharedMemory::of(vec![Region::unsealed(gpa, 1 << 16).unwrap()]).unwrap();
            a.frontend.add_mem_reg(&extra.regions()[0]).unwrap();
            send(&mut a, &mut next, 20);
            a.drain();
            a.send_from(&extra, gpa + 100, &frame(next));
            next += 1;
            // What lies in a region must be done with before it goes.
            a.drain();
            send(&mut a, &mut next, 60);
            a.frontend.rem_mem_reg(&extra.regions()[0]).unwrap();
            got.extend(numbers(&mut b));
        }
        a.drain();
        assert_eq!(plane.settle(&[from, to], a.sent).drops, []);
        got.extend(numbers(&mut b));
        assert!(got == (0..next).collect::<Vec<_>>(), "{} of {next} frames", got.len());
        // A buffer in a region that is gone is outside memory.
        let extra = SharedMemory::of(vec![Region::unsealed(gpa, 1 << 16).unwrap()]).unwrap();
        a.send_from(&extra, gpa, &frame(next));
        a.frontend.wait_closed().unwrap();
        let ended =
            || plane.status(from).last_fault.is_some_and(|fault| fault.contains("buffer-outside"));
        wait(|| format!("{:#?}", plane.status(from)), ended);
        plane.end();
    }
}

/// The same under a receiver: what is lost meanwhile has a name, the rest arrives in order.
#[test]
fn the_memory_of_a_receiver_changes_under_traffic() {
    for guest in Guest::formats() {
        let Pair { plane, mut a, mut b, from, to } = Pair::new(&guest);
        let mut rng = Rng::new(7);
        let (mut next, mut got) = (0, Vec::new());
        for round in 0..100 {
            for _ in 0..rng.range(0, 60) {
                a.send(&frame(next));
                next += 1;
            }
            pause(&mut rng);
            if round % 2 == 0 {
                b.frontend.set_mem_table(&b.memory).unwrap();
            } else {
                let extra = Region::unsealed(1 << 30, 1 << 16).unwrap();
                b.frontend.add_mem_reg(&extra).unwrap();
                b.frontend.rem_mem_reg(&extra).unwrap();
            }
            got.extend(numbers(&mut b));
        }
        a.drain();
        plane.barrier();
        a.send(&frame(next));
        a.drain();
        let balance = plane.settle(&[from, to], a.sent);
        got.extend(numbers(&mut b));
        assert!(got.is_sorted_by(|a, b| a < b), "in order, none twice");
        assert_eq!(got.last(), Some(&next));
        assert_eq!(got.len() as u64 + balance.dropped(), a.sent);
        plane.end();
    }
}

/// A guest that reboots: reset, and everything told anew in the same session.
#[test]
fn a_guest_may_reboot() {
    for (by_status, packed) in [(false, false), (true, true), (false, true), (true, false)] {
        let guest = Guest { packed, ..Guest::plain() };
        let Pair { plane, mut a, mut b, from: port, .. } = Pair::new(&guest);
        for round in 0..50u32 {
            (0..100).for_each(|n| a.send(&frame(n)));
            b.send(&eth(mac(0), mac(1), &round.to_be_bytes()));
            if by_status {
                a.frontend.set_u64(request::SET_STATUS, 0).unwrap();
            } else {
                a.frontend.set(request::RESET_DEVICE, &[], &[]).unwrap();
            }
            assert_eq!(plane.status(port).state, PortState::Connected);
            let mem = a.memory.guest().clone();
            a.refilling = false;
            a.poll();
            a.inbox.clear();
            a.refilling = true;
            a.rx[0].renew(&mem);
            a.tx[0].renew(&mem);
            a.start();
            plane.barrier();
            // Of the frames before the reset the first have arrived, each once.
            let got = numbers(&mut b);
            assert_eq!(got, (0..got.len() as u32).collect::<Vec<_>>());
            a.send(&frame(1000 + round));
            assert!(b.take(1)[0].frame == frame(1000 + round));
            b.send(&eth(mac(0), mac(1), b"welcome back"));
            assert!(a.take(1)[0].frame == eth(mac(0), mac(1), b"welcome back"));
        }
        assert_eq!(plane.status(port).last_fault, None);
        plane.end();
    }
}

/// A port that connects to its front end, and finds it again.
#[test]
fn client_ports_find_their_front_end() {
    let plane = Plane::new();
    let port = plane.port_with("client", |_, vhost| vhost.mode = SocketMode::Client);
    let (_, mut peer) = plane.vm("peer", &Guest::plain());
    assert_eq!(plane.status(port).state, PortState::Waiting);
    for (round, guest) in Guest::formats().iter().cycle().take(4).enumerate() {
        // Nobody is there when it tries first; then somebody is; then nobody again.
        let listener = UnixListener::bind(plane.socket("client")).unwrap();
        let mut vm = Vm::accept(&listener, guest);
        plane.barrier();
        assert_eq!(plane.status(port).state, PortState::Running);
        vm.send(&frame(round as u32));
        assert!(peer.take(1)[0].frame == frame(round as u32));
        peer.send(&eth(mac(0), mac(1), b"seen"));
        assert!(vm.take(1)[0].frame == eth(mac(0), mac(1), b"seen"));
        std::fs::remove_file(plane.socket("client")).unwrap();
        drop((vm, listener));
        plane.wait_state(port, &PortState::Waiting);
    }
    assert!(plane.status(port).sessions >= 4);
    plane.end();
}

/// SEND_RARP: the others hear where the guest is now, and the switch learns it.
#[test]
fn a_migrated_guest_is_announced() {
    let [split, packed] = Guest::formats();
    let pair = Pair::on(Plane::new(), [&split, &packed]);
    let Pair { plane, mut a, mut b, from: port, .. } = pair;
    let (_, mut c) = plane.vm("c", &Guest { modern: false, mergeable: false, ..Guest::plain() });
    let address = mac(0xabcd);
    let mut body = [0; 8];
    body[..6].copy_from_slice(&address);
    a.frontend.set(request::SEND_RARP, &body, &[]).unwrap();
    // RFC 903 in Ethernet: request reverse, for the sender itself.
    let mut rarp = [BROADCAST, address].concat();
    rarp.extend([0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    rarp.extend([address.as_slice(), &[0; 4], &address, &[0; 4]].concat());
    rarp.resize(60, 0);
    for vm in [&mut b, &mut c] {
        assert_eq!(vm.take(1)[0].frame, rarp);
    }
    let known = || plane.host.fdb(plane.network).iter().any(|e| e.mac == address && e.port == port);
    assert!(known());
    b.send(&eth(address, mac(1), b"there you are"));
    assert!(a.take(1)[0].frame == eth(address, mac(1), b"there you are"));
    c.poll();
    assert!(c.inbox.is_empty(), "not flooded");
    let status = plane.status(port);
    assert_eq!((status.from_port.frames, status.flood_copies), (1, 1));
    plane.end();
}

/// A kick or interrupt descriptor may be exchanged while the queue runs.
#[test]
fn descriptors_may_be_exchanged_while_queues_run() {
    for guest in Guest::formats() {
        let Pair { plane, mut a, mut b, from, to } = Pair::new(&guest);
        let mut rng = Rng::new(8);
        for n in 0..200 {
            a.send(&frame(n));
            pause(&mut rng);
            let fds = common::vm::fds();
            if n % 2 == 0 {
                a.frontend.set_ring_fd(request::SET_VRING_KICK, 1, Some(&fds.kick)).unwrap();
                a.tx[0].fds.kick = fds.kick;
                b.frontend.set_ring_fd(request::SET_VRING_CALL, 0, Some(&fds.call)).unwrap();
                b.rx[0].fds.call = fds.call;
            } else {
                a.frontend.set_ring_fd(request::SET_VRING_CALL, 1, Some(&fds.call)).unwrap();
                a.tx[0].fds.call = fds.call;
            }
        }
        a.drain();
        assert_eq!(plane.settle(&[from, to], 200).drops, []);
        assert_eq!(numbers(&mut b), (0..200).collect::<Vec<_>>());
        plane.end();
    }
}
