//! No input panics, and what passes the checks can be relied on.

mod common;

use common::spec;
use packet::eth::{Eth, network_layer, vlan_tag};
use packet::ip::Ip;
use packet::segment::{ChecksumMode, Scratch, segment};
use packet::vnet::{Csum, Gso, GsoKind};
use packet::{
    Checked, HEAD_MAX, HEADROOM, Head, Offloads, Tci, VirtioNetHdr, VlanEdit, checksum, flow_hash,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Bytes: noise, or a real frame with a few bytes changed or its end cut off.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let damaged =
        (spec(0..300), vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), 0usize..200)
            .prop_map(|(spec, changes, cut)| {
                let mut frame = spec.frame();
                for (place, value) in changes {
                    let place = place.index(frame.len().min(80));
                    frame[place] = value;
                }
                frame.truncate(frame.len().saturating_sub(cut.saturating_sub(100)));
                frame
            });
    prop_oneof![vec(any::<u8>(), 0..200), damaged]
}

/// A real frame and its offload header, with a few fields of either changed.
fn claim() -> impl Strategy<Value = (Vec<u8>, VirtioNetHdr)> {
    let number = || prop_oneof![0u16..160, any::<u16>()];
    let lie = (0usize..8, number(), any::<u8>());
    let damage = vec((any::<prop::sample::Index>(), any::<u8>()), 0..2);
    (spec(0..300), 0u16..200, vec(lie, 0..2), damage).prop_map(|(spec, gso_size, lies, damage)| {
        let (mut frame, mut hdr) = (spec.frame(), spec.vnet(gso_size));
        for (field, number, byte) in lies {
            match field {
                0 => hdr.flags = byte,
                1 => hdr.gso_type = byte,
                2 => hdr.gso_type ^= byte & 0x85,
                3 => hdr.hdr_len = number,
                4 => hdr.gso_size = number,
                5 => hdr.csum_start = number,
                6 => hdr.csum_offset = number,
                _ => frame.truncate(usize::from(number)),
            }
        }
        for (place, value) in damage {
            if !frame.is_empty() {
                let place = place.index(frame.len());
                frame[place] = value;
            }
        }
        (frame, hdr)
    })
}

fn edit() -> impl Strategy<Value = VlanEdit> {
    prop_oneof![
        Just(VlanEdit::Keep),
        Just(VlanEdit::Pop),
        any::<u16>().prop_map(|tci| VlanEdit::Push(Tci(tci))),
        any::<u16>().prop_map(|tci| VlanEdit::Set(Tci(tci))),
    ]
}

fn checked() -> impl Strategy<Value = Checked> {
    let kind = prop_oneof![
        Just(GsoKind::Tcp4),
        Just(GsoKind::Tcp6),
        Just(GsoKind::Udp4),
        Just(GsoKind::Udp6)
    ];
    let small = || prop_oneof![0u16..160, any::<u16>()];
    let gso = (kind, any::<bool>(), small(), small(), small(), small()).prop_map(
        |(kind, ecn, size, l3, l4, header_len)| Gso { kind, ecn, size, l3, l4, header_len },
    );
    let csum = (small(), small()).prop_map(|(start, offset)| Csum { start, offset });
    (prop::option::of(csum), prop::option::of(gso)).prop_map(|(csum, gso)| Checked { csum, gso })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn views_of_anything(frame in bytes()) {
        let head = &frame[..frame.len().min(HEAD_MAX)];
        let eth = Eth::parse(head);
        prop_assert_eq!(eth.is_some(), head.len() >= if vlan_tag(head).is_some() { 18 } else { 14 }
            && !(head.len() < 18 && head.get(12..14) == Some(&[0x81, 0])));
        if let Some((_, l3)) = network_layer(head) {
            prop_assert!(l3 <= head.len());
        }
        if let Some(ip) = Ip::parse(head) {
            prop_assert!(ip.l3 < ip.l4);
            prop_assert!(matches!(ip.addresses(head).len(), 8 | 32));
        }
        flow_hash(head);
    }

    #[test]
    fn what_validates_is_inside_the_frame((frame, hdr) in claim()) {
        let head = &frame[..frame.len().min(HEAD_MAX)];
        let Ok(checked) = hdr.validate(frame.len(), head, Offloads::ALL) else { return Ok(()) };
        prop_assert_eq!(checked.csum.is_some(), hdr.flags & 1 != 0);
        prop_assert_eq!(checked.gso.is_some(), hdr.gso_type != 0);
        if let Some(csum) = checked.csum {
            prop_assert!(usize::from(csum.start) + usize::from(csum.offset) + 2 <= frame.len());
            prop_assert!(csum.start >= 14);
        }
        if let Some(gso) = checked.gso {
            prop_assert!(gso.l3 < gso.l4 && gso.l4 < gso.header_len);
            prop_assert!(usize::from(gso.header_len) <= head.len());
            prop_assert!(usize::from(gso.header_len) < frame.len());
            prop_assert!(gso.size > 0);
            prop_assert_eq!(checked.csum.map(|csum| csum.start), Some(gso.l4));
            let mut scratch: Scratch = [0; size_of::<Scratch>()];
            let mut payload = 0;
            let count = segment(&frame, &checked, ChecksumMode::Full, &mut scratch, |_, part, _| {
                payload += part.len();
            });
            prop_assert!(count > 0);
            prop_assert_eq!(payload, frame.len() - usize::from(gso.header_len));
        }
        // The header passed on says the same, whatever was in the one that came.
        let again = checked.header().validate(frame.len(), head, checked.needs());
        prop_assert_eq!(again, Ok(checked));
    }

    #[test]
    fn any_header_over_any_bytes(frame in bytes(), hdr: [u8; 12], longer in 0usize..70000) {
        let head = &frame[..frame.len().min(HEAD_MAX)];
        let frame_len = if head.len() == HEAD_MAX { HEAD_MAX + longer } else { head.len() };
        let hdr = VirtioNetHdr::parse(&hdr).ok_or_else(|| TestCaseError::fail("12 bytes"))?;
        let checked = hdr.validate(frame_len, head, Offloads::ALL).unwrap_or_default();
        if let Some(csum) = checked.csum {
            prop_assert!(usize::from(csum.start) + usize::from(csum.offset) + 2 <= frame_len);
        }
    }

    #[test]
    fn cutting_with_any_arguments(frame in bytes(), checked in checked(), edit in edit()) {
        let mut checked = checked;
        checked.follow(edit);
        let mut scratch: Scratch = [0; size_of::<Scratch>()];
        for mode in [ChecksumMode::Full, ChecksumMode::Partial] {
            segment(&frame, &checked, mode, &mut scratch, |header, payload, _| {
                assert!(!header.is_empty() && !payload.is_empty());
            });
        }
    }

    #[test]
    fn completing_any_checksum(mut frame in bytes(), start in 0u16..400, offset in 0u16..400) {
        let before = frame.clone();
        let field = usize::from(start) + usize::from(offset);
        let done = checksum::complete(&mut frame, start, offset);
        prop_assert_eq!(done, field + 2 <= before.len());
        let changed = if done { field..field + 2 } else { 0..0 };
        for (place, (old, new)) in before.iter().zip(&frame).enumerate() {
            prop_assert!(old == new || changed.contains(&place));
        }
    }

    #[test]
    fn heads_stay_inside_their_buffer(frame in bytes(), edits in vec(edit(), 0..8)) {
        let mut head = Head::new();
        head.copy_from(&frame);
        let mut model = frame[..frame.len().min(HEAD_MAX)].to_vec();
        for edit in edits {
            let tagged = vlan_tag(&model).is_some();
            let fits = match edit {
                VlanEdit::Keep => true,
                VlanEdit::Push(_) => model.len() >= 14 && head_room(&frame, &model) >= 4,
                VlanEdit::Pop => tagged && model.len() >= 18,
                VlanEdit::Set(_) => tagged,
            };
            prop_assert_eq!(head.edit(edit), fits);
            match edit {
                _ if !fits => {}
                VlanEdit::Keep => {}
                VlanEdit::Push(tci) => {
                    let [a, b] = tci.0.to_be_bytes();
                    model.splice(12..12, [0x81, 0, a, b]);
                }
                VlanEdit::Pop => drop(model.drain(12..16)),
                VlanEdit::Set(tci) => model[14..16].copy_from_slice(&tci.0.to_be_bytes()),
            }
            prop_assert_eq!(head.bytes(), &model[..]);
        }
    }
}

/// Headroom left: what there was, less what the head has grown.
fn head_room(frame: &[u8], model: &[u8]) -> usize {
    HEADROOM + frame.len().min(HEAD_MAX) - model.len()
}
