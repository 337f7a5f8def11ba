//! Packets at random, for a router: most of them such that it forwards them, all the others such
//! that something is wrong or odd about them.

/// Addresses of the laboratory.
pub const A4: [u8; 4] = [10, 1, 0, 2];
pub const B4: [u8; 4] = [10, 2, 0, 2];
/// The same in the VLANs: 10 on A's side, 20 on B's.
pub const A4_VLAN: [u8; 4] = [10, 1, 10, 2];
pub const B4_VLAN: [u8; 4] = [10, 2, 20, 2];

/// The router's addresses in all of them.
pub const OWN4: [[u8; 4]; 4] = [[10, 1, 0, 1], [10, 2, 0, 1], [10, 1, 10, 1], [10, 2, 20, 1]];

/// VLAN ids of A's and B's side.
pub const VLANS: [u16; 2] = [10, 20];

/// Numbers at random, the same every time.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// MAC addresses of A and of the router on A's side.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub a: [u8; 6],
    pub router: [u8; 6],
}

/// A frame of A, as it is sent: with its virtio-net header.
#[derive(Clone, Debug)]
pub struct Sent {
    pub header: [u8; 12],
    pub frame: Vec<u8>,
}

/// One's complement sum.
pub fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for word in bytes.chunks(2) {
        sum += u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn mapped(v4: [u8; 4]) -> [u8; 16] {
    let [_, net, sub, host] = v4;
    [0xfd, 0, 0, net, 0, sub, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]
}

/// Packet `n`: its number is in the payload.
pub fn random(rng: &mut Rng, link: Link, n: u32) -> Sent {
    let v6 = rng.one_in(3);
    let vlan = rng.one_in(5);
    let mut frame = Vec::new();
    frame.extend(match rng.below(40) {
        0 => [0xff; 6],
        1 => [0x01, 0, 0x5e, 0, 0, 1],
        2 => [0x02, 9, 9, 9, 9, 9],
        _ => link.router,
    });
    frame.extend(link.a);
    if vlan {
        frame.extend([0x81, 0x00]);
        // Another VLAN, a priority tag, priorities.
        let vid = match rng.below(20) {
            0 => 11,
            1 => 0,
            _ => VLANS[0],
        };
        let priority = if rng.one_in(4) { rng.below(8) as u16 } else { 0 };
        frame.extend((priority << 13 | vid).to_be_bytes());
    }
    let ethertype: u16 = if rng.one_in(60) {
        0x88b5
    } else if v6 {
        0x86dd
    } else {
        0x0800
    };
    frame.extend(ethertype.to_be_bytes());
    let mut header = [0; 12];
    let packet = if v6 { packet_v6(rng, vlan, n) } else { packet_v4(rng, vlan, n) };
    let l3 = frame.len();
    frame.extend(&packet.bytes);
    if let Some((l4, size)) = packet.gso {
        // NEEDS_CSUM, GSO_TCPV4 or GSO_TCPV6.
        header[..2].copy_from_slice(&[1, if v6 { 4 } else { 1 }]);
        let fields = [(l3 + l4 + 20) as u16, size, (l3 + l4) as u16, 16];
        for (at, field) in header[2..].chunks_mut(2).zip(fields) {
            at.copy_from_slice(&field.to_le_bytes());
        }
    } else if rng.one_in(3) || frame.len() < 60 {
        let room = if rng.one_in(30) { 300 } else { 60 };
        let padding = rng.next() as u8;
        frame.resize(frame.len().max(room), padding);
    }
    Sent { header, frame }
}

struct Packet {
    bytes: Vec<u8>,
    /// Offset of the TCP header, and payload of a segment.
    gso: Option<(usize, u16)>,
}

fn hops(rng: &mut Rng) -> u8 {
    match rng.below(6) {
        0 => rng.below(4) as u8,
        1 => rng.below(256) as u8,
        _ => 64,
    }
}

fn length(rng: &mut Rng) -> usize {
    match rng.below(10) {
        0..=4 => rng.below(200) as usize,
        5..=7 => rng.below(1473) as usize,
        8 => 1465 + rng.below(20) as usize,
        _ => 1473 + rng.below(1500) as usize,
    }
}

/// The transport header and payload: protocol, bytes, and whether the checksum was left to do.
fn transport(rng: &mut Rng, pseudo: &[u8], v6: bool, n: u32, gso: bool) -> (u8, Vec<u8>) {
    let len = if gso { 3000 + rng.below(9000) as usize } else { length(rng) };
    let mut payload = n.to_be_bytes().to_vec();
    payload.resize(len.max(4), n as u8);
    let ports = [1000 + rng.below(50) as u16, 2000 + rng.below(50) as u16];
    let kind = if gso { 1 } else { rng.below(8) };
    let (protocol, mut bytes, field) = match kind {
        0 => (if v6 { 58 } else { 1 }, vec![if v6 { 128 } else { 8 }, 0, 0, 0, 0, 1, 0, 1], 2),
        1 | 2 => {
            let mut tcp = ports.map(u16::to_be_bytes).concat();
            let flags = rng.pick(&[0x02, 0x10, 0x18, 0x11, 0x04]);
            let flags = if gso { 0x10 } else { flags };
            tcp.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0x20, 0, 0, 0, 0, 0]);
            (6, tcp, 16)
        }
        3 => (rng.pick(&[47, 50, 132, 253]), vec![0; 8], 2),
        _ => {
            let mut udp = ports.map(u16::to_be_bytes).concat();
            udp.extend((8 + payload.len() as u16).to_be_bytes());
            udp.extend([0, 0]);
            (17, udp, 6)
        }
    };
    bytes.extend(payload);
    let mut pseudo = pseudo.to_vec();
    pseudo.extend((bytes.len() as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, protocol]);
    let head = if protocol == 1 { 0 } else { sum(&pseudo) };
    let checksum = if gso {
        head
    } else {
        let whole = u32::from(head) + u32::from(sum(&bytes));
        !((whole & 0xffff) + (whole >> 16)) as u16
    };
    bytes[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    (protocol, bytes)
}

fn packet_v4(rng: &mut Rng, vlan: bool, n: u32) -> Packet {
    let a = if vlan { A4_VLAN } else { A4 };
    let source = match rng.below(30) {
        0 => rng.pick(&OWN4),
        1 => [0; 4],
        2 => [127, 0, 0, 1],
        3 => [224, 0, 0, 5],
        4 => [255; 4],
        5 => B4,
        6 => [240, 0, 0, 1],
        7 => [10, 1, 0, 255],
        8 => [8, 8, 8, 8],
        9..=11 => [172, 16, 5, 6],
        12 => [0, 1, 2, 3],
        _ => a,
    };
    let destination = match rng.below(40) {
        0 | 1 => rng.pick(&OWN4),
        2 => [10, 2, 0, 255],
        3 => [255; 4],
        4 => [224, 0, 0, rng.pick(&[1, 5, 251])],
        5 => [239, 1, 2, 3],
        6 => [127, 0, 0, 1],
        7 => [0, 0, 0, 0],
        8 => [240, 1, 2, 3],
        9 => a,
        10 => [198, 18, 0, 1],
        11 => [198, 18, 1, 1],
        12 => [198, 18, 2, 1],
        13 => [203, 0, 113, 9],
        14 | 15 => [192, 168, rng.below(4) as u8, rng.below(256) as u8],
        16 => [10, 2, 0, 0],
        17 => [172, 16, 9, 9],
        18 => [0, 7, 7, 7],
        19..=23 => B4_VLAN,
        24 | 25 => [192, 168, 200, rng.below(256) as u8],
        _ => B4,
    };
    let options: &[u8] = match rng.below(40) {
        0 => &[1, 1, 1, 0],
        1 => &[0x94, 4, 0, 0],
        2 => &[7, 7, 4, 0, 0, 0, 0, 0],
        // Full, or routers would write the time of day.
        3 => &[0x44, 8, 9, 0, 1, 2, 3, 4],
        4 => &[0x83, 7, 4, 10, 2, 0, 2, 0],
        5 => &[0x99, 3, 0, 0],
        _ => &[],
    };
    let gso = options.is_empty() && rng.one_in(20);
    let pseudo = [source, destination].concat();
    let (protocol, body) = transport(rng, &pseudo, false, n, gso);
    let header_len = 20 + options.len();
    let fragment: u16 = match rng.below(12) {
        _ if gso => 0x4000,
        0 => 0x2000,
        1 => rng.below(0x2000) as u16,
        2 => 0x8000,
        3 => 0x6000,
        4..=8 => 0x4000,
        _ => 0,
    };
    let mut total = header_len + body.len();
    let mut first = 0x40 | (header_len / 4) as u8;
    if !gso {
        match rng.below(60) {
            0 => total += 1 + rng.below(40) as usize,
            1 => total -= rng.below(12) as usize,
            2 => total = rng.below(24) as usize,
            3 => first = 0x44,
            4 => first = 0x65,
            5 => first = 0x4f,
            _ => {}
        }
    }
    let tos = if rng.one_in(2) { 0 } else { rng.next() as u8 };
    let mut ip = vec![first, tos];
    ip.extend((total as u16).to_be_bytes());
    ip.extend((n as u16).to_be_bytes());
    ip.extend(fragment.to_be_bytes());
    ip.extend([hops(rng), protocol, 0, 0]);
    ip.extend(source);
    ip.extend(destination);
    ip.extend(options);
    let mut checksum = !sum(&ip);
    if rng.one_in(60) {
        checksum ^= 1 << rng.below(16);
    } else if checksum == 0 && rng.one_in(2) {
        checksum = 0xffff;
    }
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut bytes = ip;
    bytes.extend(body);
    if !gso && rng.one_in(80) {
        bytes.truncate(1 + rng.below(39) as usize);
    }
    // A GSO frame is as long as one may be; segments that fit, and segments that do not.
    let gso = gso.then(|| (header_len, if rng.one_in(3) { 1461 } else { 1400 }));
    Packet { bytes, gso }
}

fn packet_v6(rng: &mut Rng, vlan: bool, n: u32) -> Packet {
    let own = [[10, 1, 0, 1], [10, 2, 0, 1], [10, 1, 10, 1], [10, 2, 20, 1]].map(mapped);
    let local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x77];
    let a = mapped(if vlan { A4_VLAN } else { A4 });
    let one = |last| {
        let mut address = [0; 16];
        address[15] = last;
        address
    };
    let source = match rng.below(24) {
        0 => rng.pick(&own),
        1 => one(0),
        2 => one(1),
        3 => local,
        4 => mapped(B4),
        5 => [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        6 => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 0, 2],
        7 => [0x20, 1, 0xd, 0xb8, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9],
        8..=10 => mapped([0, 77, 0, 5]),
        _ => a,
    };
    let far = |net: u8| [0x20, 1, 0xd, 0xb8, 0, net, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let destination = match rng.below(32) {
        0 | 1 => rng.pick(&own),
        2 => [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        3 => [0xff, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
        4 => one(0),
        5 => one(1),
        6 => local,
        7 => mapped([0, 2, 0, 0]),
        8 => far(0x18),
        9 => far(0x19),
        10 => far(0x1a),
        11 => far(0x99),
        12 | 13 => far(1 + rng.below(4) as u8),
        14 => a,
        15 => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 2, 0, 2],
        16..=19 => mapped(B4_VLAN),
        _ => mapped(B4),
    };
    let extension: (u8, &[u8]) = match rng.below(30) {
        0 => (0, &[0, 0, 1, 4, 0, 0, 0, 0]),
        1 => (0, &[0, 0, 5, 2, 0, 0, 1, 0]),
        2 => (43, &[0, 0, 0, 0, 0, 0, 0, 0]),
        3 => (44, &[0, 0, 0, 1, 0, 0, 0, 9]),
        4 => (60, &[0, 0, 1, 4, 0, 0, 0, 0]),
        5 => (0, &[0, 0, 0xc2, 4, 0, 1, 0, 0]),
        _ => (255, &[]),
    };
    let gso = extension.1.is_empty() && rng.one_in(20);
    let pseudo = [source, destination].concat();
    let (protocol, body) = transport(rng, &pseudo, true, n, gso);
    let mut length = extension.1.len() + body.len();
    let mut first = 0x60 | rng.below(16) as u8;
    if !gso {
        match rng.below(50) {
            0 => length += 1 + rng.below(40) as usize,
            1 => length -= rng.below(8) as usize,
            2 => length = 0,
            3 => first = 0x45,
            _ => {}
        }
    }
    let mut ip = vec![first, rng.next() as u8, rng.next() as u8, rng.next() as u8];
    ip.extend((length as u16).to_be_bytes());
    ip.extend([if extension.1.is_empty() { protocol } else { extension.0 }, hops(rng)]);
    ip.extend(source);
    ip.extend(destination);
    if let [_, rest @ ..] = extension.1 {
        ip.push(protocol);
        ip.extend(rest);
    }
    let header_len = ip.len();
    ip.extend(body);
    if !gso && rng.one_in(80) {
        ip.truncate(1 + rng.below(59) as usize);
    }
    let gso = gso.then(|| (header_len, if rng.one_in(3) { 1441 } else { 1400 }));
    Packet { bytes: ip, gso }
}

/// A packet of A to B that every router looks at itself, and forwards: it has an option that does
/// nothing.
pub fn for_the_router(link: Link, n: u32) -> Sent {
    barrier(link, 64, &[1, 1, 1, 1], n)
}

/// A packet of A that ends at the router, which tells A (time exceeded); its number is in the answer.
pub fn answered_by_the_router(link: Link, n: u32) -> Sent {
    barrier(link, 1, &[], n)
}

/// Packet `n`, told by a mark and its number in the payload.
fn barrier(link: Link, hops: u8, options: &[u8], n: u32) -> Sent {
    let mut frame = [link.router, link.a].concat();
    frame.extend([8, 0]);
    let len = 20 + options.len() as u8;
    let mut ip = vec![0x40 | (len / 4), 0, 0, len + 12, 0, 0, 0, 0, hops, 253, 0, 0];
    ip.extend(A4);
    ip.extend(B4);
    ip.extend(options);
    let checksum = !sum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(ip);
    frame.extend([0xba, 0x44, 0x1e, 0x44]);
    frame.extend(n.to_be_bytes());
    frame.extend([0; 4]);
    frame.resize(60, 0);
    Sent { header: [0; 12], frame }
}

/// Whether a frame is, or answers, packet `n` of the two kinds.
pub fn is_barrier(frame: &[u8], n: u32) -> bool {
    let mark = [[0xba, 0x44, 0x1e, 0x44], n.to_be_bytes()].concat();
    frame.windows(mark.len()).any(|part| part == mark)
}

/// A UDP datagram of A, of flow `flow`, with a number in it.
pub fn numbered(link: Link, to: [u8; 4], flow: u16, n: u32) -> Vec<u8> {
    let mut frame = [link.router, link.a].concat();
    frame.extend([8, 0]);
    let mut ip = vec![0x45, 0, 0, 36, 0, 0, 0x40, 0, 64, 17, 0, 0];
    ip.extend(A4);
    ip.extend(to);
    let checksum = !sum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(ip);
    frame.extend([1000 + flow, 9, 16, 0].map(u16::to_be_bytes).concat());
    frame.extend([0x4e, 0x75, 0x6d, 0x62]);
    frame.extend(n.to_be_bytes());
    frame.resize(60, 0);
    frame
}

/// The number of such a datagram, as it arrives.
pub fn number(frame: &[u8]) -> Option<u32> {
    let (mark, n) = frame.get(42..50)?.split_at(4);
    (mark == [0x4e, 0x75, 0x6d, 0x62]).then(|| n.try_into().ok().map(u32::from_be_bytes))?
}
