use super::*;
use crate::arp::announcement;

const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const OWN: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const OTHER: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

fn frame(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&[0xff; 6][..], &MAC.0, &ethertype.to_be_bytes(), payload].concat()
}

fn arp_packet(operation: u8, sender: [u8; 4]) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, operation];
    frame(ETH_P_ARP, &[&head[..], &MAC.0, &sender, &[0; 6], &[10, 0, 0, 9]].concat())
}

fn v4_packet(protocol: u8, fragment: u16, from: [u8; 4], to: [u8; 4], rest: &[u8]) -> Vec<u8> {
    let [f0, f1] = fragment.to_be_bytes();
    let head = [0x45, 0, 0, 60, 0, 0, f0, f1, 64, protocol, 0, 0];
    frame(ETH_P_IP, &[&head[..], &from, &to, rest].concat())
}

/// `next` is the first next header, `rest` all behind the fixed header.
fn v6_packet(next: u8, from: [u8; 16], rest: &[u8]) -> Vec<u8> {
    let head = [0x60, 0, 0, 0, 0, rest.len() as u8, next, 255];
    frame(ETH_P_IPV6, &[&head[..], &from, &[0xff; 16], rest].concat())
}

fn nd(kind: u8, target: [u8; 16], options: &[u8]) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target, options].concat()
}

fn v4_from(a: u8) -> Option<IpAddr> {
    Some(Ipv4Addr::new(10, 0, 0, a).into())
}

fn v6_of(octets: [u8; 16]) -> Option<IpAddr> {
    Some(Ipv6Addr::from(octets).into())
}

#[test]
fn arp_claims_its_sender() {
    let both = |source| Claims { source, target: None, station: Some(MAC) };
    assert_eq!(Claims::read(&arp_packet(1, [10, 0, 0, 1])), Ok(both(v4_from(1))));
    assert_eq!(Claims::read(&arp_packet(2, [10, 0, 0, 1])), Ok(both(v4_from(1))));
    // A probe has no address yet, an answer must have one.
    assert_eq!(Claims::read(&arp_packet(1, [0; 4])), Ok(both(None)));
    assert_eq!(Claims::read(&arp_packet(2, [0; 4])), Err(Unclear));
    assert_eq!(Claims::read(&announcement(MAC)), Ok(both(None)));
    let mut other = arp_packet(1, [10, 0, 0, 1]);
    other[18] = 8;
    assert_eq!(Claims::read(&other), Err(Unclear));
    let short = arp_packet(1, [10, 0, 0, 1]);
    assert_eq!(Claims::read(&short[..41]), Err(Unclear));
}

#[test]
fn a_tag_hides_nothing_and_three_do() {
    let plain = arp_packet(1, [10, 0, 0, 1]);
    let mut tagged = plain.clone();
    for tags in 1..=3 {
        tagged.splice(12..12, [0x81, 0, 0, 5]);
        let expected = if tags < 3 { Claims::read(&plain) } else { Err(Unclear) };
        assert_eq!(Claims::read(&tagged), expected, "{tags}");
    }
    assert_eq!(Claims::read(&frame(0x88b5, &[0; 46])), Err(Unclear));
    assert_eq!(Claims::read(&frame(ETH_P_IP, &[0x45; 19])), Err(Unclear));
    assert_eq!(Claims::read(&[0; 13]), Err(Unclear));
}

#[test]
fn without_an_ipv4_address_one_may_only_ask_for_one() {
    let ports = |from: u16, to: u16| [from.to_be_bytes(), to.to_be_bytes()].concat();
    let all = [255; 4];
    let ask = v4_packet(17, 0, [0; 4], all, &ports(68, 67));
    assert_eq!(Claims::read(&ask), Ok(Claims::default()));
    for other in [
        v4_packet(17, 0, [0; 4], all, &ports(67, 68)),
        v4_packet(17, 0, [0; 4], [10, 0, 0, 9], &ports(68, 67)),
        v4_packet(6, 0, [0; 4], all, &ports(68, 67)),
        v4_packet(17, 0x2000, [0; 4], all, &ports(68, 67)),
        v4_packet(17, 0, [0; 4], all, &[]),
    ] {
        assert_eq!(Claims::read(&other), Err(Unclear));
    }
    let any = v4_packet(1, 0x2001, [10, 0, 0, 3], all, &[]);
    assert_eq!(Claims::read(&any), Ok(Claims { source: v4_from(3), ..Claims::default() }));
}

#[test]
fn neighbour_discovery_claims_its_target_and_stations() {
    let claims = |packet: &[u8]| Claims::read(packet);
    let with = |source, target, station| Ok(Claims { source, target, station });
    let option = |kind| [&[kind, 1][..], &MAC.0].concat();
    let padding = [14, 1, 0, 0, 0, 0, 0, 0];

    let solicit = |from, options: &[u8]| v6_packet(58, from, &nd(135, OTHER, options));
    assert_eq!(claims(&solicit(OWN, &option(1))), with(v6_of(OWN), None, Some(MAC)));
    assert_eq!(
        claims(&solicit(OWN, &[&padding[..], &option(1)].concat())),
        with(v6_of(OWN), None, Some(MAC))
    );
    assert_eq!(claims(&solicit([0; 16], &[])), with(None, v6_of(OTHER), None));
    assert_eq!(claims(&solicit(OWN, &[9, 0, 9, 9])), with(v6_of(OWN), None, None));

    let advertise = |from| v6_packet(58, from, &nd(136, OTHER, &option(2)));
    assert_eq!(claims(&advertise(OWN)), with(v6_of(OWN), v6_of(OTHER), Some(MAC)));
    assert_eq!(claims(&advertise([0; 16])), Err(Unclear));
    assert_eq!(claims(&v6_packet(58, OWN, &nd(136, OTHER, &[])[..20])), Err(Unclear));

    let router = [&[133, 0, 0, 0, 0, 0, 0, 0][..], &option(1)].concat();
    assert_eq!(claims(&v6_packet(58, [0; 16], &router)), with(None, None, Some(MAC)));
}

#[test]
fn nothing_hides_behind_extension_headers_or_fragments() {
    let advertise = nd(136, OTHER, &[]);
    let options = [[58, 0, 1, 4, 0, 0, 0, 0].to_vec(), advertise.clone()].concat();
    let behind = v6_packet(60, OWN, &options);
    assert_eq!(Claims::read(&behind).map(|claims| claims.target), Ok(v6_of(OTHER)));
    // The headers go on behind the end of what is looked at.
    let long = [&[58, 30, 1, 4][..], &[0; 60]].concat();
    assert_eq!(Claims::read(&v6_packet(60, OWN, &long)), Err(Unclear));
    let fragment = |field: u16, rest: &[u8]| {
        let [a, b] = field.to_be_bytes();
        v6_packet(44, OWN, &[&[58, 0, a, b, 0, 0, 0, 7][..], rest].concat())
    };
    // RFC 6980: discovery is never fragmented, also not "atomically".
    for field in [1, 0] {
        assert_eq!(Claims::read(&fragment(field, &advertise)), Err(Unclear));
    }
    let own = Ok(Claims { source: v6_of(OWN), ..Claims::default() });
    assert_eq!(Claims::read(&fragment(8, &advertise)), own);
    assert_eq!(Claims::read(&fragment(1, &[128, 0, 0, 0])), own);
    // Without an address: listeners only.
    for (kind, may) in [(143, true), (131, true), (128, false), (134, false), (137, false)] {
        let read = Claims::read(&v6_packet(58, [0; 16], &[kind, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(read.is_ok(), may, "{kind}");
    }
    assert_eq!(Claims::read(&v6_packet(17, [0; 16], &[0; 8])), Err(Unclear));
}

proptest::proptest! {
    #[test]
    fn any_bytes_can_be_read(
        bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..140),
        kind in proptest::sample::select(vec![ETH_P_IP, ETH_P_IPV6, ETH_P_ARP, ETH_P_RARP]),
        next in proptest::prelude::any::<u8>(),
    ) {
        let _ = Claims::read(&bytes);
        let mut framed = frame(kind, &bytes);
        if let Some(version) = framed.get_mut(14) {
            *version = if kind == ETH_P_IP { 0x45 } else { 0x60 };
        }
        if let Some(byte) = framed.get_mut(20) {
            *byte = next;
        }
        let _ = Claims::read(&framed);
    }
}
