use proptest::prelude::*;

use super::*;

/// RFC 1071, word by word.
fn reference(bytes: &[u8]) -> u16 {
    let sum = bytes.chunks(2).fold(0u32, |sum, pair| {
        let sum = sum + (u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
        (sum & 0xffff) + (sum >> 16)
    });
    !(sum as u16)
}

#[test]
fn the_example_of_rfc_1071() {
    // RFC 1071, 3: the sum of these is ddf2.
    assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
}

#[test]
fn a_known_ipv4_header() {
    let header = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00,
        0x01, 0xc0, 0xa8, 0x00, 0xc7,
    ];
    assert_eq!(checksum(&header), 0);
}

#[test]
fn the_longest_frame_of_the_largest_words() {
    let ones = vec![0xff; 1 << 20];
    assert_eq!(checksum(&ones), 0);
    assert_eq!(checksum(&[]), 0xffff);
}

#[test]
fn a_completed_checksum_is_never_zero() {
    // Everything sums to 0xffff, so that the checksum would be 0: "none" in UDP.
    let mut frame = vec![0; 20];
    frame[14..16].copy_from_slice(&[0xff, 0xff]);
    assert!(complete(&mut frame, 14, 4));
    assert_eq!(frame[18..], [0xff, 0xff]);
}

#[test]
fn completion_outside_the_frame_is_refused() {
    let mut frame = vec![7; 20];
    assert!(!complete(&mut frame, 14, 5));
    assert!(!complete(&mut frame, u16::MAX, u16::MAX));
    assert_eq!(frame, [7; 20]);
    assert!(complete(&mut frame, 14, 4));
}

proptest! {
    #[test]
    fn agrees_with_the_reference(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(checksum(&bytes), reference(&bytes));
    }

    #[test]
    fn adds_up_over_parts_of_even_length(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        at: prop::sample::Index,
    ) {
        let (a, b) = bytes.split_at(at.index(bytes.len() / 2 + 1) * 2);
        prop_assert_eq!(Sum::ZERO.bytes(a).bytes(b).finish(), reference(&bytes));
    }

    #[test]
    fn an_update_is_a_recalculation(
        mut bytes in proptest::collection::vec(any::<u8>(), 2..100),
        word: prop::sample::Index,
        new: u16,
    ) {
        // All zeros would make the two forms of zero differ (RFC 1624, 3).
        bytes.extend([0, 1]);
        let at = word.index(bytes.len() / 2 - 1) * 2;
        let old = be16(&bytes, at).unwrap();
        let before = checksum(&bytes);
        put_be16(&mut bytes, at, new);
        prop_assume!(bytes.iter().any(|byte| *byte != 0));
        prop_assert_eq!(update(before, old, new), checksum(&bytes));
    }

    #[test]
    fn the_pseudo_header_counts_every_field(
        addresses: [u8; 32],
        protocol: u8,
        length in 0u32..70000,
    ) {
        let mut bytes = addresses.to_vec();
        bytes.extend(length.to_be_bytes());
        bytes.extend([0, protocol]);
        prop_assert_eq!(pseudo_header(&addresses, protocol, length).finish(), reference(&bytes));
    }
}
