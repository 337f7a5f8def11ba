//! Names of virtio feature bits (virtio 1.3, sections 5.1.3, 5.2.3 and 6).
//!
//! The names are those of the specification without `VIRTIO_NET_F_`, `VIRTIO_BLK_F_` and
//! `VIRTIO_F_`, in lower case.

/// Bit and name, ascending.
const NAMES: [(u8, &str); 40] = [
    (0, "csum"),
    (1, "guest_csum"),
    (2, "ctrl_guest_offloads"),
    (3, "mtu"),
    (5, "mac"),
    (7, "guest_tso4"),
    (8, "guest_tso6"),
    (9, "guest_ecn"),
    (10, "guest_ufo"),
    (11, "host_tso4"),
    (12, "host_tso6"),
    (13, "host_ecn"),
    (14, "host_ufo"),
    (15, "mrg_rxbuf"),
    (16, "status"),
    (17, "ctrl_vq"),
    (18, "ctrl_rx"),
    (19, "ctrl_vlan"),
    (21, "guest_announce"),
    (22, "mq"),
    (23, "ctrl_mac_addr"),
    (26, "log_all"),
    (28, "indirect_desc"),
    (29, "event_idx"),
    (30, "protocol_features"),
    (32, "version_1"),
    (33, "access_platform"),
    (34, "ring_packed"),
    (35, "in_order"),
    (36, "order_platform"),
    (37, "sr_iov"),
    (38, "notification_data"),
    (40, "ring_reset"),
    (54, "guest_uso4"),
    (55, "guest_uso6"),
    (56, "host_uso"),
    (57, "hash_report"),
    (59, "guest_hdrlen"),
    (60, "rss"),
    (62, "standby"),
];

/// Bit and name of those that are a block device's own (virtio 1.3, section 5.2.3), ascending.
const DISK_NAMES: [(u8, &str); 13] = [
    (1, "size_max"),
    (2, "seg_max"),
    (4, "geometry"),
    (5, "ro"),
    (6, "blk_size"),
    (9, "flush"),
    (10, "topology"),
    (11, "config_wce"),
    (12, "mq"),
    (13, "discard"),
    (14, "write_zeroes"),
    (16, "secure_erase"),
    (17, "zoned"),
];

/// Bits below this one mean something else for each kind of device.
const COMMON: u8 = 24;

/// The names of all bits set in the features of a network device, ascending; a bit without a name
/// is `bit_N`.
pub fn names(features: u64) -> Vec<String> {
    named(features, &NAMES)
}

/// The same of a block device.
pub fn disk_names(features: u64) -> Vec<String> {
    let common = NAMES.iter().filter(|(bit, _)| (COMMON..50).contains(bit));
    let all: Vec<_> = DISK_NAMES.iter().chain(common).copied().collect();
    named(features, &all)
}

fn named(features: u64, names: &[(u8, &str)]) -> Vec<String> {
    let bits = (0..64u8).filter(|bit| features >> bit & 1 == 1);
    bits.map(|bit| match names.iter().find(|(number, _)| *number == bit) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("bit_{bit}"),
    })
    .collect()
}

/// All bits as `0x` and 16 hexadecimal digits.
pub fn hex(features: u64) -> String {
    format!("{features:#018x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_has_one_name() {
        assert!(NAMES.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(
            names(1 | 1 << 15 | 1 << 34 | 1 << 41),
            ["csum", "mrg_rxbuf", "ring_packed", "bit_41"]
        );
        assert_eq!(names(u64::MAX).len(), 64);
        let disk = disk_names(1 | 1 << 9 | 1 << 12 | 1 << 29 | 1 << 34 | 1 << 56);
        assert_eq!(disk, ["bit_0", "flush", "mq", "event_idx", "ring_packed", "bit_56"]);
        assert_eq!(hex(0x1_3000_0003), "0x0000000130000003");
    }
}
