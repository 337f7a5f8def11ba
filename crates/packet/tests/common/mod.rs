//! Frames built field by field, and a reader and checksum that share nothing with the crate.
#![allow(dead_code)] // each test binary uses its part

use packet::vnet::{self, VirtioNetHdr};
use proptest::prelude::*;

/// A TCP or UDP frame to be.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) tags: Vec<(u16, u16)>,
    pub(crate) v6: bool,
    /// IPv4 options or IPv6 destination options, in units of 4 or 8 bytes.
    pub(crate) ip_options: usize,
    pub(crate) tcp: bool,
    /// TCP options, in units of 4 bytes.
    pub(crate) tcp_options: usize,
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) urgent: u16,
    pub(crate) id: u16,
    pub(crate) addresses: [u8; 32],
    pub(crate) ports: [u8; 4],
    pub(crate) payload: Vec<u8>,
}

/// Any frame whose headers fit a head, with a payload in that range of lengths.
pub(crate) fn spec(payload: std::ops::Range<usize>) -> impl Strategy<Value = Spec> {
    let tag = (prop_oneof![Just(0x8100u16), Just(0x88a8)], any::<u16>());
    (
        (proptest::collection::vec(tag, 0..=2), any::<bool>(), 0usize..=3, any::<bool>()),
        (0usize..=5, any::<u8>(), any::<u32>(), any::<u16>(), any::<u16>()),
        (any::<[u8; 32]>(), any::<[u8; 4]>(), proptest::collection::vec(any::<u8>(), payload)),
    )
        .prop_map(|(a, b, c)| Spec {
            tags: a.0,
            v6: a.1,
            ip_options: a.2,
            tcp: a.3,
            tcp_options: b.0,
            flags: b.1,
            seq: b.2,
            urgent: b.3,
            id: b.4,
            addresses: c.0,
            ports: c.1,
            payload: c.2,
        })
}

impl Spec {
    pub(crate) fn l3(&self) -> usize {
        14 + 4 * self.tags.len()
    }

    pub(crate) fn l4(&self) -> usize {
        self.l3() + if self.v6 { 40 + 8 * self.ip_options } else { 20 + 4 * self.ip_options }
    }

    pub(crate) fn header_len(&self) -> usize {
        self.l4() + if self.tcp { 20 + 4 * self.tcp_options } else { 8 }
    }

    pub(crate) fn protocol(&self) -> u8 {
        if self.tcp { 6 } else { 17 }
    }

    pub(crate) fn csum_offset(&self) -> usize {
        if self.tcp { 16 } else { 6 }
    }

    pub(crate) fn gso_type(&self) -> u8 {
        match (self.tcp, self.v6) {
            (true, false) => vnet::VIRTIO_NET_HDR_GSO_TCPV4,
            (true, true) => vnet::VIRTIO_NET_HDR_GSO_TCPV6,
            (false, _) => vnet::VIRTIO_NET_HDR_GSO_UDP_L4,
        }
    }

    /// The frame as a driver with checksum offload sends it: pseudo header sum in the field.
    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut frame = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2];
        for (protocol, tci) in &self.tags {
            frame.extend(protocol.to_be_bytes());
            frame.extend(tci.to_be_bytes());
        }
        let transport = self.header_len() - self.l4() + self.payload.len();
        if self.v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(((transport + 8 * self.ip_options) as u16).to_be_bytes());
            frame.extend([if self.ip_options > 0 { 60 } else { self.protocol() }, 64]);
            frame.extend(self.addresses);
            if self.ip_options > 0 {
                // One destination options header full of padding.
                frame.extend([self.protocol(), (self.ip_options - 1) as u8]);
                frame.extend(std::iter::repeat_n(0, 8 * self.ip_options - 2));
            }
        } else {
            let length = (20 + 4 * self.ip_options + transport) as u16;
            frame.extend([0x08, 0x00, 0x45 + self.ip_options as u8, 0]);
            frame.extend(length.to_be_bytes());
            frame.extend(self.id.to_be_bytes());
            frame.extend([0x40, 0, 64, self.protocol(), 0, 0]);
            frame.extend(&self.addresses[..8]);
            frame.extend(std::iter::repeat_n(1, 4 * self.ip_options));
            let sum = reference_checksum(&frame[self.l3()..]);
            frame[self.l3() + 10..][..2].copy_from_slice(&sum.to_be_bytes());
        }
        frame.extend(self.ports);
        if self.tcp {
            frame.extend(self.seq.to_be_bytes());
            frame.extend([1, 2, 3, 4, 0x50 + 0x10 * self.tcp_options as u8, self.flags]);
            frame.extend([0xff, 0xff, 0, 0]);
            frame.extend(self.urgent.to_be_bytes());
            frame.extend(std::iter::repeat_n(1, 4 * self.tcp_options));
        } else {
            frame.extend((transport as u16).to_be_bytes());
            frame.extend([0, 0]);
        }
        let pseudo = !reference_checksum(&self.pseudo_header(transport));
        let field = self.l4() + self.csum_offset();
        frame[field..][..2].copy_from_slice(&pseudo.to_be_bytes());
        frame.extend(&self.payload);
        frame
    }

    pub(crate) fn pseudo_header(&self, transport: usize) -> Vec<u8> {
        let mut pseudo = self.addresses[..if self.v6 { 32 } else { 8 }].to_vec();
        pseudo.extend((transport as u32).to_be_bytes());
        pseudo.extend([0, 0, 0, self.protocol()]);
        pseudo
    }

    /// The header a driver sends with the frame.
    pub(crate) fn vnet(&self, gso_size: u16) -> VirtioNetHdr {
        VirtioNetHdr {
            flags: vnet::VIRTIO_NET_HDR_F_NEEDS_CSUM,
            gso_type: if gso_size == 0 { 0 } else { self.gso_type() },
            hdr_len: 0xbad, // a hint: nobody may care
            gso_size,
            csum_start: self.l4() as u16,
            csum_offset: self.csum_offset() as u16,
            num_buffers: 0,
        }
    }

    /// Asserts that a whole packet of this flow is valid on the wire, checksums included, and
    /// returns its payload.
    pub(crate) fn assert_valid<'f>(&self, frame: &'f [u8]) -> &'f [u8] {
        let transport = frame.len() - self.l4();
        if self.v6 {
            let length = u16::from_be_bytes([frame[self.l3() + 4], frame[self.l3() + 5]]);
            assert_eq!(usize::from(length), frame.len() - self.l3() - 40);
        } else {
            let length = u16::from_be_bytes([frame[self.l3() + 2], frame[self.l3() + 3]]);
            assert_eq!(usize::from(length), frame.len() - self.l3());
            assert_eq!(reference_checksum(&frame[self.l3()..self.l4()]), 0, "IPv4 checksum");
        }
        if !self.tcp {
            let length = u16::from_be_bytes([frame[self.l4() + 4], frame[self.l4() + 5]]);
            assert_eq!(usize::from(length), transport);
            assert_ne!(frame[self.l4() + 6..][..2], [0, 0], "UDP checksum 0 means none");
        }
        let mut covered = self.pseudo_header(transport);
        covered.extend(&frame[self.l4()..]);
        assert_eq!(reference_checksum(&covered), 0, "transport checksum");
        &frame[self.header_len()..]
    }
}

/// RFC 1071, word by word.
pub(crate) fn reference_checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
