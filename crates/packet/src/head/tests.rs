use super::*;

fn head(len: usize) -> Head {
    let mut head = Head::new();
    head.fill(|spare| {
        assert_eq!(spare.len(), HEAD_MAX);
        for (index, byte) in spare.iter_mut().enumerate() {
            *byte = index as u8;
        }
        len
    });
    head
}

#[test]
fn two_tags_fit_in_front_of_a_full_head_and_no_more() {
    let mut head = head(HEAD_MAX);
    assert!(head.push_vlan(Tci(1)));
    assert!(head.push_vlan(Tci(0x2002)));
    assert!(!head.push_vlan(Tci(3)));
    assert_eq!(head.len(), HEAD_MAX + HEADROOM);
    let expected =
        [&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0x81, 0, 0x20, 2, 0x81, 0, 0, 1, 12][..]];
    assert_eq!(head.bytes()[..21], expected.concat());
    assert_eq!(head.pop_vlan(), Some(Tci(0x2002)));
    assert_eq!(head.pop_vlan(), Some(Tci(1)));
    assert_eq!(head.pop_vlan(), None);
    assert_eq!(head.bytes(), (0..HEAD_MAX as u8).collect::<Vec<_>>());
}

#[test]
fn a_pushed_tag_is_not_seen_by_the_next_frame() {
    let mut head = head(64);
    assert!(head.edit(VlanEdit::Push(Tci(7))));
    assert!(head.edit(VlanEdit::Set(Tci(0xe008))));
    assert_eq!(vlan_tag(head.bytes()), Some(Tci(0xe008)));
    head.copy_from(&[9; 20]);
    assert_eq!(head.bytes(), [9; 20]);
    assert!(!head.edit(VlanEdit::Pop) && !head.edit(VlanEdit::Set(Tci(1))));
    assert!(!Head::new().edit(VlanEdit::Push(Tci(1))));
}

#[test]
fn lengths_are_clamped() {
    assert_eq!(head(1000).len(), HEAD_MAX);
    let mut head = Head::default();
    assert!(head.is_empty());
    head.copy_from(&[1; 500]);
    assert_eq!(head.bytes(), [1; HEAD_MAX]);
    assert_eq!(head.bytes_mut().len(), HEAD_MAX);
}
