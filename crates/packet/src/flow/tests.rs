use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy)]
struct Flow {
    v6: bool,
    protocol: u8,
    a: [u8; 16],
    b: [u8; 16],
    ports: (u16, u16),
    fragment: bool,
}

const FLOW: Flow = Flow {
    v6: false,
    protocol: IPPROTO_TCP,
    a: [1; 16],
    b: [2; 16],
    ports: (1000, 80),
    fragment: false,
};

impl Flow {
    fn reversed(self) -> Self {
        Self { a: self.b, b: self.a, ports: (self.ports.1, self.ports.0), ..self }
    }

    fn frame(self, tags: usize) -> Vec<u8> {
        let mut frame = vec![2; 12];
        for _ in 0..tags {
            frame.extend([0x81, 0, 0, 5]);
        }
        if self.v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, self.protocol, 64]);
            frame.extend(self.a);
            frame.extend(self.b);
        } else {
            let flags = if self.fragment { 0x20 } else { 0 };
            frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, flags, 0, 64, self.protocol, 0, 0]);
            frame.extend(&self.a[..4]);
            frame.extend(&self.b[..4]);
        }
        frame.extend(self.ports.0.to_be_bytes());
        frame.extend(self.ports.1.to_be_bytes());
        frame.extend([0; 16]);
        frame
    }

    fn hash(self) -> u32 {
        flow_hash(&self.frame(0))
    }
}

proptest! {
    #[test]
    fn both_directions_and_any_tags_hash_alike(
        v6: bool, protocol in prop_oneof![Just(6u8), Just(17), Just(132), 61u8..131],
        a: [u8; 16], b: [u8; 16], ports: (u16, u16), fragment: bool, tags in 0usize..3,
    ) {
        let flow = Flow { v6, protocol, a, b, ports, fragment };
        let hash = flow_hash(&flow.frame(tags));
        prop_assert_eq!(hash, flow.reversed().hash());
    }
}

#[test]
fn every_field_counts_where_it_should() {
    let hash = FLOW.hash();
    for other in [
        Flow { a: [3; 16], ..FLOW },
        Flow { b: [3; 16], ..FLOW },
        Flow { ports: (1001, 80), ..FLOW },
        Flow { ports: (1000, 81), ..FLOW },
        Flow { ports: (80, 1000), ..FLOW }, // another flow, not the other direction
        Flow { protocol: IPPROTO_UDP, ..FLOW },
        Flow { v6: true, ..FLOW },
    ] {
        assert_ne!(other.hash(), hash);
    }
    // Equal ends must not cancel out.
    let own = Flow { b: FLOW.a, ports: (5, 5), ..FLOW };
    assert_ne!(own.hash(), Flow { a: [9; 16], b: [9; 16], ..own }.hash());
}

#[test]
fn fragments_stay_together() {
    let first = Flow { fragment: true, ..FLOW };
    assert_eq!(first.hash(), Flow { ports: (7, 8), ..first }.hash());
}

#[test]
fn without_ip_the_mac_addresses_count() {
    let mut frame = vec![0; 60];
    frame[..14].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x88, 0xb5]);
    let hash = flow_hash(&frame);
    let mut back = frame.clone();
    back[..12].copy_from_slice(&[7, 8, 9, 10, 11, 12, 1, 2, 3, 4, 5, 6]);
    assert_eq!(flow_hash(&back), hash);
    back[5] = 0;
    assert_ne!(flow_hash(&back), hash);
    assert_eq!(flow_hash(&frame[..11]), 0);
}

#[test]
fn flows_spread_evenly() {
    for field in 0..2 {
        let hashes: Vec<u32> = (0..4096u16)
            .map(|n| match field {
                0 => Flow { ports: (n, 80), ..FLOW }.hash(),
                _ => Flow {
                    a: [10, 0, (n >> 8) as u8, n as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                    ..FLOW
                }
                .hash(),
            })
            .collect();
        assert!(hashes.iter().collect::<HashSet<_>>().len() >= 4094);
        for queues in [2, 3, 8] {
            let mut count = vec![0; queues];
            for hash in &hashes {
                count[*hash as usize % queues] += 1;
            }
            let fair = 4096 / queues;
            assert!(count.iter().all(|n| *n > fair * 8 / 10 && *n < fair * 12 / 10), "{count:?}");
        }
    }
}
