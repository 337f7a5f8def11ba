use super::*;
use crate::eth::Tci;

/// A TCP/IPv4 frame of `payload` zero bytes, its lengths right.
fn tcp4(payload: usize) -> Vec<u8> {
    let mut frame = vec![0; 54 + payload];
    frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    frame[16..18].copy_from_slice(&(40 + payload as u16).to_be_bytes());
    frame[23] = IPPROTO_TCP;
    frame[46] = 0x50;
    frame
}

fn tso4() -> VirtioNetHdr {
    VirtioNetHdr {
        flags: VIRTIO_NET_HDR_F_NEEDS_CSUM,
        gso_type: VIRTIO_NET_HDR_GSO_TCPV4,
        hdr_len: 0,
        gso_size: 100,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0,
    }
}

fn check(hdr: VirtioNetHdr, frame: &[u8]) -> Result<Checked, BadOffload> {
    hdr.validate(frame.len(), &frame[..frame.len().min(HEAD_MAX)], Offloads::ALL)
}

/// The frame with one byte changed.
fn with(mut frame: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    frame[at] = value;
    frame
}

#[test]
fn the_layout_is_that_of_the_specification() {
    let bytes = [1, 0x81, 0x36, 0x00, 0xb4, 0x05, 0x22, 0x00, 0x10, 0x00, 0x02, 0x01];
    let header = VirtioNetHdr {
        flags: VIRTIO_NET_HDR_F_NEEDS_CSUM,
        gso_type: VIRTIO_NET_HDR_GSO_TCPV4 | VIRTIO_NET_HDR_GSO_ECN,
        hdr_len: 54,
        gso_size: 1460,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0x102,
    };
    assert_eq!(VirtioNetHdr::parse(&bytes), Some(header));
    assert_eq!(header.to_bytes(), bytes);
    let legacy = VirtioNetHdr { num_buffers: 0, ..header };
    assert_eq!(VirtioNetHdr::parse(&bytes[..VNET_HLEN_LEGACY]), Some(legacy));
    assert_eq!(VirtioNetHdr::parse(&bytes[..11]), Some(legacy));
    assert_eq!(VirtioNetHdr::parse(&bytes[..9]), None);
    let mut written = [0; VNET_HLEN];
    header.write(&mut written);
    assert_eq!(written, bytes);
}

#[test]
fn offloads_follow_the_feature_bits() {
    let guest = |bits: &[u32]| Offloads::from_guest_features(bits.iter().map(|b| 1 << b).sum());
    let host = |bits: &[u32]| Offloads::from_host_features(bits.iter().map(|b| 1 << b).sum());
    assert_eq!(guest(&[1, 7, 8, 9, 54, 55]), Offloads::ALL);
    assert_eq!(host(&[0, 11, 12, 13, 56]), Offloads::ALL);
    assert_eq!(guest(&[1]), Offloads::CSUM);
    assert_eq!(host(&[1]), Offloads::NONE);
    assert_eq!(guest(&[1, 7]), Offloads::CSUM | Offloads::TSO4);
    assert_eq!(guest(&[1, 55]), Offloads::CSUM | Offloads::USO6);
    assert_eq!(host(&[0, 12, 13]), Offloads::CSUM | Offloads::TSO6 | Offloads::ECN);
    // Dependencies (virtio 1.3, 5.1.3.1), and UFO counts for nothing.
    assert_eq!(guest(&[7, 8, 9, 54]), Offloads::NONE);
    assert_eq!(guest(&[1, 9, 10]), Offloads::CSUM);
    assert_eq!(Offloads::ALL.without(Offloads::ECN).union(Offloads::ECN), Offloads::ALL);
}

#[test]
fn a_plain_frame_passes_whatever_the_unused_fields_say() {
    let hdr = VirtioNetHdr { flags: 0xfe, csum_start: 9999, gso_size: 7, hdr_len: 3, ..tso4() };
    let hdr = VirtioNetHdr { gso_type: 0, ..hdr };
    let checked = hdr.validate(14, &[0; 14], Offloads::NONE).unwrap();
    assert_eq!(checked, Checked::PLAIN);
    assert_eq!(checked.needs(), Offloads::NONE);
    assert_eq!(checked.header(), VirtioNetHdr { num_buffers: 1, ..VirtioNetHdr::default() });
}

#[test]
fn a_raw_header_says_what_it_says_taken_apart() {
    let one = VirtioNetHdr { flags: 0xa5, num_buffers: 0x1234, csum_offset: 0x89ab, ..tso4() };
    assert_eq!(RawVirtioNetHdr::from(one).parse(), one);
    let legacy = u128::from_le_bytes([1, 4, 2, 0, 3, 0, 4, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    let VirtioNetHdr { flags: 1, gso_type: 4, csum_offset: 5, num_buffers: 0, .. } =
        RawVirtioNetHdr::from_word(legacy).parse()
    else {
        panic!("{:?}", RawVirtioNetHdr::from_word(legacy).parse());
    };
    for (flags, gso_type) in [(0, 0), (1, 0), (2, 0), (0xfe, 0), (0, 1), (0, 0x80), (0xff, 0xff)] {
        let header = VirtioNetHdr { flags, gso_type, ..tso4() };
        assert_eq!(RawVirtioNetHdr::from(header).is_plain(), header.is_plain(), "{header:?}");
    }
}

#[test]
fn a_good_tso_frame_is_read_from_the_frame_not_the_hint() {
    let frame = tcp4(1000);
    let checked = check(VirtioNetHdr { hdr_len: 9999, ..tso4() }, &frame).unwrap();
    assert_eq!(checked.gso.unwrap().header_len, 54);
    assert_eq!(checked.needs(), Offloads::CSUM | Offloads::TSO4);
    let expected = VirtioNetHdr { hdr_len: 54, num_buffers: 1, ..tso4() };
    assert_eq!(checked.header(), expected);

    let ecn = VIRTIO_NET_HDR_GSO_TCPV4 | VIRTIO_NET_HDR_GSO_ECN;
    let checked = check(VirtioNetHdr { gso_type: ecn, ..tso4() }, &frame).unwrap();
    assert_eq!(checked.needs(), Offloads::CSUM | Offloads::TSO4 | Offloads::ECN);
    assert_eq!(checked.header().gso_type, ecn);
}

#[test]
fn offsets_follow_the_tag() {
    let mut checked = check(tso4(), &tcp4(1000)).unwrap();
    let before = checked;
    checked.follow(VlanEdit::Push(Tci(5)));
    let header = checked.header();
    assert_eq!((header.csum_start, header.hdr_len, header.csum_offset), (38, 58, 16));
    checked.follow(VlanEdit::Set(Tci(6)));
    checked.follow(VlanEdit::Keep);
    checked.follow(VlanEdit::Pop);
    assert_eq!(checked, before);
}

#[test]
fn every_lie_has_its_name() {
    use BadOffload as Bad;
    let good = || tcp4(1000);
    let v6 = with(with(good(), 12, 0x86), 13, 0xdd);
    let options = with(tcp4(1000), 14, 0x4f); // sixty bytes of IPv4 header and of TCP header
    let lies: &[(Bad, VirtioNetHdr, Vec<u8>)] = &[
        (Bad::ChecksumOutside, VirtioNetHdr { csum_start: u16::MAX, ..tso4() }, good()),
        (Bad::ChecksumOutside, VirtioNetHdr { csum_offset: u16::MAX, ..tso4() }, good()),
        (Bad::ChecksumOutside, VirtioNetHdr { csum_start: 1037, ..tso4() }, good()),
        (Bad::ChecksumInHeader, VirtioNetHdr { csum_start: 12, ..tso4() }, good()),
        (Bad::ChecksumInHeader, VirtioNetHdr { csum_start: 26, gso_type: 0, ..tso4() }, good()),
        (Bad::ChecksumInHeader, VirtioNetHdr { csum_offset: 0, gso_type: 0, ..tso4() }, good()),
        (Bad::ChecksumInHeader, VirtioNetHdr { csum_start: 36, gso_type: 0, ..tso4() }, good()),
        (Bad::GsoWithoutChecksum, VirtioNetHdr { flags: 0, ..tso4() }, good()),
        (Bad::GsoType, VirtioNetHdr { gso_type: VIRTIO_NET_HDR_GSO_UDP, ..tso4() }, good()),
        (Bad::GsoType, VirtioNetHdr { gso_type: VIRTIO_NET_HDR_GSO_ECN, ..tso4() }, good()),
        (Bad::GsoType, VirtioNetHdr { gso_type: 2, ..tso4() }, good()),
        (Bad::GsoProtocol, VirtioNetHdr { gso_type: VIRTIO_NET_HDR_GSO_TCPV6, ..tso4() }, good()),
        (Bad::GsoProtocol, VirtioNetHdr { gso_type: VIRTIO_NET_HDR_GSO_UDP_L4, ..tso4() }, good()),
        (Bad::GsoProtocol, VirtioNetHdr { gso_type: 0x85, ..tso4() }, good()),
        (Bad::GsoProtocol, tso4(), with(good(), 20, 0x20)),
        (Bad::GsoProtocol, VirtioNetHdr { csum_offset: 20, ..tso4() }, with(good(), 23, 132)),
        (Bad::GsoHeaders, tso4(), v6),
        (Bad::GsoHeaders, tso4(), with(good(), 46, 0x40)),
        (Bad::GsoHeaders, VirtioNetHdr { csum_start: 74, ..tso4() }, with(options, 86, 0xf0)),
        (Bad::GsoChecksumPlace, VirtioNetHdr { csum_start: 54, ..tso4() }, good()),
        (Bad::GsoNoPayload, tso4(), tcp4(0)),
        (Bad::GsoLength, tso4(), with(good(), 17, 0)),
        (Bad::GsoLength, tso4(), {
            let mut f = good();
            f.push(0);
            f
        }),
        (Bad::GsoSize, VirtioNetHdr { gso_size: 0, ..tso4() }, good()),
        (Bad::GsoSize, VirtioNetHdr { gso_size: 9, ..tso4() }, tcp4(10_000)),
    ];
    for (index, (bad, hdr, frame)) in lies.iter().enumerate() {
        assert_eq!(check(*hdr, frame), Err(*bad), "lie {index}: {}", bad.name());
    }
    let refused = tso4().validate(1054, &good()[..HEAD_MAX], Offloads::CSUM);
    assert_eq!(refused, Err(Bad::NotNegotiated));
    let zero_length = with(with(good(), 16, 0), 17, 0);
    assert!(check(tso4(), &zero_length).is_ok(), "some stacks leave the length to the device");
}

#[test]
fn a_frame_over_what_ip_allows_is_not_segmented() {
    let mut frame = tcp4(100);
    frame[16..18].copy_from_slice(&[0, 0]);
    let hdr = VirtioNetHdr { gso_size: 1400, ..tso4() };
    assert!(hdr.validate(14 + 65535, &frame, Offloads::ALL).is_ok());
    let refused = hdr.validate(14 + 65536, &frame, Offloads::ALL);
    assert_eq!(refused, Err(BadOffload::GsoLength));
}

#[test]
fn headers_must_be_within_the_head() {
    let frame = tcp4(1000);
    for len in 0..54 {
        assert!(tso4().validate(frame.len(), &frame[..len], Offloads::ALL).is_err(), "{len}");
    }
    assert!(tso4().validate(frame.len(), &frame[..54], Offloads::ALL).is_ok());
}

#[test]
fn the_checksum_of_an_inner_packet_is_allowed() {
    // VXLAN: the outer UDP checksum stays, the inner TCP checksum is partial.
    let mut frame = tcp4(200);
    frame[23] = IPPROTO_UDP;
    let inner = 34 + 8 + 8 + 14 + 20;
    let hdr = VirtioNetHdr { gso_type: 0, csum_start: inner, ..tso4() };
    assert_eq!(check(hdr, &frame).unwrap().csum, Some(Csum { start: inner, offset: 16 }));
    // Not one inside the outer header.
    let hdr = VirtioNetHdr { csum_start: 35, csum_offset: 3, ..hdr };
    assert_eq!(check(hdr, &frame), Err(BadOffload::ChecksumInHeader));
}

/// A TCP/IPv6 frame with one extension header of eight bytes, and its offload header.
fn tso6(extension: u8, segments_left: u8, length: u16) -> (VirtioNetHdr, Vec<u8>) {
    let mut frame = vec![0; 14 + 40 + 8 + 20 + 100];
    frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    frame[20] = extension;
    frame[54..58].copy_from_slice(&[IPPROTO_TCP, 0, 0, segments_left]);
    frame[74] = 0x50;
    (VirtioNetHdr { gso_type: VIRTIO_NET_HDR_GSO_TCPV6, csum_start: 62, ..tso4() }, frame)
}

#[test]
fn ipv6_extension_headers_and_segmentation() {
    let check = |(hdr, frame): (VirtioNetHdr, Vec<u8>)| check(hdr, &frame);
    assert_eq!(check(tso6(43, 0, 128)).unwrap().gso.unwrap().header_len, 82);
    assert!(check(tso6(43, 0, 0)).is_ok(), "a length left to the device");
    assert_eq!(check(tso6(43, 0, 127)), Err(BadOffload::GsoLength));
    // Not to be summed with the address in the header, or not whole.
    assert_eq!(check(tso6(43, 1, 128)), Err(BadOffload::GsoProtocol));
    assert_eq!(check(tso6(44, 0, 128)), Err(BadOffload::GsoProtocol));
}
