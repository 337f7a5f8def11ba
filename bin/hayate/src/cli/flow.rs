//! `hayate flow`.

use super::args::FlowWhy;
use super::client::Client;
use super::fail::Failure;
use super::out;
use api::{Flow, Name, Step, Why};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Protocols by name.
const PROTOCOLS: [(&str, u8); 3] = [("tcp", 6), ("udp", 17), ("icmp", 1)];
/// Number of ICMP over IPv6.
const ICMPV6: u8 = 58;

pub(super) fn why(client: &Client, args: &FlowWhy) -> Result<(), Failure> {
    let flow = parse(&args.from, &args.description.join(" ")).map_err(Failure::usage)?;
    flow.check()?;
    let why: Why = client.post("/v1/flow/why", &flow)?;
    if args.output.json { out::json(&why) } else { out::text(&text(&why)) }
}

/// Reads `src=10.0.1.2 dst=10.0.9.9 ...`, `10.0.1.2:1234 > 10.0.9.9:80 tcp ...`, or both mixed.
fn parse(from: &Name, description: &str) -> Result<Flow, String> {
    let spaced = description.replace('>', " > ");
    let mut words = spaced.split_whitespace().peekable();
    let (mut src, mut dst, mut proto) = (None, None, None);
    let (mut sport, mut dport, mut ttl, mut size) = (None, None, None, None);
    let (mut vlan, mut smac, mut dmac) = (None, None, None);
    while let Some(word) = words.next() {
        if words.next_if_eq(&">").is_some() {
            let to = words.next().ok_or("there is nothing behind >")?;
            let ((from, from_port), (to, to_port)) = (endpoint(word)?, endpoint(to)?);
            (src, dst) = (Some(from), Some(to));
            (sport, dport) = (from_port.or(sport), to_port.or(dport));
            continue;
        }
        let Some((key, value)) = word.split_once('=') else {
            proto = Some(word);
            continue;
        };
        match key {
            "src" => src = Some(number(key, value)?),
            "dst" => dst = Some(number(key, value)?),
            "proto" => proto = Some(value),
            "sport" => sport = Some(number(key, value)?),
            "dport" => dport = Some(number(key, value)?),
            "ttl" => ttl = Some(number(key, value)?),
            "size" => size = Some(number(key, value)?),
            "vlan" => vlan = Some(number(key, value)?),
            "smac" => smac = Some(number(key, value)?),
            "dmac" => dmac = Some(number(key, value)?),
            _ => {
                let keys = "src, dst, proto, sport, dport, ttl, size, vlan, smac, dmac";
                return Err(format!("{key:?} is none of {keys}"));
            }
        }
    }
    let (Some(src), Some(dst)) = (src, dst) else {
        return Err("say from where to where: src=10.0.1.2 dst=10.0.9.9".to_owned());
    };
    let proto = proto.map(|word| protocol(word, src)).transpose()?;
    let from = from.clone();
    Ok(Flow { from, src, dst, proto, sport, dport, ttl, size, vlan, smac, dmac })
}

fn number<T: FromStr<Err: std::fmt::Display>>(key: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|error| format!("{key}={value}: {error}"))
}

/// `10.0.1.2`, `10.0.1.2:80`, `2001:db8::1` or `[2001:db8::1]:80`.
fn endpoint(text: &str) -> Result<(IpAddr, Option<u16>), String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok((address.ip(), Some(address.port())));
    }
    let address = text.parse().map_err(|_| {
        format!("{text:?} is not an address like 10.0.1.2, 10.0.1.2:80 or [2001:db8::1]:80")
    })?;
    Ok((address, None))
}

fn protocol(word: &str, src: IpAddr) -> Result<u8, String> {
    match PROTOCOLS.iter().find(|(name, _)| *name == word) {
        Some(("icmp", _)) if src.is_ipv6() => Ok(ICMPV6),
        Some((_, number)) => Ok(*number),
        None => word
            .parse()
            .map_err(|_| format!("{word:?} is not a protocol: tcp, udp, icmp or a number")),
    }
}

fn text(why: &Why) -> String {
    let flow = &why.flow;
    let mac = |mac: Option<api::Mac>| mac.map(|mac| mac.to_string()).unwrap_or_default();
    // Writing to a String cannot fail, here and below.
    let mut text = String::new();
    let _ = writeln!(text, "frame {} > {}", mac(flow.smac), mac(flow.dmac));
    for step in &why.steps {
        let _ = match step {
            Step::Arrived { port, network, vlan: None } => {
                writeln!(text, "comes in by port {port} of network {network}")
            }
            Step::Arrived { port, network, vlan: Some(vlan) } => {
                writeln!(text, "comes in by port {port} of network {network}, tagged {vlan}")
            }
            Step::Forward { port } => writeln!(text, "leaves by port {port}"),
            Step::Flood { ports } => {
                let ports: Vec<&str> = ports.iter().map(Name::as_str).collect();
                let ports = ports.join(", ");
                writeln!(text, "is for an address nobody was seen with: leaves by {ports}")
            }
            Step::Dropped { reason, meaning } => {
                writeln!(text, "is dropped: {reason}: {meaning}")
            }
            Step::Bypassed {
                router,
                ingress,
                prefix,
                connection,
                nexthop,
                egress,
                smac,
                dmac,
                port,
            } => {
                let what = match (prefix, connection) {
                    (Some(prefix), _) => prefix.clone(),
                    (None, Some(connection)) => {
                        format!("its connection, from there on {connection},")
                    }
                    (None, None) => "it".to_owned(),
                };
                writeln!(
                    text,
                    "bypasses router {router}: in by {ingress}, {what} takes next hop {nexthop}, \
                     out by {egress}\n  rewritten: frame {smac} > {dmac}, one hop less; \
                     that is behind port {port}"
                )
            }
            Step::ToRouter { router, reason } => {
                writeln!(text, "goes to router {router}: {reason}")
            }
            other => writeln!(text, "{other:?}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Flow, String> {
        parse(&"a".parse().unwrap(), text)
    }

    #[test]
    fn both_forms_say_the_same() {
        let words = read("src=10.0.1.2 dst=10.0.9.9 proto=udp sport=1234 dport=80 ttl=3").unwrap();
        assert_eq!(read("10.0.1.2:1234 > 10.0.9.9:80 udp ttl=3").unwrap(), words);
        assert_eq!(read("10.0.1.2:1234>10.0.9.9:80 ttl=3 proto=17").unwrap(), words);
        let six = read("[2001:db8::1]:5 > 2001:db8::2 icmp smac=02:00:00:00:00:01").unwrap();
        assert_eq!((six.proto, six.sport, six.dport), (Some(58), Some(5), None));
    }

    #[test]
    fn mistakes_say_what_is_allowed() {
        for (text, part) in [
            ("src=10.0.0.1", "dst=10.0.9.9"),
            ("10.0.0.1 >", "nothing behind"),
            ("10.0.0.1 > nowhere", "10.0.1.2:80"),
            ("src=10.0.0.1 dst=10.0.0.2 ttl=300", "ttl=300"),
            ("src=10.0.0.1 dst=10.0.0.2 color=red", "smac, dmac"),
            ("src=10.0.0.1 dst=10.0.0.2 sctp", "tcp, udp, icmp"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
