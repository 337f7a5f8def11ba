//! The frames that are sent: built once. Where they are of many flows, addresses are written anew into
//! the same few buffers for each frame, as a guest's stack does; otherwise frames are only published.
//!
//! Ethernet, IPv4, UDP (TCP for segments larger than a frame), good header checksums, and in the
//! payload a mark with the flow's number, so that a receiver can tell which frame it looks at.

use guestmem::GuestSlice;
use packet::checksum::{checksum, pseudo_header};

use super::buffers::HEADER;

/// Smallest frame: Ethernet, IPv4 and UDP headers and the mark, rounded up to Ethernet's minimum
/// without FCS and then to what everyone measures with.
pub const MIN_SIZE: u32 = 64;

/// Largest frame: a 64 KiB IPv4 packet behind an Ethernet header.
pub const MAX_SIZE: u32 = 65_549;

/// Frames larger than this are TCP segments that a receiver without segmentation offload would get
/// in pieces.
pub const MAX_PLAIN: u32 = 9_018;

/// In front of the flow's number in every payload.
const MARK: [u8; 4] = *b"hyt\x01";

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const TCP: usize = 20;
const UDP: usize = 8;

/// What the frames of one direction differ in, and what is written for each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flows {
    /// Nothing: one flow, whose frames are sent as they are.
    #[default]
    One,
    /// Addresses and ports of IP and UDP: flows between two machines.
    Ports,
    /// MAC addresses too: machines behind the two ports.
    Macs,
    /// The destination's IP address, at random in [`PREFIXES`].
    Destinations,
}

/// Where the destinations of [`Flows::Destinations`] are: first address, and length of the prefix.
pub const PREFIXES: (u32, u32) = (32 << 24, 4);

/// The frames of one direction between two ports.
#[derive(Clone, Copy, Debug)]
pub struct FrameSpec {
    /// Bytes, without virtio-net header and FCS.
    pub size: u32,
    /// Sending port.
    pub from: u16,
    /// Receiving port.
    pub to: u16,
    /// What flows differ in.
    pub flows: Flows,
    /// The router they are sent to, if they are not sent to the receiver.
    pub gateway: Option<[u8; 6]>,
}

/// MAC address of machine `flow` behind a port; locally administered.
#[must_use]
pub fn mac(port: u16, flow: u32) -> [u8; 6] {
    let [_, b, c, d] = flow.to_be_bytes();
    [0x02, (port >> 8) as u8, port as u8, b, c, d]
}

/// MAC address of router `number`, on its left (0) or right (1) side.
#[must_use]
pub fn gateway(number: u16, side: u8) -> [u8; 6] {
    [0x02, 0xfe, side, 0, (number >> 8) as u8, number as u8]
}

/// Frame `flow`, with its virtio-net header in front.
#[must_use]
pub fn build(spec: &FrameSpec, flow: u32) -> Vec<u8> {
    let large = spec.size > MAX_PLAIN;
    let header = HEADER as usize;
    let mut bytes = vec![0xa5; header + spec.size as usize];
    bytes[..header].fill(0);
    let frame = &mut bytes[header..];
    let Own { macs, addresses, port } = Own::new(spec, flow);
    frame[..12].copy_from_slice(&macs);
    frame[12..14].copy_from_slice(&0x0800_u16.to_be_bytes());

    let total = spec.size as usize - ETHERNET;
    let protocol: u8 = if large { 6 } else { 17 };
    let ip = &mut frame[ETHERNET..ETHERNET + IPV4];
    ip.fill(0);
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&(total as u16).to_be_bytes());
    ip[8] = 64;
    ip[9] = protocol;
    ip[12..20].copy_from_slice(&addresses);
    let sum = checksum(ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());

    let l4 = &mut frame[ETHERNET + IPV4..];
    let payload = if large {
        l4[..TCP].fill(0);
        l4[12] = 0x50;
        l4[13] = 0x10;
        // Unfinished: the sum of the pseudo header, as offload wants it.
        let partial = pseudo_header(&addresses, protocol, (total - IPV4) as u32).fold();
        l4[16..18].copy_from_slice(&partial.to_be_bytes());
        TCP
    } else {
        l4[4..6].copy_from_slice(&((total - IPV4) as u16).to_be_bytes());
        l4[6..8].fill(0);
        UDP
    };
    l4[..2].copy_from_slice(&port.to_be_bytes());
    l4[2..4].copy_from_slice(&9_u16.to_be_bytes());
    l4[payload..payload + 4].copy_from_slice(&MARK);
    l4[payload + 4..payload + 8].copy_from_slice(&flow.to_be_bytes());
    if large {
        bytes[..header].copy_from_slice(&segmentation_header());
    }
    bytes
}

/// What a frame has for itself.
#[derive(Clone, Copy, Debug)]
struct Own {
    /// Destination and source.
    macs: [u8; 12],
    /// Of IP, source and destination.
    addresses: [u8; 8],
    /// The source's.
    port: u16,
}

impl Own {
    #[inline(always)]
    fn new(spec: &FrameSpec, flow: u32) -> Own {
        let flow = if spec.flows == Flows::One { 0 } else { flow };
        let machine = if spec.flows == Flows::Macs { flow } else { 0 };
        let mut macs = [0; 12];
        macs[..6].copy_from_slice(&spec.gateway.unwrap_or(mac(spec.to, machine)));
        macs[6..].copy_from_slice(&mac(spec.from, machine));
        // 60,000 flows differ in the source port, more in the source address too.
        let [_, _, high, low] = (flow / 60_000).to_be_bytes();
        let mut ends = [[10, 1, high, low], [10, 2, 0, 1]];
        if spec.flows == Flows::Destinations {
            let (first, length) = PREFIXES;
            // Every address once in 2^32 flows, and neighbours far from each other.
            let random = flow.wrapping_mul(0x9e37_79b1).rotate_left(16).wrapping_mul(0x85eb_ca6b);
            ends = [[10, 1, 0, 1], (first + (random >> length)).to_be_bytes()];
        }
        // Routers care where an answer comes from.
        if spec.gateway.is_some() && spec.from % 2 == 1 {
            ends.reverse();
        }
        let mut addresses = [0; 8];
        addresses.copy_from_slice(ends.as_flattened());
        Own { macs, addresses, port: (1_024 + flow % 60_000) as u16 }
    }
}

/// Writes what frames differ in, flow after flow.
#[derive(Debug)]
pub struct Writer {
    spec: FrameSpec,
    flows: u32,
    next: u32,
    /// Of the IPv4 header without its addresses.
    sum: u32,
    /// Around the flow's number: what is in front of it, and behind it.
    mark: u128,
}

impl Writer {
    /// For frames of so many flows, of at most [`MAX_PLAIN`] bytes.
    #[must_use]
    pub fn new(spec: &FrameSpec, flows: u32) -> Writer {
        let frame = &build(spec, 0)[HEADER as usize..];
        let mut ip = [0; IPV4];
        ip.copy_from_slice(&frame[ETHERNET..ETHERNET + IPV4]);
        ip[10..].fill(0);
        let mut mark = [0; 16];
        mark[..Self::MARKED].copy_from_slice(&frame[Self::MARK_AT..][..Self::MARKED]);
        let sum = u32::from(!checksum(&ip));
        Writer { spec: *spec, flows, next: 0, sum, mark: u128::from_le_bytes(mark) }
    }

    const MARK_AT: usize = ETHERNET + IPV4 + UDP;
    /// The mark and the flow's number, and two bytes behind it.
    const MARKED: usize = 10;

    /// Makes a frame that was built one of the next flow, if flows differ.
    #[inline(always)]
    pub fn write(&mut self, frame: GuestSlice<'_>) {
        if self.spec.flows == Flows::One {
            return;
        }
        let flow = self.next;
        self.next = if flow + 1 >= self.flows { 0 } else { flow + 1 };
        let Own { macs, addresses, port } = Own::new(&self.spec, flow);
        if self.spec.flows == Flows::Macs {
            frame.store(macs);
        }
        let [a, b, c, d, e, f, g, h] = addresses;
        let words =
            [[a, b], [c, d], [e, f], [g, h]].map(|pair| u32::from(u16::from_be_bytes(pair)));
        let sum = self.sum + words.iter().sum::<u32>();
        let sum = (sum & 0xffff) + (sum >> 16);
        let [c0, c1] = (!((sum + (sum >> 16)) as u16)).to_be_bytes();
        let [p0, p1] = port.to_be_bytes();
        frame.skip(ETHERNET + 10).store([c0, c1, a, b, c, d, e, f, g, h, p0, p1]);
        let number = u128::from(flow.to_be()) << 32;
        frame.skip(Self::MARK_AT).store_word::<{ Self::MARKED }>(self.mark | number);
    }
}

/// The virtio-net header of a TCP segment to be cut (virtio 1.3, 5.1.6.2): checksum unfinished,
/// TCPv4, 1448 bytes of payload a piece.
fn segmentation_header() -> [u8; HEADER as usize] {
    let mut header = [0; HEADER as usize];
    header[0] = 1;
    header[1] = 1;
    let fields = [(ETHERNET + IPV4 + TCP) as u16, 1_448, (ETHERNET + IPV4) as u16, 16];
    for (at, field) in (2..).step_by(2).zip(fields) {
        header[at..at + 2].copy_from_slice(&field.to_le_bytes());
    }
    header
}

/// Does to a frame's packet what a router does that sends it on: one hop less, and the checksum changed
/// by as much (RFC 1624, as Linux writes it).
#[inline(always)]
pub fn count_down(frame: GuestSlice<'_>) {
    let place = frame.skip(ETHERNET + 8);
    if let Some([hops, protocol, c0, c1, rest @ ..]) = place.load::<10>() {
        let sum = u32::from(u16::from_be_bytes([c0, c1])) + 0x0100;
        let [c0, c1] = ((sum + u32::from(sum >= 0xffff)) as u16).to_be_bytes();
        let [a, b, c, d, e, f] = rest;
        place.store([hops.saturating_sub(1), protocol, c0, c1, a, b, c, d, e, f]);
    }
}

/// The flow's number in a frame of this size (without virtio-net header), if it is one of ours.
#[must_use]
pub fn flow_of(frame: &[u8], size: u32) -> Option<u32> {
    let at = ETHERNET + IPV4 + if size > MAX_PLAIN { TCP } else { UDP };
    let (mark, number) = frame.get(at..at + 8)?.split_at_checked(4)?;
    let number = u32::from_be_bytes(number.try_into().ok()?);
    (mark == MARK).then_some(number)
}

#[cfg(test)]
mod tests {
    use testkit::frontend::{Pages, SharedMemory};

    use super::*;

    #[test]
    fn a_frame_says_its_flow_and_has_a_good_ip_header() {
        for size in [64, 128, 1518, 9018, 65_000] {
            for flow in [0, 1, 59_999, 60_000, 1_000_000] {
                let spec = FrameSpec { size, from: 1, to: 2, flows: Flows::Ports, gateway: None };
                let bytes = build(&spec, flow);
                let frame = &bytes[HEADER as usize..];
                assert_eq!(frame.len(), size as usize);
                assert_eq!(flow_of(frame, size), Some(flow));
                assert_eq!(checksum(&frame[14..34]), 0, "IPv4 header");
                assert_eq!(frame[..6], mac(2, 0));
            }
        }
    }

    #[test]
    fn flows_are_distinct() {
        let key = |flow| {
            let spec = FrameSpec { size: 64, from: 0, to: 1, flows: Flows::Ports, gateway: None };
            let bytes = build(&spec, flow);
            bytes[HEADER as usize + 26..HEADER as usize + 38].to_vec()
        };
        let keys: std::collections::HashSet<_> = (0..200_000).map(key).collect();
        assert_eq!(keys.len(), 200_000);
        assert_ne!(mac(1, 5), mac(1, 6));
        assert_ne!(mac(1, 5), mac(2, 5));
    }

    #[test]
    fn what_is_written_again_is_as_if_built() {
        let memory = SharedMemory::new(&[(0, 4096)], Pages::Small).unwrap();
        let place = memory.guest().slice(0, HEADER + 64).unwrap();
        let number = ETHERNET + IPV4 + UDP + 4 + HEADER as usize;
        for (flows, gateway) in [
            (Flows::One, None),
            (Flows::Ports, None),
            (Flows::Macs, None),
            (Flows::Destinations, None),
            (Flows::Destinations, Some(gateway(3, 1))),
        ] {
            for from in [0, 1] {
                let spec = FrameSpec { size: 64, from, to: from ^ 1, flows, gateway };
                let mut writer = Writer::new(&spec, 130_000);
                place.copy_from(&build(&spec, 7));
                for flow in (0..130_000).chain(0..3) {
                    writer.write(place.skip(HEADER as usize));
                    let mut now = build(&spec, 0);
                    place.copy_to(&mut now);
                    let built = build(&spec, if flows == Flows::One { 7 } else { flow });
                    assert_eq!(now, built, "{spec:?} {flow}");
                    assert_eq!(now[number..number + 4], built[number..number + 4]);
                }
            }
        }
    }

    #[test]
    fn a_router_counts_down() {
        let memory = SharedMemory::new(&[(0, 4096)], Pages::Small).unwrap();
        let spec = FrameSpec { size: 64, from: 0, to: 1, flows: Flows::Ports, gateway: None };
        let bytes = build(&spec, 5);
        let place = memory.guest().slice(0, bytes.len() as u32).unwrap();
        place.copy_from(&bytes);
        for hops in (0..64).rev() {
            let mut now = bytes.clone();
            count_down(place.skip(HEADER as usize));
            place.copy_to(&mut now);
            let frame = &now[HEADER as usize..];
            assert_eq!((frame[22], checksum(&frame[14..34])), (hops, 0));
            assert_eq!(flow_of(frame, 64), Some(5));
        }
    }

    #[test]
    fn another_frame_is_not_ours() {
        assert_eq!(flow_of(&[0; 64], 64), None);
        assert_eq!(flow_of(&[0; 10], 64), None);
    }
}
