//! Rules of nf_tables as the kernel says them, as far as their parts are known.

use std::collections::BTreeMap;
use std::io;

use super::super::uapi::*;
use netlink::{attributes, be32, text};

/// A part of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expression {
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
    /// A register is in a set, or not; or the set says what to do.
    Lookup {
        register: usize,
        set: String,
        inverted: bool,
        verdict: bool,
    },
    /// A condition of which nothing is known.
    Condition,
    Verdict(Verdict),
    /// Anything else, by name.
    Effect(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Accept,
    Continue,
    Return,
    Jump(String),
    Goto(String),
    Other(&'static str),
}

/// What a set says of a value of 32 bits: it is in it, or what to do.
pub(super) type Elements = Vec<(u32, Option<Verdict>)>;

/// The attributes of an expression.
pub(super) struct Data<'a>(BTreeMap<u16, &'a [u8]>);

impl<'a> Data<'a> {
    pub(super) fn read(bytes: &'a [u8]) -> io::Result<Self> {
        attributes(bytes, 0).collect::<io::Result<_>>().map(Self)
    }

    pub(super) fn bytes(&self, kind: u16) -> Option<&'a [u8]> {
        self.0.get(&kind).copied()
    }

    pub(super) fn number(&self, kind: u16) -> Option<u32> {
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
    pub(super) fn expression(&self, name: &str) -> Option<Expression> {
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
            "lookup" => match self.number(NFTA_LOOKUP_DREG) {
                None | Some(NFT_REG_VERDICT) => Expression::Lookup {
                    register: into(NFTA_LOOKUP_SREG)?,
                    set: text(self.bytes(NFTA_LOOKUP_SET)?),
                    inverted: self.number(NFTA_LOOKUP_FLAGS).unwrap_or(0) & NFT_LOOKUP_F_INV != 0,
                    verdict: self.bytes(NFTA_LOOKUP_DREG).is_some(),
                },
                Some(_) => Expression::Unknown(into(NFTA_LOOKUP_DREG)?),
            },
            "immediate" => match self.number(NFTA_IMMEDIATE_DREG)? {
                NFT_REG_VERDICT => Expression::Verdict(self.verdict(NFTA_IMMEDIATE_DATA)?),
                _ => Expression::Unknown(into(NFTA_IMMEDIATE_DREG)?),
            },
            _ => return None,
        })
    }

    /// An element of a set: a single value, and its verdict if it is one of a map.
    pub(super) fn element(&self) -> Option<(u32, Option<Verdict>)> {
        // It ends an interval, or stands for all others.
        if self.number(NFTA_SET_ELEM_FLAGS).unwrap_or(0) != 0 {
            return None;
        }
        let (key, _) = self.value(NFTA_SET_ELEM_KEY).filter(|(_, length)| *length == 4)?;
        match self.bytes(NFTA_SET_ELEM_DATA) {
            None => Some((key, None)),
            Some(_) => Some((key, Some(self.verdict(NFTA_SET_ELEM_DATA)?))),
        }
    }

    fn verdict(&self, kind: u16) -> Option<Verdict> {
        let data = Self::read(self.bytes(kind)?).ok()?;
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
