//! What nf_tables does to packets of established connections.
//!
//! Rules are gone through as the kernel would, for a TCP and a UDP packet of an established
//! connection of which little is known: that conntrack says `established`, the protocol and the
//! version of IP, and that it has none of SYN, FIN and RST. What else a rule looks at may be so or
//! not. If in each way through all chains the packet is accepted, and nothing else is done to it or
//! noted of it, then it makes no difference whether it passes these chains. A chain of type nat only
//! sees the first packet of a connection.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::checks;
use super::netlink::{Message, Socket, attributes, be32, malformed, text};
use super::uapi::*;
use crate::state::{Family, Filters, Obstacle, Stateful};

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

/// A part of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Expression {
    /// State of the connection into a register.
    CtState(usize),
    /// Protocol, or version of IP, of a packet.
    Protocol(usize),
    Version(usize),
    /// Flags of TCP, if it is TCP.
    TcpFlags(usize),
    /// Something that is not known.
    Unknown(usize),
    /// Bits, and those to turn.
    Bitwise {
        from: usize,
        to: usize,
        mask: u32,
        xor: u32,
    },
    /// The first bytes of a register are these, or are not.
    Compare {
        register: usize,
        equal: bool,
        value: u32,
        bytes: u32,
    },
    /// A condition of which nothing is known.
    Condition,
    Verdict(Verdict),
    /// Anything else, by name.
    Effect(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Accept,
    Continue,
    Return,
    Jump(String),
    Goto(String),
    Other(&'static str),
}

/// Rules of all chains.
#[derive(Debug, Default)]
struct Rules {
    chains: BTreeMap<(TableId, String), Vec<Vec<Expression>>>,
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
    let rules =
        socket.dump_into(NFT_MSG_GETRULE, &all, |rules: &mut Rules, message| rules.add(message))?;
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
        self.chains.entry(((protocol, table), chain)).or_default().push(rule);
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
            let Some((verdict, sure)) = packet.matches(rule).map_err(does)? else { continue };
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
    fn matches<'r>(&self, rule: &'r [Expression]) -> Result<Option<(&'r Verdict, bool)>, &'r str> {
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

/// The attributes of an expression.
struct Data<'a>(BTreeMap<u16, &'a [u8]>);

impl<'a> Data<'a> {
    fn read(bytes: &'a [u8]) -> io::Result<Self> {
        attributes(bytes, 0).collect::<io::Result<_>>().map(Self)
    }

    fn bytes(&self, kind: u16) -> Option<&'a [u8]> {
        self.0.get(&kind).copied()
    }

    fn number(&self, kind: u16) -> Option<u32> {
        be32(self.bytes(kind)?)
    }

    /// A register, as the place of its first word.
    fn register(&self, kind: u16) -> Option<usize> {
        let number = self.number(kind)? as usize;
        match number {
            1..=4 => Some((number - 1) * 4),
            8..=23 => Some(number - 8),
            _ => None,
        }
    }

    /// A value of at most 32 bits, and its length in bytes.
    fn value(&self, kind: u16) -> Option<(u32, usize)> {
        let data = Self::read(self.bytes(kind)?).ok()?;
        let bytes = data.bytes(NFTA_DATA_VALUE)?;
        let mut word = [0; 4];
        word.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some((u32::from_ne_bytes(word), bytes.len()))
    }

    /// None: it is something that is not known to be harmless.
    fn expression(&self, name: &str) -> Option<Expression> {
        let into = |kind| self.register(kind);
        Some(match name {
            "ct" => match (self.number(NFTA_CT_KEY)?, into(NFTA_CT_DREG)?) {
                (NFT_CT_STATE, to) => Expression::CtState(to),
                (_, to) => Expression::Unknown(to),
            },
            "meta" => match (self.number(NFTA_META_KEY)?, into(NFTA_META_DREG)?) {
                (NFT_META_L4PROTO, to) => Expression::Protocol(to),
                (NFT_META_NFPROTO, to) => Expression::Version(to),
                (_, to) => Expression::Unknown(to),
            },
            "payload" => {
                let to = into(NFTA_PAYLOAD_DREG)?;
                let place = [NFTA_PAYLOAD_BASE, NFTA_PAYLOAD_OFFSET, NFTA_PAYLOAD_LEN];
                match place.map(|kind| self.number(kind)) {
                    [Some(NFT_PAYLOAD_TRANSPORT_HEADER), Some(TCP_FLAGS), Some(1)] => {
                        Expression::TcpFlags(to)
                    }
                    _ => Expression::Unknown(to),
                }
            }
            "fib" => Expression::Unknown(into(NFTA_FIB_DREG)?),
            "rt" => Expression::Unknown(into(NFTA_RT_DREG)?),
            "exthdr" => Expression::Unknown(into(NFTA_EXTHDR_DREG)?),
            "byteorder" => Expression::Unknown(into(NFTA_BYTEORDER_DREG)?),
            "bitwise" => {
                let (from, to) = (into(NFTA_BITWISE_SREG)?, into(NFTA_BITWISE_DREG)?);
                let masks = self.value(NFTA_BITWISE_MASK).zip(self.value(NFTA_BITWISE_XOR));
                match (self.number(NFTA_BITWISE_OP).unwrap_or(0), masks) {
                    (0, Some(((mask, _), (xor, _)))) => Expression::Bitwise { from, to, mask, xor },
                    _ => Expression::Unknown(to),
                }
            }
            "cmp" => {
                let register = into(NFTA_CMP_SREG)?;
                match (self.number(NFTA_CMP_OP)?, self.value(NFTA_CMP_DATA)) {
                    (op @ (NFT_CMP_EQ | NFT_CMP_NEQ), Some((value, length))) => {
                        let bytes = [0, 1, 2, 3].map(|at| if at < length { 255 } else { 0 });
                        let (equal, bytes) = (op == NFT_CMP_EQ, u32::from_ne_bytes(bytes));
                        Expression::Compare { register, equal, value, bytes }
                    }
                    _ => Expression::Condition,
                }
            }
            "range" => Expression::Condition,
            "lookup" if self.bytes(NFTA_LOOKUP_DREG).is_none() => Expression::Condition,
            "lookup" => Expression::Unknown(into(NFTA_LOOKUP_DREG)?),
            "immediate" => match self.number(NFTA_IMMEDIATE_DREG)? {
                NFT_REG_VERDICT => Expression::Verdict(self.verdict()?),
                _ => Expression::Unknown(into(NFTA_IMMEDIATE_DREG)?),
            },
            _ => return None,
        })
    }

    fn verdict(&self) -> Option<Verdict> {
        let data = Self::read(self.bytes(NFTA_IMMEDIATE_DATA)?).ok()?;
        let verdict = Self::read(data.bytes(NFTA_DATA_VERDICT)?).ok()?;
        let chain = || verdict.bytes(NFTA_VERDICT_CHAIN).map(text);
        Some(match verdict.number(NFTA_VERDICT_CODE)? as i32 {
            NFT_CONTINUE | NFT_BREAK => Verdict::Continue,
            NFT_JUMP => Verdict::Jump(chain()?),
            NFT_GOTO => Verdict::Goto(chain()?),
            NFT_RETURN => Verdict::Return,
            1 => Verdict::Accept,
            0 => Verdict::Other("drop"),
            _ => Verdict::Other("queue"),
        })
    }
}
