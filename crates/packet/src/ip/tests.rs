use super::*;

fn v4(header: &[(usize, u8)]) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&50u16.to_be_bytes());
    frame[23] = IPPROTO_UDP;
    for (at, value) in header {
        frame[14 + at] = *value;
    }
    frame
}

/// An IPv6 frame of these extension headers, each given its own bytes but for "next header".
fn v6(extensions: &[(u8, &[u8])], transport: u8) -> Vec<u8> {
    let mut frame = vec![0; 54];
    frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    let mut next_at = 20;
    for (protocol, bytes) in extensions {
        frame[next_at] = *protocol;
        next_at = frame.len();
        frame.push(0);
        frame.extend(*bytes);
    }
    frame[next_at] = transport;
    frame.resize(frame.len() + 20, 0);
    frame
}

#[test]
fn ipv4_with_and_without_options() {
    let ip = Ip::parse(&v4(&[])).unwrap();
    assert_eq!((ip.l3, ip.l4, ip.protocol, ip.length), (14, 34, IPPROTO_UDP, 50));
    assert!(!ip.fragment && ip.complete);
    assert_eq!(Ip::parse(&v4(&[(0, 0x4f)])).unwrap().l4, 74);
    assert_eq!(Ip::parse(&v4(&[(0, 0x44)])), None, "header shorter than a header");
    assert_eq!(Ip::parse(&v4(&[(0, 0x65)])), None, "version 6 in an IPv4 frame");
    assert_eq!(Ip::parse(&v4(&[])[..33]), None);
}

#[test]
fn ipv4_fragments() {
    for (flags, fragment) in [(0x40, false), (0x80, false), (0x20, true), (0x01, true)] {
        assert_eq!(Ip::parse(&v4(&[(6, flags)])).unwrap().fragment, fragment, "{flags:#x}");
    }
    assert!(Ip::parse(&v4(&[(7, 1)])).unwrap().fragment);
}

#[test]
fn ipv6_extension_headers_are_stepped_over() {
    let eight = [0; 7];
    let sixteen = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let authentication = [4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let frame = v6(
        &[
            (IPPROTO_HOPOPTS, &eight),
            (IPPROTO_DSTOPTS, &sixteen),
            (IPPROTO_AH, &authentication),
            (IPPROTO_ROUTING, &eight),
        ],
        IPPROTO_TCP,
    );
    let ip = Ip::parse(&frame).unwrap();
    assert_eq!((ip.l4, ip.protocol), (54 + 8 + 16 + 24 + 8, IPPROTO_TCP));
    assert!(ip.complete && !ip.fragment && !ip.routed);
    assert_eq!(ip.addresses(&frame).len(), 32);
}

#[test]
fn an_ipv6_routing_header_with_segments_left_is_noticed() {
    let frame = v6(&[(IPPROTO_ROUTING, &[0, 4, 1, 0, 0, 0, 0])], IPPROTO_UDP);
    assert!(Ip::parse(&frame).unwrap().routed);
}

#[test]
fn ipv6_fragments() {
    let first = v6(&[(IPPROTO_FRAGMENT, &[0, 0, 1, 0, 0, 0, 9])], IPPROTO_UDP);
    let ip = Ip::parse(&first).unwrap();
    assert_eq!((ip.l4, ip.protocol, ip.fragment), (62, IPPROTO_UDP, true));
    // What follows a later fragment's header is payload that may look like a header.
    let later = v6(&[(IPPROTO_FRAGMENT, &[0, 0x10, 0, 0, 0, 0, 9])], IPPROTO_DSTOPTS);
    let ip = Ip::parse(&later).unwrap();
    assert_eq!((ip.l4, ip.protocol, ip.fragment), (62, IPPROTO_DSTOPTS, true));
}

#[test]
fn the_walk_is_bounded_and_says_when_it_gave_up() {
    let many = vec![(IPPROTO_DSTOPTS, &[0u8; 7][..]); 20];
    let ip = Ip::parse(&v6(&many, IPPROTO_TCP)).unwrap();
    assert!(!ip.complete);
    assert_eq!(ip.l4, 54 + 8 * EXTENSIONS_MAX);
    // The head ends within an extension header.
    let frame = v6(&[(IPPROTO_HOPOPTS, &[0; 7])], IPPROTO_TCP);
    let ip = Ip::parse(&frame[..56]).unwrap();
    assert!(!ip.complete);
    assert_eq!((ip.l4, ip.protocol), (54, IPPROTO_HOPOPTS));
}
