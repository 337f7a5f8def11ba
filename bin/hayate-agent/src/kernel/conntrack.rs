//! Connections that conntrack knows to be established, and keeping them alive.
//!
//! **What is taken.** TCP in state ESTABLISHED and UDP that went both ways (ASSURED), without anything
//! that the kernel does to their packets besides translating addresses and ports: no helper, no
//! sequence numbers to adjust, no zone, no SYN proxy, no flow table. Before one is taken, window tracking is made
//! liberal in both directions: the kernel does not see what passes it by, and must not take what
//! comes later (FIN, RST) for invalid. That the kernel reports events of it must have shown: it says
//! nothing of connections that began while nobody listened.
//!
//! **Keeping alive.** [`Conntrack::used`] sets the timeout of a connection anew, as its packets would have.
//! One that is silent is given back to the kernel before its timeout ends ([`Conntrack::tick`]), so
//! that its next packet goes by the entry that is still there.
//!
//! **Failure.** An entry that cannot be read or changed is not taken.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use api::channel::{Flow, Transport};
use rustix::net::netlink as protocol;

use super::checks;
use super::uapi::*;
use crate::state::{Family, State};
use netlink::{Events, Message, Socket, attribute, attributes, be32, malformed};

/// Counters of connections are read between so often.
const INTERVAL: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];
/// After connections were left out for want of room, all are looked at again at the earliest.
const AGAIN: Duration = Duration::from_secs(10);

/// Sockets to conntrack, and what is known of the connections that were taken.
#[derive(Debug)]
pub(super) struct Conntrack {
    requests: Socket,
    events: Socket,
    known: HashMap<Flow, Known>,
    timeouts: Timeouts,
    /// So many connections may be taken.
    room: usize,
    /// Since when some were left out.
    full: Option<Instant>,
    /// All have to be looked at.
    due: bool,
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug)]
struct Known {
    reply: Flow,
    /// The kernel reports events of it.
    heard: bool,
    /// When the kernel forgets it, unless packets come.
    until: Instant,
}

/// Time until a silent connection is forgotten.
#[derive(Clone, Copy, Debug)]
struct Timeouts {
    tcp: Duration,
    udp: Duration,
}

/// An entry, or as much of it as a message says.
#[derive(Clone, Debug)]
struct Entry {
    original: Flow,
    reply: Flow,
    status: u32,
    timeout: Duration,
    /// State, and flags of both directions.
    tcp: Option<(u8, [u8; 2])>,
    /// Something is done to it that the switch cannot do.
    special: bool,
}

impl Conntrack {
    /// Begins to listen.
    ///
    /// # Errors
    /// A socket cannot be had.
    pub(super) fn open() -> io::Result<Self> {
        let kind = Some(protocol::NETFILTER);
        Ok(Self {
            events: Socket::events(kind, CONNTRACK_GROUPS)?,
            requests: Socket::requests(kind)?,
            known: HashMap::new(),
            timeouts: Timeouts::read(),
            room: 0,
            full: None,
            due: true,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }

    /// Rules have changed: all connections have to be looked at again.
    pub(super) fn doubt(&mut self) {
        self.due = true;
    }

    /// Follows events, and looks at all connections if that is due.
    ///
    /// # Errors
    /// The kernel cannot be read.
    pub(super) fn settle(&mut self, state: &mut State) -> io::Result<()> {
        if self.room != state.connections_max {
            self.room = state.connections_max;
            self.due = true;
        }
        self.follow(state)?;
        if !std::mem::take(&mut self.due) {
            return Ok(());
        }
        self.known.clear();
        self.full = None;
        state.clear_connections();
        if self.room > 0 {
            let request = [AF_UNSPEC, 0, 0, 0];
            let found = self.requests.dump_into(IPCTNL_MSG_CT_GET, &request, entry_into);
            for entry in found.or_else(checks::not_there)? {
                self.consider(state, &entry, false);
            }
            // What the kernel says to what was changed.
            self.follow(state)?;
        }
        Ok(())
    }

    fn follow(&mut self, state: &mut State) -> io::Result<()> {
        let mut came = Vec::new();
        let events = self.events.read(|message| {
            let gone = message.kind == IPCTNL_MSG_CT_DELETE;
            if gone || message.kind == IPCTNL_MSG_CT_NEW {
                let new = message.flags & NLM_F_CREATE != 0;
                came.extend(entry(message)?.map(|entry| (entry, gone, new)));
            }
            Ok(())
        })?;
        for (entry, gone, new) in came {
            if gone || new {
                self.forget(state, &entry.original);
            }
            if !gone {
                self.consider(state, &entry, true);
            }
        }
        if events == Events::Lost {
            tracing::info!("events of conntrack were lost; all connections are looked at again");
            state.clear_connections();
            self.due = true;
        }
        Ok(())
    }

    /// Takes a connection, keeps it or gives it up. `heard`: an event says so.
    fn consider(&mut self, state: &mut State, entry: &Entry, heard: bool) {
        let key = entry.original;
        if !entry.may_pass() || !translates(state, entry) {
            self.leave_to_end(entry);
            self.forget(state, &key);
            return;
        }
        if let Some(known) = self.known.get_mut(&key) {
            if !entry.is_liberal() {
                self.forget(state, &key);
            } else if heard && !known.heard {
                known.heard = true;
                self.rest_or_pass(state, &key);
            }
            return;
        }
        if state.is_own(key.source.ip()) || state.is_own(entry.reply.source.ip()) {
            return;
        }
        if self.known.len() >= self.room {
            self.full.get_or_insert_with(Instant::now);
            return;
        }
        match self.prepare(entry) {
            Ok(Some(entry)) if translates(state, &entry) => {
                let until = Instant::now() + entry.timeout;
                self.known.insert(key, Known { reply: entry.reply, heard, until });
                self.rest_or_pass(state, &key);
            }
            Ok(_) => {}
            Err(error) => tracing::debug!("a connection is not taken: {error}"),
        }
    }

    /// Makes window tracking liberal; returns the entry as it is then, if it may pass.
    fn prepare(&mut self, entry: &Entry) -> io::Result<Option<Entry>> {
        self.change(&entry.original, None)?;
        let now = self.get(&entry.original)?;
        Ok(now.filter(|now| now.reply == entry.reply && now.may_pass() && now.is_liberal()))
    }

    /// Changes an entry so that it holds without its packets, and its timeout.
    fn change(&mut self, original: &Flow, timeout: Option<Duration>) -> io::Result<()> {
        let mut body = about(original);
        if let Some(timeout) = timeout {
            let seconds = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX);
            attribute(&mut body, CTA_TIMEOUT, &seconds.to_be_bytes());
        }
        if original.protocol == Transport::Tcp {
            // The highest acknowledgement that was seen is too old to judge a RST by.
            let mask = IP_CT_TCP_FLAG_BE_LIBERAL | IP_CT_TCP_FLAG_MAXACK_SET;
            let flags = [IP_CT_TCP_FLAG_BE_LIBERAL, mask];
            let mut tcp = Vec::new();
            attribute(&mut tcp, CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, &flags);
            attribute(&mut tcp, CTA_PROTOINFO_TCP_FLAGS_REPLY, &flags);
            let mut info = Vec::new();
            attribute(&mut info, CTA_PROTOINFO_TCP | NLA_F_NESTED, &tcp);
            attribute(&mut body, CTA_PROTOINFO | NLA_F_NESTED, &info);
        }
        self.requests.request(IPCTNL_MSG_CT_NEW, 0, &body, |_| Ok(()))
    }

    fn get(&mut self, original: &Flow) -> io::Result<Option<Entry>> {
        let mut found = None;
        self.requests.request(IPCTNL_MSG_CT_GET, 0, &about(original), |message| {
            found = entry(message)?.filter(|entry| entry.original == *original);
            Ok(())
        })?;
        Ok(found)
    }

    /// Lets a connection pass if the kernel reports events of it and has time left for it.
    fn rest_or_pass(&self, state: &mut State, key: &Flow) {
        let Some(known) = self.known.get(key) else { return };
        if known.heard && known.until > Instant::now() + self.timeouts.margin() {
            state.set_connection(*key, known.reply);
        } else {
            state.remove_connection(key);
        }
    }

    /// If it has ended, as an event says: [`Self::used`] may have kept it alive before that event was
    /// read. Then it has the time that the kernel gave it at its end again, not that of days.
    fn leave_to_end(&mut self, ended: &Entry) {
        let key = &ended.original;
        let Some(known) = self.known.get(key).filter(|_| !ended.may_pass()) else { return };
        // As the kernel tells it in whole seconds.
        let kept = known.until.saturating_duration_since(Instant::now() + Duration::from_secs(2));
        let set_back = match self.get(key) {
            Ok(Some(now)) if !now.may_pass() && now.timeout > ended.timeout.max(kept) => {
                self.change(key, Some(ended.timeout))
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = set_back {
            tracing::debug!("a connection that ended may be known for longer: {error}");
        }
    }

    fn forget(&mut self, state: &mut State, key: &Flow) {
        if self.known.remove(key).is_some() {
            state.remove_connection(key);
        }
    }

    /// Packets of this connection pass the kernel by from now on. Those since [`Self::prepare`] did not:
    /// the kernel has noted their acknowledgements, by which it would judge a later RST.
    pub(super) fn begun(&mut self, original: &Flow) {
        if self.known.contains_key(original)
            && let Err(error) = self.change(original, None)
        {
            tracing::debug!("a connection is not prepared again: {error}");
        }
    }

    /// Packets of this connection, one direction of which is given, passed the kernel by.
    pub(super) fn used(&mut self, state: &mut State, original: &Flow) {
        if !self.known.contains_key(original) {
            return;
        }
        let timeout = self.timeouts.of(original.protocol);
        match self.change(original, Some(timeout)) {
            Ok(()) => {
                if let Some(known) = self.known.get_mut(original) {
                    known.until = Instant::now() + timeout;
                }
            }
            Err(error) => {
                tracing::debug!("a connection cannot be kept alive: {error}");
                self.forget(state, original);
            }
        }
    }

    /// All connections that were used are told: looks at those that were not.
    pub(super) fn tick(&mut self, state: &mut State) {
        self.timeouts = Timeouts::read();
        state.connection_interval = self.timeouts.interval();
        let soon = Instant::now() + self.timeouts.margin();
        let silent: Vec<Flow> = self
            .known
            .iter()
            .filter(|(_, known)| known.until <= soon)
            .map(|(key, _)| *key)
            .collect();
        for key in silent {
            match self.get(&key) {
                Ok(Some(entry)) if entry.may_pass() && entry.is_liberal() => {
                    if let Some(known) = self.known.get_mut(&key) {
                        known.until = Instant::now() + entry.timeout;
                    }
                    self.rest_or_pass(state, &key);
                }
                Ok(_) | Err(_) => self.forget(state, &key),
            }
        }
        let some_room = self.known.len() < self.room / 4 * 3;
        self.due |= some_room && self.full.is_some_and(|since| since.elapsed() >= AGAIN);
    }
}

impl Timeouts {
    fn read() -> Self {
        let read = |name: &str| {
            let path = format!("/proc/sys/net/netfilter/nf_conntrack_{name}");
            let seconds = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
            Duration::from_secs(seconds.unwrap_or(0))
        };
        Self { tcp: read("tcp_timeout_established"), udp: read("udp_timeout_stream") }
    }

    fn of(self, protocol: Transport) -> Duration {
        match protocol {
            Transport::Tcp => self.tcp,
            Transport::Udp => self.udp,
        }
    }

    /// Between two readings of the counters.
    fn interval(self) -> Duration {
        let [least, most] = INTERVAL;
        (self.tcp.min(self.udp) / 5).clamp(least, most)
    }

    /// A connection that has less time left is the kernel's: its packets may not be noticed in time.
    fn margin(self) -> Duration {
        self.interval() * 2
    }
}

impl Entry {
    /// As far as the message says.
    fn may_pass(&self) -> bool {
        let established = match (self.original.protocol, self.tcp) {
            (Transport::Tcp, Some((state, _))) => state == TCP_CONNTRACK_ESTABLISHED,
            (Transport::Tcp, None) | (Transport::Udp, _) => true,
        };
        let status = self.status & (IPS_NEEDED | IPS_UNFIT) == IPS_NEEDED;
        established && status && !self.special && self.original.protocol == self.reply.protocol
    }

    /// As far as the message says, too.
    fn is_liberal(&self) -> bool {
        self.tcp.is_none_or(|(_, flags)| {
            flags.iter().all(|flags| flags & IP_CT_TCP_FLAG_BE_LIBERAL != 0)
        })
    }
}

/// Whether the kernel's rules are such that connections of this version pass, and are translated as
/// the entry says.
fn translates(state: &State, entry: &Entry) -> bool {
    let (original, reply) = (entry.original, entry.reply);
    let family = Family::of(original.source.ip());
    let plain = original.source == reply.destination && original.destination == reply.source;
    let same = original.source.is_ipv4() == reply.source.is_ipv4();
    same && state.filters().of(family).is_some_and(|rules| rules.nat || plain)
}

fn entry_into(found: &mut Vec<Entry>, message: &Message<'_>) -> io::Result<()> {
    if message.kind == IPCTNL_MSG_CT_NEW {
        found.extend(entry(message)?.filter(Entry::may_pass));
    }
    Ok(())
}

/// Reads an entry; nothing if it is neither of TCP nor of UDP.
fn entry(message: &Message<'_>) -> io::Result<Option<Entry>> {
    let (mut original, mut reply, mut tcp) = (None, None, None);
    let (mut status, mut timeout, mut special) = (0, 0, false);
    for attribute in attributes(message.body, 4) {
        match attribute? {
            (CTA_TUPLE_ORIG, value) => original = tuple(value)?,
            (CTA_TUPLE_REPLY, value) => reply = tuple(value)?,
            (CTA_STATUS, value) => status = be32(value).ok_or_else(malformed)?,
            (CTA_TIMEOUT, value) => timeout = be32(value).ok_or_else(malformed)?,
            (CTA_PROTOINFO, value) => {
                for attribute in attributes(value, 0) {
                    if let (CTA_PROTOINFO_TCP, value) = attribute? {
                        tcp = Some(tcp_info(value)?);
                    }
                }
            }
            (
                CTA_HELP | CTA_TUPLE_MASTER | CTA_SEQ_ADJ_ORIG | CTA_SEQ_ADJ_REPLY | CTA_ZONE
                | CTA_SYNPROXY,
                _,
            ) => special = true,
            _ => {}
        }
    }
    let (Some(original), Some(reply)) = (original, reply) else { return Ok(None) };
    let timeout = Duration::from_secs(timeout.into());
    Ok(Some(Entry { original, reply, status, timeout, tcp, special }))
}

fn tcp_info(bytes: &[u8]) -> io::Result<(u8, [u8; 2])> {
    let (mut state, mut flags) = (0, [0; 2]);
    for attribute in attributes(bytes, 0) {
        let (kind, value) = attribute?;
        let first = *value.first().ok_or_else(malformed)?;
        match (kind, &mut flags) {
            (CTA_PROTOINFO_TCP_STATE, _) => state = first,
            (CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, [original, _]) => *original = first,
            (CTA_PROTOINFO_TCP_FLAGS_REPLY, [_, reply]) => *reply = first,
            _ => {}
        }
    }
    Ok((state, flags))
}

/// Reads one direction; nothing if it is neither of TCP nor of UDP, or has a zone.
fn tuple(bytes: &[u8]) -> io::Result<Option<Flow>> {
    let (mut source, mut destination, mut protocol) = (None, None, None);
    let mut ports = [None; 2];
    let port = |value: &[u8]| value.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
    for attribute in attributes(bytes, 0) {
        match attribute? {
            (CTA_TUPLE_IP, value) => {
                for attribute in attributes(value, 0) {
                    match attribute? {
                        (CTA_IP_V4_SRC | CTA_IP_V6_SRC, value) => source = address(value),
                        (CTA_IP_V4_DST | CTA_IP_V6_DST, value) => destination = address(value),
                        _ => {}
                    }
                }
            }
            (CTA_TUPLE_PROTO, value) => {
                for attribute in attributes(value, 0) {
                    let [from, to] = &mut ports;
                    match attribute? {
                        (CTA_PROTO_NUM, value) => protocol = value.first().copied(),
                        (CTA_PROTO_SRC_PORT, value) => *from = port(value),
                        (CTA_PROTO_DST_PORT, value) => *to = port(value),
                        _ => {}
                    }
                }
            }
            (CTA_TUPLE_ZONE, _) => return Ok(None),
            _ => {}
        }
    }
    let protocol = match protocol {
        Some(IPPROTO_TCP) => Transport::Tcp,
        Some(IPPROTO_UDP) => Transport::Udp,
        _ => return Ok(None),
    };
    let (Some(source), Some(destination), [Some(from), Some(to)]) = (source, destination, ports)
    else {
        return Ok(None);
    };
    let (source, destination) = (SocketAddr::new(source, from), SocketAddr::new(destination, to));
    Ok(Some(Flow { protocol, source, destination }))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match *bytes {
        [a, b, c, d] => Some([a, b, c, d].into()),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    }
}

/// A request about the entry with this original direction.
fn about(original: &Flow) -> Vec<u8> {
    let mut ip = Vec::new();
    let family = match (original.source.ip(), original.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            attribute(&mut ip, CTA_IP_V4_SRC, &source.octets());
            attribute(&mut ip, CTA_IP_V4_DST, &destination.octets());
            AF_INET
        }
        (source, destination) => {
            let bytes = |address| match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            attribute(&mut ip, CTA_IP_V6_SRC, &bytes(source));
            attribute(&mut ip, CTA_IP_V6_DST, &bytes(destination));
            AF_INET6
        }
    };
    let number = match original.protocol {
        Transport::Tcp => IPPROTO_TCP,
        Transport::Udp => IPPROTO_UDP,
    };
    let mut proto = Vec::new();
    attribute(&mut proto, CTA_PROTO_NUM, &[number]);
    attribute(&mut proto, CTA_PROTO_SRC_PORT, &original.source.port().to_be_bytes());
    attribute(&mut proto, CTA_PROTO_DST_PORT, &original.destination.port().to_be_bytes());
    let mut tuple = Vec::new();
    attribute(&mut tuple, CTA_TUPLE_IP | NLA_F_NESTED, &ip);
    attribute(&mut tuple, CTA_TUPLE_PROTO | NLA_F_NESTED, &proto);
    // struct nfgenmsg
    let mut body = vec![family, 0, 0, 0];
    attribute(&mut body, CTA_TUPLE_ORIG | NLA_F_NESTED, &tuple);
    body
}

#[cfg(test)]
mod tests;
