//! Segmentation: what comes out is what went in, in valid packets.

mod common;

use common::{Spec, spec};
use packet::segment::{ChecksumMode, Scratch, Segmenter, segment};
use packet::vnet::{SEGMENTS_MAX, VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_ECN};
use packet::{Checked, HEAD_MAX, Head, Offloads, Tci, VirtioNetHdr, VlanEdit, checksum};
use proptest::prelude::*;

const FIN: u8 = 1;
const PSH: u8 = 8;
const URG: u8 = 32;
const CWR: u8 = 128;

struct Out {
    frame: Vec<u8>,
    header_len: usize,
    vnet: VirtioNetHdr,
}

fn cut(frame: &[u8], checked: &Checked, mode: ChecksumMode) -> Vec<Out> {
    let mut scratch: Scratch = [0xa5; size_of::<Scratch>()];
    let mut out = Vec::new();
    let count = segment(frame, checked, mode, &mut scratch, |header, payload, vnet| {
        out.push(Out { frame: [header, payload].concat(), header_len: header.len(), vnet });
    });
    assert_eq!(count, out.len());
    out
}

fn check(spec: &Spec, frame: &[u8], hdr: VirtioNetHdr) -> Checked {
    hdr.validate(frame.len(), &frame[..frame.len().min(HEAD_MAX)], Offloads::ALL)
        .unwrap_or_else(|error| panic!("{error}: {spec:?}"))
}

/// Fields that differ from segment to segment, and those that must not.
fn assert_fields(spec: &Spec, out: &[Out]) {
    let (l3, l4) = (spec.l3(), spec.l4());
    let first = spec.frame();
    let mut done = 0usize;
    for (index, segment) in out.iter().enumerate() {
        let (frame, last) = (&segment.frame, index + 1 == out.len());
        assert_eq!(segment.header_len, spec.header_len());
        assert_eq!(frame[..l3], first[..l3], "MAC addresses and tags");
        if !spec.v6 {
            let id = u16::from_be_bytes([frame[l3 + 4], frame[l3 + 5]]);
            assert_eq!(id, spec.id.wrapping_add(index as u16));
            assert_eq!(frame[l3 + 6..l3 + 10], first[l3 + 6..l3 + 10]);
        }
        assert_eq!(frame[l4..l4 + 4], spec.ports);
        if spec.tcp {
            let seq = u32::from_be_bytes(*frame[l4 + 4..].first_chunk::<4>().unwrap_or(&[0; 4]));
            assert_eq!(seq, spec.seq.wrapping_add(done as u32));
            let flags = frame[l4 + 13];
            let urgent = u16::from_be_bytes([frame[l4 + 18], frame[l4 + 19]]);
            assert_eq!(flags & (FIN | PSH), if last { spec.flags & (FIN | PSH) } else { 0 });
            assert_eq!(flags & CWR, if index == 0 { spec.flags & CWR } else { 0 });
            let rest = !(FIN | PSH | CWR | URG);
            assert_eq!(flags & rest, spec.flags & rest);
            // The urgent byte is the same byte of the stream in every segment that names one.
            if flags & URG != 0 {
                assert_eq!(done + usize::from(urgent), usize::from(spec.urgent));
            } else {
                assert!(spec.flags & URG == 0 || usize::from(spec.urgent) <= done);
            }
        }
        done += frame.len() - segment.header_len;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_segment_is_a_valid_packet_and_the_payload_is_unchanged(
        spec in spec(1..6000),
        gso_size in 8u16..3000,
        ecn: bool,
    ) {
        let frame = spec.frame();
        let mut hdr = spec.vnet(gso_size);
        if spec.tcp && ecn {
            hdr.gso_type |= VIRTIO_NET_HDR_GSO_ECN;
        }
        let checked = check(&spec, &frame, hdr);
        let out = cut(&frame, &checked, ChecksumMode::Full);

        prop_assert_eq!(out.len(), spec.payload.len().div_ceil(usize::from(gso_size)));
        let mut payload: Vec<u8> = Vec::new();
        for segment in &out {
            let part = spec.assert_valid(&segment.frame);
            prop_assert!((1..=usize::from(gso_size)).contains(&part.len()));
            prop_assert_eq!(segment.vnet, VirtioNetHdr { num_buffers: 1, ..Default::default() });
            payload.extend(part);
        }
        prop_assert_eq!(&payload, &spec.payload);
        assert_fields(&spec, &out);
    }

    #[test]
    fn a_partial_checksum_completes_to_the_full_one(
        spec in spec(1..4000),
        gso_size in 8u16..3000,
    ) {
        let frame = spec.frame();
        let checked = check(&spec, &frame, spec.vnet(gso_size));
        let full = cut(&frame, &checked, ChecksumMode::Full);
        let partial = cut(&frame, &checked, ChecksumMode::Partial);
        prop_assert_eq!(full.len(), partial.len());
        for (full, mut partial) in full.into_iter().zip(partial) {
            // What the receiver is told is itself a header that can be validated.
            prop_assert_eq!(partial.vnet.flags, VIRTIO_NET_HDR_F_NEEDS_CSUM);
            let head = &partial.frame[..partial.frame.len().min(HEAD_MAX)];
            let again = partial.vnet.validate(partial.frame.len(), head, Offloads::CSUM).unwrap();
            let csum = again.csum.unwrap();
            prop_assert!(checksum::complete(&mut partial.frame, csum.start, csum.offset));
            prop_assert_eq!(partial.frame, full.frame);
        }
    }

    #[test]
    fn a_tag_edit_before_cutting_is_the_same_as_one_after(
        mut spec in spec(1..2000),
        gso_size in 100u16..1500,
        tci: u16,
        push: bool,
    ) {
        if push {
            spec.tags.truncate(1);
        } else {
            spec.tags = vec![(0x8100, tci)];
        }
        let edit = if push { VlanEdit::Push(Tci(tci)) } else { VlanEdit::Pop };
        let frame = spec.frame();
        let mut checked = check(&spec, &frame, spec.vnet(gso_size));
        let plain = cut(&frame, &checked, ChecksumMode::Full);

        let mut head = Head::new();
        head.copy_from(&frame);
        prop_assert!(head.edit(edit));
        checked.follow(edit);
        let rest = frame.get(HEAD_MAX..).unwrap_or_default();
        let edited = cut(&[head.bytes(), rest].concat(), &checked, ChecksumMode::Full);

        prop_assert_eq!(plain.len(), edited.len());
        for (plain, edited) in plain.iter().zip(&edited) {
            let mut head = Head::new();
            head.copy_from(&plain.frame);
            prop_assert!(head.edit(edit));
            let rest = plain.frame.get(HEAD_MAX..).unwrap_or_default();
            prop_assert_eq!(&[head.bytes(), rest].concat(), &edited.frame);
        }
    }

    #[test]
    fn cutting_needs_the_head_only(spec in spec(1..3000), gso_size in 8u16..1500) {
        let frame = spec.frame();
        let checked = check(&spec, &frame, spec.vnet(gso_size));
        let mut whole = cut(&frame, &checked, ChecksumMode::Partial).into_iter();
        let head = &frame[..spec.header_len()];
        let mut cuts = Segmenter::new(head, frame.len(), &checked).unwrap();
        let mut scratch: Scratch = [0; size_of::<Scratch>()];
        loop {
            let remaining = cuts.remaining();
            prop_assert_eq!(remaining, whole.len());
            let Some(cut) = cuts.cut(&mut scratch) else { break };
            let expected = whole.next().unwrap();
            let built = [&scratch[..cut.header_len], &frame[cut.payload.clone()]].concat();
            prop_assert_eq!(built, expected.frame);
            prop_assert_eq!(cut.partial_header(), expected.vnet);
        }
    }
}

#[test]
fn sixty_four_kilobytes_cut_into_the_most_segments() {
    let spec = Spec {
        tags: vec![],
        v6: false,
        ip_options: 0,
        tcp: true,
        tcp_options: 3,
        flags: 0x18,
        seq: u32::MAX - 100,
        urgent: 0,
        id: u16::MAX,
        addresses: [7; 32],
        ports: [1, 2, 3, 4],
        payload: (0..65535u32 - 52).map(|n| n as u8).collect(),
    };
    let frame = spec.frame();
    let least = spec.payload.len().div_ceil(SEGMENTS_MAX) as u16;
    let out = cut(&frame, &check(&spec, &frame, spec.vnet(least)), ChecksumMode::Full);
    assert_eq!(out.len(), SEGMENTS_MAX);
    let payload: Vec<u8> = out.iter().flat_map(|s| spec.assert_valid(&s.frame).to_vec()).collect();
    assert_eq!(payload, spec.payload);
    assert_fields(&spec, &out);
    let one_less = spec.vnet(least - 1).validate(frame.len(), &frame[..128], Offloads::ALL);
    assert_eq!(one_less, Err(packet::BadOffload::GsoSize));
}
