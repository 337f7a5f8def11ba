//! Frames, and a second opinion on them: written from the RFCs, sharing no code with the product.

/// The virtio-net header (virtio 1.3, 5.1.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Vnet {
    pub(crate) flags: u8,
    pub(crate) gso_type: u8,
    pub(crate) hdr_len: u16,
    pub(crate) gso_size: u16,
    pub(crate) csum_start: u16,
    pub(crate) csum_offset: u16,
    pub(crate) num_buffers: u16,
}

/// Flags and types of the header.
pub(crate) const NEEDS_CSUM: u8 = 1;
pub(crate) const DATA_VALID: u8 = 2;
pub(crate) const RSC_INFO: u8 = 4;
pub(crate) const GSO_TCPV4: u8 = 1;
pub(crate) const GSO_UDP: u8 = 3;
pub(crate) const GSO_TCPV6: u8 = 4;
pub(crate) const GSO_UDP_L4: u8 = 5;
pub(crate) const GSO_ECN: u8 = 0x80;

impl Vnet {
    pub(crate) fn to_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        let fields =
            [self.hdr_len, self.gso_size, self.csum_start, self.csum_offset, self.num_buffers];
        for (at, field) in bytes[2..].chunks_mut(2).zip(fields) {
            at.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Of 10 or 12 bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Vnet {
        let field = |at: usize| match bytes.get(at..at + 2) {
            Some(field) => u16::from_le_bytes([field[0], field[1]]),
            None => 0,
        };
        Vnet {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: field(2),
            gso_size: field(4),
            csum_start: field(6),
            csum_offset: field(8),
            num_buffers: field(10),
        }
    }
}

pub(crate) type Mac = [u8; 6];

pub(crate) const BROADCAST: Mac = [0xff; 6];

/// A locally administered unicast address.
pub(crate) fn mac(n: u32) -> Mac {
    let [a, b, c, d] = n.to_be_bytes();
    [2, 0, a, b, c, d]
}

/// For experiments (IEEE 802, local).
pub(crate) const ETHERTYPE: u16 = 0x88b5;

/// An untagged frame.
pub(crate) fn eth(dst: Mac, src: Mac, payload: &[u8]) -> Vec<u8> {
    let mut frame = [dst, src].concat();
    frame.extend_from_slice(&ETHERTYPE.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// The frame with an 802.1Q tag.
pub(crate) fn tagged(frame: &[u8], tci: u16) -> Vec<u8> {
    let mut tagged = frame[..12].to_vec();
    tagged.extend_from_slice(&[0x81, 0x00]);
    tagged.extend_from_slice(&tci.to_be_bytes());
    tagged.extend_from_slice(&frame[12..]);
    tagged
}

/// TCP flags.
pub(crate) const FIN: u8 = 1;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;
pub(crate) const CWR: u8 = 128;

/// What a packet's headers say.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) dst: Mac,
    pub(crate) src: Mac,
    pub(crate) vlan: Option<u16>,
    pub(crate) v6: bool,
    pub(crate) udp: bool,
    pub(crate) ports: (u16, u16),
    pub(crate) id: u16,
    pub(crate) seq: u32,
    pub(crate) flags: u8,
    /// TCP options, a multiple of four bytes.
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Packet {
    pub(crate) fn new(v6: bool, udp: bool, dst: Mac, src: Mac, payload: Vec<u8>) -> Packet {
        let (ports, id, seq, flags, options) = ((4000, 5000), 1, 1, ACK, Vec::new());
        Packet { dst, src, vlan: None, v6, udp, ports, id, seq, flags, options, payload }
    }

    /// Where the IP header is, where the transport header is, where the payload is.
    pub(crate) fn offsets(&self) -> (usize, usize, usize) {
        let l3 = 14 + if self.vlan.is_some() { 4 } else { 0 };
        let l4 = l3 + if self.v6 { 40 } else { 20 };
        (l3, l4, l4 + if self.udp { 8 } else { 20 + self.options.len() })
    }

    pub(crate) fn csum_offset(&self) -> u16 {
        if self.udp { 6 } else { 16 }
    }

    /// The frame with all checksums complete.
    pub(crate) fn full(&self) -> Vec<u8> {
        let mut frame = self.partial();
        let l4 = self.offsets().1;
        let sum = match !sum(&frame[l4..]) {
            0 => 0xffff,
            sum => sum,
        };
        let field = l4 + usize::from(self.csum_offset());
        frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    /// The frame with the sum of the pseudo header in place of the transport checksum.
    pub(crate) fn partial(&self) -> Vec<u8> {
        let mut transport = [self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()].concat();
        if self.udp {
            transport.extend_from_slice(&(8 + self.payload.len() as u16).to_be_bytes());
            transport.extend_from_slice(&[0; 2]);
        } else {
            transport.extend_from_slice(&self.seq.to_be_bytes());
            transport.extend_from_slice(&77_u32.to_be_bytes());
            let words = 5 + self.options.len() / 4;
            transport.extend_from_slice(&[(words << 4) as u8, self.flags, 0x20, 0, 0, 0, 0, 0]);
            transport.extend_from_slice(&self.options);
        }
        transport.extend_from_slice(&self.payload);
        let protocol = if self.udp { 17 } else { 6 };
        let network = if self.v6 {
            let mut ip = vec![0x60, 0, 0, 0];
            ip.extend_from_slice(&(transport.len() as u16).to_be_bytes());
            ip.extend_from_slice(&[protocol, 64]);
            for host in [1, 2] {
                ip.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
            }
            ip
        } else {
            let mut ip = vec![0x45, 0];
            ip.extend_from_slice(&(20 + transport.len() as u16).to_be_bytes());
            ip.extend_from_slice(&self.id.to_be_bytes());
            ip.extend_from_slice(&[0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            let csum = !sum(&ip);
            ip[10..12].copy_from_slice(&csum.to_be_bytes());
            ip
        };
        let pseudo = pseudo_header(&network, transport.len(), protocol);
        let field = usize::from(self.csum_offset());
        transport[field..field + 2].copy_from_slice(&sum(&pseudo).to_be_bytes());

        let mut frame = [self.dst, self.src].concat();
        let ethertype: u16 = if self.v6 { 0x86dd } else { 0x0800 };
        frame.extend_from_slice(&ethertype.to_be_bytes());
        frame.extend_from_slice(&network);
        frame.extend_from_slice(&transport);
        self.vlan.map_or(frame.clone(), |tci| tagged(&frame, tci))
    }

    /// The header that goes with [`Packet::partial`].
    pub(crate) fn needs_csum(&self) -> Vnet {
        let (csum_start, csum_offset) = (self.offsets().1 as u16, self.csum_offset());
        Vnet { flags: NEEDS_CSUM, csum_start, csum_offset, ..Vnet::default() }
    }

    /// The header that asks for segments of `size` bytes of payload.
    pub(crate) fn needs_gso(&self, size: u16) -> Vnet {
        let gso_type = match (self.udp, self.v6) {
            (true, _) => GSO_UDP_L4,
            (false, false) => GSO_TCPV4,
            (false, true) => GSO_TCPV6,
        };
        let ecn = if !self.udp && self.flags & CWR != 0 { GSO_ECN } else { 0 };
        let hdr_len = self.offsets().2 as u16;
        Vnet { gso_type: gso_type | ecn, gso_size: size, hdr_len, ..self.needs_csum() }
    }

    /// Reads a frame back; every length in it must agree with its own.
    ///
    /// `partial`: the transport checksum is only that of the pseudo header.
    pub(crate) fn read(frame: &[u8], partial: bool) -> Packet {
        let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let vlan = (word(12) == 0x8100).then(|| word(14));
        let l3 = if vlan.is_some() { 18 } else { 14 };
        let (v6, l4, protocol) = match word(l3 - 2) {
            0x0800 => {
                assert_eq!(frame[l3], 0x45, "an IPv4 header without options");
                assert_eq!(usize::from(word(l3 + 2)), frame.len() - l3, "IPv4 length");
                assert_eq!(sum(&frame[l3..l3 + 20]), 0xffff, "IPv4 checksum");
                (false, l3 + 20, frame[l3 + 9])
            }
            0x86dd => {
                assert_eq!(frame[l3] >> 4, 6);
                assert_eq!(usize::from(word(l3 + 4)), frame.len() - l3 - 40, "IPv6 length");
                (true, l3 + 40, frame[l3 + 6])
            }
            other => panic!("a frame of EtherType {other:#x}"),
        };
        let pseudo = pseudo_header(&frame[l3..l4], frame.len() - l4, protocol);
        let udp = protocol == 17;
        let (csum, start, options) = if udp {
            assert_eq!(usize::from(word(l4 + 4)), frame.len() - l4, "UDP length");
            (6, l4 + 8, Vec::new())
        } else {
            let len = usize::from(frame[l4 + 12] >> 4) * 4;
            (16, l4 + len, frame[l4 + 20..l4 + len].to_vec())
        };
        if partial {
            assert_eq!(word(l4 + csum), sum(&pseudo), "sum of the pseudo header");
        } else {
            assert!(!udp || word(l4 + csum) != 0, "UDP without checksum");
            let all = [pseudo, frame[l4..].to_vec()].concat();
            assert_eq!(sum(&all), 0xffff, "transport checksum");
        }
        let long = |at: usize| u32::from(word(at)) << 16 | u32::from(word(at + 2));
        Packet {
            dst: frame[..6].try_into().unwrap(),
            src: frame[6..12].try_into().unwrap(),
            vlan,
            v6,
            udp,
            ports: (word(l4), word(l4 + 2)),
            id: if v6 { 0 } else { word(l3 + 4) },
            seq: if udp { 0 } else { long(l4 + 4) },
            flags: if udp { 0 } else { frame[l4 + 13] },
            options,
            payload: frame[start..].to_vec(),
        }
    }
}

/// Addresses of an IP header, protocol and length (RFC 9293, 3.1; RFC 8200, 8.1), of even length.
fn pseudo_header(network: &[u8], len: usize, protocol: u8) -> Vec<u8> {
    let addresses = if network[0] >> 4 == 4 { &network[12..20] } else { &network[8..40] };
    let mut pseudo = addresses.to_vec();
    pseudo.extend_from_slice(&(len as u32).to_be_bytes());
    pseudo.extend_from_slice(&[0, 0, 0, protocol]);
    pseudo
}

/// One's complement sum (RFC 1071), word by word.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for word in bytes.chunks(2) {
        sum += u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
