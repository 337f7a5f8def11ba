use super::*;

#[test]
fn sets_are_written_as_ranges() {
    for (text, canonical) in [
        ("", ""),
        ("7", "7"),
        ("1-4094", "1-4094"),
        ("20, 1-3,2-5 ,4094", "1-5,20,4094"),
        ("10,11", "10-11"),
    ] {
        let set: VlanSet = text.parse().unwrap();
        assert_eq!(set.to_string(), canonical);
        assert_eq!(canonical.parse(), Ok(set));
    }
    for bad in ["0", "4095", "5-3", "1-", "-", "a", "1,,2", "1-2-3", "+5x"] {
        assert!(bad.parse::<VlanSet>().is_err(), "{bad}");
    }
}

#[test]
fn sets_hold_what_was_put_in_and_only_ids() {
    let set: VlanSet = [0, 1, 63, 64, 4094, 4095, 9999].into_iter().collect();
    assert_eq!(set.iter().collect::<Vec<_>>(), [1, 63, 64, 4094]);
    assert!((0..=u16::MAX).filter(|vid| set.contains(*vid)).eq([1, 63, 64, 4094]));
    assert!(!set.is_empty() && VlanSet::default().is_empty());
    assert_eq!(VlanSet::all().iter().count(), 4094);
}

#[test]
fn vlan_ids_are_checked() {
    let trunk = |native| VlanMode::Trunk { allowed: VlanSet::all(), native };
    assert_eq!(VlanMode::Access(0).check(), Err(0));
    assert_eq!(VlanMode::Access(4095).check(), Err(4095));
    assert_eq!(trunk(Some(5000)).check(), Err(5000));
    for good in [VlanMode::None, VlanMode::Access(1), trunk(None), trunk(Some(4094))] {
        assert_eq!(good.check(), Ok(()));
    }
}
