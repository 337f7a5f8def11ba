//! What looking at a frame costs: nanoseconds per call, gigabytes per second for checksums.
//!
//! `cargo run --release -p packet --example cost`. The best of many short runs; compare within one
//! run only.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;

use packet::segment::{ChecksumMode, Scratch, segment};
use packet::vnet::{VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_TCPV4};
use packet::{Head, Offloads, Tci, VirtioNetHdr, checksum, flow_hash};

fn best(calls: u32, mut call: impl FnMut()) -> f64 {
    let runs = (0..50).map(|_| {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        start.elapsed().as_nanos() as f64 / f64::from(calls)
    });
    runs.fold(f64::INFINITY, f64::min)
}

/// A TCP/IPv4 frame.
fn frame(payload: usize) -> Vec<u8> {
    let mut frame = vec![0; 54 + payload];
    frame[..15].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45]);
    frame[16..18].copy_from_slice(&(40 + payload as u16).to_be_bytes());
    frame[23] = 6;
    frame[26..38].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 0x30, 0x39, 0, 80]);
    frame[46] = 0x50;
    frame
}

fn main() {
    for len in [40, 1500, 65536] {
        let bytes = vec![0x5a; len];
        let ns = best(2000, || {
            black_box(checksum::checksum(black_box(&bytes)));
        });
        println!("checksum of {len:>5} bytes   {ns:>9.1} ns  {:>5.1} GB/s", len as f64 / ns);
    }

    let big = frame(64000);
    let mut head = Head::new();
    head.copy_from(&big);
    let ns = best(20000, || {
        black_box(flow_hash(black_box(head.bytes())));
    });
    println!("flow hash                 {ns:>9.1} ns");

    let plain = VirtioNetHdr::default();
    let csum = VirtioNetHdr {
        flags: VIRTIO_NET_HDR_F_NEEDS_CSUM,
        csum_start: 34,
        csum_offset: 16,
        ..plain
    };
    let tso = VirtioNetHdr { gso_type: VIRTIO_NET_HDR_GSO_TCPV4, gso_size: 1448, ..csum };
    for (name, hdr) in [("plain", plain), ("checksum", csum), ("TSO", tso)] {
        let ns = best(20000, || {
            let head = black_box(head.bytes());
            let _ = black_box(black_box(hdr).validate(big.len(), head, Offloads::ALL));
        });
        println!("validate {name:<8}         {ns:>9.1} ns");
    }

    let ns = best(20000, || {
        black_box(&mut head).push_vlan(black_box(Tci(5)));
        black_box(&mut head).pop_vlan();
    });
    println!("tag pushed and popped     {ns:>9.1} ns");

    let checked = tso.validate(big.len(), head.bytes(), Offloads::ALL).unwrap();
    let mut scratch: Scratch = [0; size_of::<Scratch>()];
    for mode in [ChecksumMode::Partial, ChecksumMode::Full] {
        let mut segments = 0;
        let ns = best(50, || {
            segments = segment(&big, &checked, mode, &mut scratch, |header, payload, _| {
                black_box((header, payload));
            });
        });
        println!(
            "64 kB into {segments} segments, {mode:?}: {ns:.0} ns, {:.1} ns each",
            ns / segments as f64
        );
    }
}
