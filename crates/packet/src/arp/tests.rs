use super::*;

#[test]
fn an_announcement_is_what_rfc_903_and_qemu_say() {
    let mac = Mac([0x52, 0x54, 0, 1, 2, 3]);
    let mut expected = vec![0xff; 6];
    expected.extend(mac.0);
    expected.extend([0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    expected.extend(mac.0);
    expected.extend([0; 4]);
    expected.extend(mac.0);
    expected.extend([0; 4]);
    expected.resize(60, 0);
    assert_eq!(announcement(mac)[..], expected);
}
