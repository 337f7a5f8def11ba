use packet::eth::{ETH_P_8021AD, ETH_P_8021Q};

use super::*;

fn head(first: u16, tci: u16, inner: u16) -> [u8; 18] {
    let mut head = [7; 18];
    head[12..14].copy_from_slice(&first.to_be_bytes());
    head[14..16].copy_from_slice(&tci.to_be_bytes());
    head[16..18].copy_from_slice(&inner.to_be_bytes());
    head
}

#[test]
fn verdicts_survive_packing() {
    let tci = |tci| VlanEdit::Push(Tci(tci));
    let survives = |verdict| {
        let packed = Packed::pack(verdict).unwrap();
        assert_eq!(
            packed
                .unpack()
                .map_or_else(|other| other, |port| Verdict::Forward { port, edit: VlanEdit::Keep }),
            verdict
        );
    };
    for edit in [VlanEdit::Keep, VlanEdit::Pop, tci(4094), tci(0xe000 | 4094), tci(0x2001)] {
        let port = PortId(4095);
        survives(Verdict::Forward { port, edit });
        survives(Verdict::Router { port, edit });
    }
    DropReason::ALL.iter().for_each(|reason| survives(Verdict::Drop(*reason)));
    let rewritten = Verdict::Forward { port: PortId(1), edit: VlanEdit::Set(Tci(5)) };
    assert!(Packed::pack(rewritten).is_none());
}

#[test]
fn keys_tell_apart_what_the_verdict_depends_on() {
    let of = |head: &[u8]| Key::of(PortId(3), head);
    let plain = head(0x0800, 1, 2);
    assert_eq!(of(&plain), of(&head(0x86dd, 3, 4)), "payload does not count");
    assert_ne!(of(&plain), Key::of(PortId(4), &plain));
    for byte in 0..12 {
        let mut other = plain;
        other[byte] ^= 1;
        assert_ne!(of(&plain), of(&other), "byte {byte}");
    }
    let tagged = |tci| of(&head(ETH_P_8021Q, tci, 0x0800));
    assert_ne!(tagged(5), of(&plain));
    assert_ne!(tagged(5), tagged(6));
    assert_eq!(tagged(5), tagged(0xe005), "priority does not count");
}

#[test]
fn odd_frames_are_always_worked_out() {
    let of = |head: &[u8]| Key::of(PortId(3), head);
    for (first, tci, inner) in [
        (ETH_P_8021Q, 0xe000, 0x0800),
        (ETH_P_8021Q, 4095, 0x0800),
        (ETH_P_8021Q, 5, ETH_P_8021Q),
        (ETH_P_8021Q, 5, ETH_P_8021AD),
        (ETH_P_8021AD, 5, 0x0800),
    ] {
        assert_eq!(of(&head(first, tci, inner)), None);
    }
    assert_eq!(of(&head(0x0800, 0, 0)[..17]), None);
}

#[test]
fn verdicts_are_small() {
    assert!(size_of::<Verdict>() <= 16);
}
