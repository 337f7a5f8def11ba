//! What nf_tables does to packets of established connections.
//!
//! Rules are gone through as the kernel would, for a TCP and a UDP packet of an established
//! connection of which little is known: that conntrack says `established`, the protocol and the
//! version of IP, and that it has none of SYN, FIN and RST. What else a rule looks at may be so or
//! not. If in each way through all chains the packet is accepted, and nothing else is done to it or
//! noted of it, then it makes no difference whether it passes these chains. A chain of type nat only
//! sees the first packet of a connection.

mod expression;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::checks;
use super::uapi::*;
use crate::state::{Family, Filters, Obstacle, Stateful};
use expression::{Data, Elements, Expression, Verdict};
use netlink::{Message, Socket, attribute, attributes, be32, malformed, text};

/// Rules that are looked at, for one chain and packet.
const STEPS_MAX: usize = 1 << 20;
/// As deep as the kernel lets chains call each other.
const DEPTH_MAX: usize = 16;
/// Words of 32 bits in the registers of nf_tables.
const WORDS: usize = 16;

/// Of which table: protocol family and name.
type TableId = (u8, String);

/// A base chain that forwarded packets pass.
#[derive(Debug)]
struct Base {
    table: TableId,
    name: String,
    hook: u32,
    priority: i32,
    accepts: bool,
    has_rules: bool,
    is_nat: bool,
}

/// Rules of all chains.
#[derive(Debug, Default)]
struct Rules {
    chains: BTreeMap<(TableId, String), Vec<Vec<Expression>>>,
    /// Sets that states of connections are looked up in; none if one has more than single values.
    sets: BTreeMap<(TableId, String), Option<Elements>>,
    /// Protocol families of tables that use conntrack.
    conntrack: BTreeSet<u8>,
    /// What is done to connections that does not show in them.
    hidden: BTreeSet<&'static str>,
}

/// What is known of a packet.
#[derive(Clone, Copy, Debug)]
struct Packet {
    family: Family,
    protocol: u8,
    /// Conntrack has looked at it.
    tracked: bool,
}

/// A register's word: bits, and which of them are known.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    bits: u32,
    known: u32,
}

/// How a packet leaves a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    Accepted,
    AtItsEnd,
}

/// Reads what is in force.
pub(super) fn read(socket: Option<&mut Socket>) -> (Filters, BTreeSet<Obstacle>) {
    let Some(socket) = socket else { return Default::default() };
    match filters(socket).or_else(checks::not_there) {
        Ok(found) => found,
        Err(error) => {
            let what = format!("nf_tables cannot be read: {error}");
            (Filters::default(), [Obstacle::all(what)].into())
        }
    }
}

fn filters(socket: &mut Socket) -> io::Result<(Filters, BTreeSet<Obstacle>)> {
    let all = [AF_UNSPEC, 0, 0, 0];
    let bases = socket.dump_into(NFT_MSG_GETCHAIN, &all, |found: &mut Vec<_>, message| {
        found.extend(base(message)?);
        Ok(())
    })?;
    let (mut filters, mut obstacles) = (Filters::default(), BTreeSet::new());
    if bases.is_empty() {
        return Ok((filters, obstacles));
    }
    let dormant = socket.dump_into(NFT_MSG_GETTABLE, &all, |found: &mut bool, message| {
        *found |= is_dormant(message)?;
        Ok(())
    })?;
    let mut rules =
        socket.dump_into(NFT_MSG_GETRULE, &all, |rules: &mut Rules, message| rules.add(message))?;
    for ((table, name), found) in &mut rules.sets {
        *found = elements(socket, table, name)?;
    }
    for base in &bases {
        if let Err(what) = rules.check(base) {
            let (protocol, table) = &base.table;
            let (family, word) = match *protocol {
                NFPROTO_IPV4 => (Some(Family::V4), "ip"),
                NFPROTO_IPV6 => (Some(Family::V6), "ip6"),
                NFPROTO_INET => (None, "inet"),
                _ => (None, "netdev"),
            };
            let what = format!("nf_tables chain {word} {table} {} {what}", base.name);
            obstacles.insert(Obstacle { family, what });
        }
    }
    if dormant {
        obstacles.insert(Obstacle::all("nf_tables has a dormant table"));
    }
    obstacles.extend(rules.hidden.iter().map(|what| Obstacle::all(format!("nf_tables {what}"))));
    for (family, protocol) in [(Family::V4, NFPROTO_IPV4), (Family::V6, NFPROTO_IPV6)] {
        let of = |base: &&Base| matches!(base.table.0, NFPROTO_INET) || base.table.0 == protocol;
        if bases.iter().any(|base| of(&base)) {
            let nat = bases.iter().filter(of).any(|base| base.is_nat);
            filters.set(family, Some(Stateful { nat }));
        }
    }
    Ok((filters, obstacles))
}

fn is_dormant(message: &Message<'_>) -> io::Result<bool> {
    for attribute in attributes(message.body, 4) {
        if let (NFTA_TABLE_FLAGS, value) = attribute? {
            return Ok(be32(value).ok_or_else(malformed)? & NFT_TABLE_F_DORMANT != 0);
        }
    }
    Ok(false)
}

/// What is in a set; none if it is not only single values.
fn elements(
    socket: &mut Socket,
    (protocol, table): &TableId,
    name: &str,
) -> io::Result<Option<Elements>> {
    let mut body = vec![*protocol, 0, 0, 0];
    for (kind, text) in [(NFTA_SET_ELEM_LIST_TABLE, table.as_str()), (NFTA_SET_ELEM_LIST_SET, name)]
    {
        attribute(&mut body, kind, &[text.as_bytes(), &[0]].concat());
    }
    let found = socket.dump_into(NFT_MSG_GETSETELEM, &body, |found: &mut Vec<_>, message| {
        for list in attributes(message.body, 4) {
            if let (NFTA_SET_ELEM_LIST_ELEMENTS, list) = list? {
                for element in attributes(list, 0) {
                    found.push(Data::read(element?.1)?.element());
                }
            }
        }
        Ok(())
    })?;
    Ok(found.into_iter().collect())
}

/// A base chain that does something to forwarded packets.
fn base(message: &Message<'_>) -> io::Result<Option<Base>> {
    let [protocol, ..] = *message.body else { return Err(malformed()) };
    let (mut table, mut name, mut kind) = (String::new(), String::new(), String::new());
    let (mut hook, mut priority, mut policy, mut rules) = (None, 0, NF_ACCEPT, 0);
    for attribute in attributes(message.body, 4) {
        match attribute? {
            (NFTA_CHAIN_TABLE, value) => table = text(value),
            (NFTA_CHAIN_NAME, value) => name = text(value),
            (NFTA_CHAIN_TYPE, value) => kind = text(value),
            (NFTA_CHAIN_HOOK, value) => {
                for attribute in attributes(value, 0) {
                    match attribute? {
                        (NFTA_HOOK_HOOKNUM, value) => {
                            hook = Some(be32(value).ok_or_else(malformed)?);
                        }
                        (NFTA_HOOK_PRIORITY, value) => {
                            priority = be32(value).ok_or_else(malformed)? as i32;
                        }
                        _ => {}
                    }
                }
            }
            (NFTA_CHAIN_POLICY, value) => policy = be32(value).ok_or_else(malformed)?,
            // Nothing jumps to a base chain: its uses are its rules.
            (NFTA_CHAIN_USE, value) => rules = be32(value).ok_or_else(malformed)?,
            _ => {}
        }
    }
    let (is_nat, accepts, has_rules) = (kind == "nat", policy == NF_ACCEPT, rules > 0);
    let passed = |hook| match protocol {
        NFPROTO_IPV4 | NFPROTO_IPV6 | NFPROTO_INET => {
            !matches!(hook, NF_INET_LOCAL_IN | NF_INET_LOCAL_OUT)
        }
        NFPROTO_NETDEV => true,
        _ => false,
    };
    let hook = hook.filter(|hook| passed(*hook) && (has_rules || !accepts));
    Ok(hook.map(|hook| Base {
        table: (protocol, table),
        name,
        hook,
        priority,
        accepts,
        has_rules,
        is_nat,
    }))
}

impl Rules {
    /// Takes a rule of a dump.
    fn add(&mut self, message: &Message<'_>) -> io::Result<()> {
        let [protocol, ..] = *message.body else { return Err(malformed()) };
        let (mut table, mut chain, mut rule) = (String::new(), String::new(), Vec::new());
        for attribute in attributes(message.body, 4) {
            match attribute? {
                (NFTA_RULE_TABLE, value) => table = text(value),
                (NFTA_RULE_CHAIN, value) => chain = text(value),
                (NFTA_RULE_EXPRESSIONS, value) => {
                    for element in attributes(value, 0) {
                        rule.push(self.expression(protocol, element?.1)?);
                    }
                }
                _ => {}
            }
        }
        let table = (protocol, table);
        let mut state_in = None;
        for expression in &rule {
            match expression {
                Expression::CtState(to) => state_in = Some(*to),
                Expression::Lookup { register, set, .. } if state_in == Some(*register) => {
                    self.sets.insert((table.clone(), set.clone()), None);
                }
                _ => state_in = None,
            }
        }
        self.chains.entry((table, chain)).or_default().push(rule);
        Ok(())
    }

    fn expression(&mut self, protocol: u8, bytes: &[u8]) -> io::Result<Expression> {
        let (mut name, mut data) = (String::new(), &[][..]);
        for attribute in attributes(bytes, 0) {
            match attribute? {
                (NFTA_EXPR_NAME, value) => name = text(value),
                (NFTA_EXPR_DATA, value) => data = value,
                _ => {}
            }
        }
        let data = Data::read(data)?;
        if matches!(name.as_str(), "ct" | "nat" | "masq" | "redir") {
            self.conntrack.insert(protocol);
        }
        match name.as_str() {
            "ct" if data.number(NFTA_CT_SREG).is_some()
                && data.number(NFTA_CT_KEY) == Some(NFT_CT_EVENTMASK) =>
            {
                self.hidden.insert("chooses events of connections");
            }
            "objref"
                if matches!(
                    data.number(NFTA_OBJREF_IMM_TYPE),
                    None | Some(NFT_OBJECT_CT_TIMEOUT)
                ) =>
            {
                self.hidden.insert("may set timeouts of connections");
            }
            "target" if data.bytes(NFTA_TARGET_NAME).is_some_and(|name| text(name) == "CT") => {
                self.hidden.insert("has a target CT");
            }
            _ => {}
        }
        Ok(data.expression(&name).unwrap_or(Expression::Effect(name)))
    }

    /// What a base chain does to packets of established connections, if it is not nothing.
    fn check(&self, base: &Base) -> Result<(), String> {
        let (protocol, _) = base.table;
        let does = if base.has_rules { "has rules" } else { "drops by policy" };
        let families: &[Family] = match protocol {
            NFPROTO_IPV4 => &[Family::V4],
            NFPROTO_IPV6 => &[Family::V6],
            NFPROTO_INET if base.hook != NF_INET_INGRESS => &[Family::V4, Family::V6],
            _ => return Err(does.to_owned()),
        };
        let uses = [protocol, NFPROTO_INET].iter().any(|one| self.conntrack.contains(one));
        if !uses {
            return Err(format!("{does}, and conntrack is not in use"));
        }
        if base.is_nat {
            return Ok(());
        }
        let tracked = base.hook != NF_INET_PRE_ROUTING || base.priority > NF_IP_PRI_CONNTRACK;
        for family in families {
            for protocol in [IPPROTO_TCP, IPPROTO_UDP] {
                let packet = Packet { family: *family, protocol, tracked };
                let mut steps = STEPS_MAX;
                let leaves = self.walk(&base.table, &base.name, packet, DEPTH_MAX, &mut steps)?;
                if leaves == Leaves::AtItsEnd && !base.accepts {
                    return Err("drops established packets by policy".to_owned());
                }
            }
        }
        Ok(())
    }

    /// A packet's way through a chain.
    fn walk(
        &self,
        table: &TableId,
        chain: &str,
        packet: Packet,
        depth: usize,
        steps: &mut usize,
    ) -> Result<Leaves, String> {
        let rules = self.chains.get(&(table.clone(), chain.to_owned()));
        for (rule, number) in rules.map(Vec::as_slice).unwrap_or_default().iter().zip(1..) {
            *steps = steps.checked_sub(1).ok_or("has too many rules")?;
            let does = |what: &str| {
                format!("may do to established packets: {what} (rule {number} of {chain})")
            };
            let set = |name: &str| self.sets.get(&(table.clone(), name.to_owned()))?.as_ref();
            let Some((verdict, sure)) = packet.matches(rule, set).map_err(does)? else { continue };
            let leaves = match verdict {
                Verdict::Continue => continue,
                Verdict::Accept => Leaves::Accepted,
                Verdict::Return => Leaves::AtItsEnd,
                Verdict::Other(what) => return Err(does(what)),
                Verdict::Jump(to) | Verdict::Goto(to) => {
                    let depth = depth.checked_sub(1).ok_or("has chains that are too deep")?;
                    let leaves = self.walk(table, to, packet, depth, steps)?;
                    if leaves == Leaves::AtItsEnd && matches!(verdict, Verdict::Jump(_)) {
                        continue;
                    }
                    leaves
                }
            };
            if sure {
                return Ok(leaves);
            }
        }
        Ok(Leaves::AtItsEnd)
    }
}

impl Packet {
    /// What a rule says of the packet, and whether it surely does; nothing if it does not match.
    ///
    /// # Errors
    /// What else it may do.
    fn matches<'r>(
        &self,
        rule: &'r [Expression],
        set: impl Fn(&str) -> Option<&'r Elements>,
    ) -> Result<Option<(&'r Verdict, bool)>, &'r str> {
        let mut words = [Word::default(); WORDS];
        let mut sure = true;
        let known = |bits| Word { bits, known: u32::MAX };
        let byte = |byte| known(u32::from_ne_bytes([byte, 0, 0, 0]));
        for expression in rule {
            let (place, word) = match expression {
                Expression::CtState(to) if self.tracked => (*to, known(CT_STATE_ESTABLISHED)),
                Expression::Protocol(to) => (*to, byte(self.protocol)),
                Expression::Version(to) => match self.family {
                    Family::V4 => (*to, byte(NFPROTO_IPV4)),
                    Family::V6 => (*to, byte(NFPROTO_IPV6)),
                },
                Expression::TcpFlags(to) if self.protocol == IPPROTO_TCP => {
                    let known = u32::from_ne_bytes([TCP_BEGIN_OR_END, 255, 255, 255]);
                    (*to, Word { bits: 0, known })
                }
                Expression::CtState(to) | Expression::TcpFlags(to) | Expression::Unknown(to) => {
                    // It may be a long one.
                    words.iter_mut().skip(*to).for_each(|word| *word = Word::default());
                    continue;
                }
                Expression::Bitwise { from, to, mask, xor } => {
                    let Word { bits, known } = words.get(*from).copied().unwrap_or_default();
                    (*to, Word { bits: bits & mask ^ xor, known: known | !mask })
                }
                Expression::Compare { register, equal, value, bytes } => {
                    let Word { bits, known } = words.get(*register).copied().unwrap_or_default();
                    let differs = (bits ^ value) & known & bytes != 0;
                    let same = known & bytes == *bytes && !differs;
                    match (differs, same) {
                        (true, _) if *equal => return Ok(None),
                        (_, true) if !*equal => return Ok(None),
                        (false, false) => sure = false,
                        _ => {}
                    }
                    continue;
                }
                Expression::Lookup { register, set: name, inverted, verdict } => {
                    let word = words.get(*register).copied().unwrap_or_default();
                    match set(name).filter(|_| word.known == u32::MAX) {
                        Some(elements) => {
                            let found = elements.iter().find(|(key, _)| *key == word.bits);
                            match found {
                                Some((_, Some(what))) if *verdict => return Ok(Some((what, sure))),
                                _ if found.is_some() == *inverted => return Ok(None),
                                _ => {}
                            }
                        }
                        None if *verdict => return Err("lookup"),
                        None => sure = false,
                    }
                    continue;
                }
                Expression::Condition => {
                    sure = false;
                    continue;
                }
                Expression::Verdict(verdict) => return Ok(Some((verdict, sure))),
                Expression::Effect(name) => return Err(name),
            };
            if let Some(slot) = words.get_mut(place) {
                *slot = word;
            }
        }
        Ok(None)
    }
}
