//! In a network namespace, with entries that no packets made.

use super::super::tests::{netns::Netns, within};
use super::*;
use crate::state::{Filters, Stateful};

/// `TCP_CONNTRACK_CLOSE`.
const CLOSE: u8 = 7;

fn flow() -> Flow {
    let [source, destination] = ["10.1.1.5:4000", "10.1.2.5:80"].map(|text| text.parse().unwrap());
    Flow { protocol: Transport::Tcp, source, destination }
}

/// Makes an entry, or changes it: its state, and how long it stays.
fn write(socket: &mut Socket, tcp_state: u8, seconds: u32) {
    let mut body = about(&flow());
    let Flow { protocol, source, destination } = flow();
    let reply = about(&Flow { protocol, source: destination, destination: source });
    for attribute in attributes(&reply, 4) {
        super::attribute(&mut body, CTA_TUPLE_REPLY | NLA_F_NESTED, attribute.unwrap().1);
    }
    attribute(&mut body, CTA_STATUS, &IPS_NEEDED.to_be_bytes());
    attribute(&mut body, CTA_TIMEOUT, &seconds.to_be_bytes());
    let (mut tcp, mut info) = (Vec::new(), Vec::new());
    attribute(&mut tcp, CTA_PROTOINFO_TCP_STATE, &[tcp_state]);
    attribute(&mut info, CTA_PROTOINFO_TCP | NLA_F_NESTED, &tcp);
    attribute(&mut body, CTA_PROTOINFO | NLA_F_NESTED, &info);
    socket.request(IPCTNL_MSG_CT_NEW, NLM_F_CREATE, &body, |_| Ok(())).unwrap();
}

#[test]
fn one_that_was_kept_alive_after_its_end_has_the_time_of_its_end() {
    within(&Netns::new(), || {
        let (mut state, mut filters) = (State::default(), Filters::default());
        filters.set(Family::V4, Some(Stateful { nat: true }));
        state.set_filters(filters);
        state.connections_max = 16;
        let mut conntrack = Conntrack::open().unwrap();
        let mut socket = Socket::requests(Some(protocol::NETFILTER)).unwrap();
        conntrack.settle(&mut state).unwrap();

        write(&mut socket, TCP_CONNTRACK_ESTABLISHED, 100_000);
        conntrack.settle(&mut state).unwrap();
        // As if it was taken: one that was written by hand has room for a SYN proxy's data, and is not.
        let Flow { protocol, source, destination } = flow();
        let reply = Flow { protocol, source: destination, destination: source };
        let until = Instant::now() + Duration::from_secs(100_000);
        conntrack.known.insert(flow(), Known { reply, heard: true, until });

        // It ends, and its packets are counted before the event is read.
        write(&mut socket, CLOSE, 10);
        conntrack.used(&mut state, &flow());
        let now = conntrack.get(&flow()).unwrap().unwrap();
        assert!(now.timeout > Duration::from_secs(100_000), "{now:?}");
        conntrack.settle(&mut state).unwrap();
        assert!(conntrack.known.is_empty());
        let now = conntrack.get(&flow()).unwrap().unwrap();
        assert_eq!(now.tcp.unwrap().0, CLOSE);
        assert!(now.timeout <= Duration::from_secs(10), "{now:?}");
    });
}
