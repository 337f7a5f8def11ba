use super::*;

#[test]
fn addresses_read_and_write_the_same() {
    let mac: Mac = "52:54:00:12:ab:CD".parse().unwrap();
    assert_eq!(mac, Mac([0x52, 0x54, 0, 0x12, 0xab, 0xcd]));
    assert_eq!(mac.to_string(), "52:54:00:12:ab:cd");
    assert_eq!(mac.to_u64(), 0x5254_0012_abcd);
    assert_eq!(Mac::from_u64(mac.to_u64()), mac);
    assert_eq!("52-54-00-12-ab-cd".parse(), Ok(mac));
    for bad in
        ["", "52:54:00:12:ab", "52:54:00:12:ab:cd:ef", "52:54:00:12:ab:+d", "5:254:00:12:ab:cd"]
    {
        assert_eq!(bad.parse::<Mac>(), Err(MacParseError), "{bad}");
    }
}

#[test]
fn kinds_of_address() {
    assert!(Mac::BROADCAST.is_multicast() && !Mac::BROADCAST.is_reserved());
    assert!(Mac::ZERO.is_zero() && !Mac::ZERO.is_multicast());
    for (last, reserved) in [(0x00, true), (0x0e, true), (0x0f, true), (0x10, false)] {
        assert_eq!(Mac([0x01, 0x80, 0xc2, 0, 0, last]).is_reserved(), reserved);
    }
    assert!(!Mac([0x01, 0x80, 0xc2, 0, 1, 0]).is_reserved());
}

#[test]
fn the_outermost_customer_tag_is_the_tag() {
    let mut frame = [0u8; 22];
    frame[12..18].copy_from_slice(&[0x81, 0, 0xe0, 0x05, 0x08, 0]);
    let eth = Eth::parse(&frame).unwrap();
    assert_eq!((eth.tag, eth.ethertype), (Some(Tci(0xe005)), ETH_P_IP));
    assert_eq!(eth.tag.unwrap().vid(), 5);
    assert_eq!(eth.tag.unwrap().with_vid(9), Tci(0xe009));
    assert!(!eth.is_stacked());
    assert_eq!(network_layer(&frame), Some((ETH_P_IP, 18)));

    frame[16..22].copy_from_slice(&[0x81, 0, 0, 6, 0x86, 0xdd]);
    assert!(Eth::parse(&frame).unwrap().is_stacked());
    assert_eq!(network_layer(&frame), Some((ETH_P_IPV6, 22)));

    frame[12..14].copy_from_slice(&[0x88, 0xa8]);
    let eth = Eth::parse(&frame).unwrap();
    assert_eq!((eth.tag, eth.ethertype), (None, ETH_P_8021AD));
    assert_eq!(network_layer(&frame), Some((ETH_P_IPV6, 22)));
}

#[test]
fn a_cut_tag_is_no_header() {
    let mut frame = [0u8; 18];
    frame[12..14].copy_from_slice(&[0x81, 0]);
    for len in 0..18 {
        assert_eq!(Eth::parse(&frame[..len]), None, "{len}");
    }
    assert!(Eth::parse(&frame).is_some());
}
