//! A rule as a line of words: `vf0 from id 7 priority 100 proto tcp dst-port 80 accept`.

use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::str::FromStr;

use super::{
    FlowAction, FlowDefault, FlowDirection, FlowPort, FlowRule, FlowState, FlowTag, FlowVerdict,
};
use crate::channel::Prefix;

/// Most words of a line: more than all there are.
const WORDS_MAX: usize = 64;

/// Words that are no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadWords(String);

/// A line of a list of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowLine {
    /// A rule. Its number is 0 if `numbered` is not true.
    Rule {
        /// The rule.
        rule: Box<FlowRule>,
        /// Whether the line says its number.
        numbered: bool,
    },
    /// What becomes of what no rule matches: `default vf0 from drop`.
    Default(FlowDefault),
}

impl FromStr for FlowLine {
    type Err = BadWords;

    fn from_str(text: &str) -> Result<Self, BadWords> {
        let words: Vec<&str> = text.split_whitespace().take(WORDS_MAX + 1).collect();
        match words.split_first() {
            Some((&"default", rest)) => {
                let (on, direction, rest) = head(rest)?;
                let action = match rest {
                    ["accept"] => FlowVerdict::Accept,
                    ["drop"] => FlowVerdict::Drop,
                    _ => return bad("a default is `accept` or `drop`, and nothing else"),
                };
                Ok(Self::Default(FlowDefault { on, direction, action }))
            }
            _ => {
                let (rule, numbered) = rule(&words)?;
                Ok(Self::Rule { rule: Box::new(rule), numbered })
            }
        }
    }
}

fn bad<T>(text: impl Into<String>) -> Result<T, BadWords> {
    Err(BadWords(text.into()))
}

fn head<'w>(words: &'w [&'w str]) -> Result<(FlowPort, FlowDirection, &'w [&'w str]), BadWords> {
    let [on, direction, rest @ ..] = words else {
        return bad("say the function (pf, vf0, vf1, ...) and the direction (from, to) first");
    };
    let on = on.parse().map_err(|error: super::BadFlowPort| BadWords(error.to_string()))?;
    let direction = match *direction {
        "from" => FlowDirection::From,
        "to" => FlowDirection::To,
        other => return bad(format!("{other:?}: a direction is `from` or `to`")),
    };
    Ok((on, direction, rest))
}

/// Reads a rule, and whether it has a number.
fn rule(words: &[&str]) -> Result<(FlowRule, bool), BadWords> {
    if words.len() > WORDS_MAX {
        return bad(format!("a rule has at most {WORDS_MAX} words"));
    }
    let (on, direction, mut rest) = head(words)?;
    let mut rule = FlowRule::new(0, on, direction, FlowAction::Accept);
    let (mut seen, mut action) = (Vec::new(), None);
    while let [word, after @ ..] = rest {
        let kind = if matches!(*word, "accept" | "drop" | "forward") { "action" } else { word };
        if seen.contains(&kind) {
            return bad(format!("{word}: there is one already"));
        }
        seen.push(kind);
        rest = after;
        let value = match *word {
            "accept" | "drop" | "pop-vlan" => "",
            _ => {
                let Some((value, after)) = after.split_first() else {
                    return bad(format!("{word}: its value is missing"));
                };
                rest = after;
                value
            }
        };
        match *word {
            "accept" => action = Some(FlowAction::Accept),
            "drop" => action = Some(FlowAction::Drop),
            "forward" => action = Some(FlowAction::Forward(read(word, value)?)),
            _ => rule.set(word, value)?,
        }
    }
    let Some(action) = action else {
        return bad("say what becomes of the frames: accept, drop or forward FUNCTION");
    };
    rule.action = action;
    rule.check().map_err(BadWords)?;
    Ok((rule, seen.contains(&"id")))
}

fn read<T: FromStr<Err: fmt::Display>>(word: &str, value: &str) -> Result<T, BadWords> {
    value.parse().map_err(|error| BadWords(format!("{word}: {error}")))
}

fn number<T: FromStr>(word: &str, value: &str, most: u64) -> Result<T, BadWords> {
    let wrong = || BadWords(format!("{word}: a number to {most} is allowed, not {value:?}"));
    super::values::decimal(value).ok_or_else(wrong)
}

/// A prefix, or an address.
fn prefix(word: &str, value: &str) -> Result<Prefix, BadWords> {
    let one = value.parse::<IpAddr>().ok();
    match one.and_then(|one| Prefix::new(one, if one.is_ipv4() { 32 } else { 128 })) {
        Some(prefix) => Ok(prefix),
        None => read(word, value),
    }
}

impl FlowRule {
    fn set(&mut self, word: &str, value: &str) -> Result<(), BadWords> {
        let (matches, rewrite) = (&mut self.matches, &mut self.rewrite);
        match word {
            "id" => self.id = number(word, value, u64::MAX)?,
            "priority" => self.priority = number(word, value, u32::MAX.into())?,
            "src-mac" => matches.src_mac = Some(read(word, value)?),
            "dst-mac" => matches.dst_mac = Some(read(word, value)?),
            "vlan" => matches.vlan = Some(read(word, value)?),
            "ethertype" => matches.ethertype = Some(read(word, value)?),
            "src" => matches.src = Some(prefix(word, value)?),
            "dst" => matches.dst = Some(prefix(word, value)?),
            "proto" => matches.protocol = Some(read(word, value)?),
            "src-port" => matches.src_port = Some(read(word, value)?),
            "dst-port" => matches.dst_port = Some(read(word, value)?),
            "icmp-type" => matches.icmp_type = Some(number(word, value, 255)?),
            "tcp-flags" => matches.tcp_flags = Some(read(word, value)?),
            "later-fragment" => {
                matches.later_fragment = Some(match value {
                    "yes" => true,
                    "no" => false,
                    _ => return bad(format!("{word}: `yes` or `no` is allowed, not {value:?}")),
                });
            }
            "state" => {
                matches.state = Some(match value {
                    "new" => FlowState::New,
                    "established" => FlowState::Established,
                    _ => {
                        let message = "`new` or `established` is allowed";
                        return bad(format!("{word}: {message}, not {value:?}"));
                    }
                });
            }
            "set-src-mac" => rewrite.src_mac = Some(read(word, value)?),
            "set-dst-mac" => rewrite.dst_mac = Some(read(word, value)?),
            "set-src" => rewrite.src = Some(read(word, value)?),
            "set-dst" => rewrite.dst = Some(read(word, value)?),
            "set-src-port" => rewrite.src_port = Some(number(word, value, u16::MAX.into())?),
            "set-dst-port" => rewrite.dst_port = Some(number(word, value, u16::MAX.into())?),
            "push-vlan" | "pop-vlan" if self.tag.is_some() => {
                return bad("a tag is pushed or popped, not both");
            }
            "push-vlan" => self.tag = Some(FlowTag::Push(number(word, value, 4094)?)),
            "pop-vlan" => self.tag = Some(FlowTag::Pop),
            "meter" => self.meter = Some(number(word, value, super::METER_MAX.into())?),
            "mirror" => self.mirror = Some(read(word, value)?),
            other => {
                return bad(format!(
                    "{other:?} is no word of a rule; --help shows those there are"
                ));
            }
        }
        Ok(())
    }

    /// The rule in words, as [`FlowLine`] reads them.
    pub fn words(&self) -> String {
        let head = format!("{} {} id {}", self.on, self.direction.as_str(), self.id);
        let mut words = Words(format!("{head} priority {}", self.priority));
        let (matches, rewrite) = (&self.matches, &self.rewrite);
        words.say("src-mac", matches.src_mac);
        words.say("dst-mac", matches.dst_mac);
        words.say("vlan", matches.vlan);
        words.say("ethertype", matches.ethertype);
        words.say("src", matches.src);
        words.say("dst", matches.dst);
        words.say("proto", matches.protocol);
        words.say("src-port", matches.src_port);
        words.say("dst-port", matches.dst_port);
        words.say("icmp-type", matches.icmp_type);
        words.say("tcp-flags", matches.tcp_flags);
        let later = matches.later_fragment.map(|later| if later { "yes" } else { "no" });
        words.say("later-fragment", later);
        let state = matches.state.map(|state| match state {
            FlowState::New => "new",
            FlowState::Established => "established",
        });
        words.say("state", state);
        words.say("set-src-mac", rewrite.src_mac);
        words.say("set-dst-mac", rewrite.dst_mac);
        words.say("set-src", rewrite.src);
        words.say("set-dst", rewrite.dst);
        words.say("set-src-port", rewrite.src_port);
        words.say("set-dst-port", rewrite.dst_port);
        match self.tag {
            Some(FlowTag::Push(vlan)) => words.say("push-vlan", Some(vlan)),
            Some(FlowTag::Pop) => words.0.push_str(" pop-vlan"),
            None => {}
        }
        words.say("meter", self.meter);
        words.say("mirror", self.mirror);
        match self.action {
            FlowAction::Accept => words.0.push_str(" accept"),
            FlowAction::Drop => words.0.push_str(" drop"),
            FlowAction::Forward(to) => words.say("forward", Some(to)),
        }
        words.0
    }
}

struct Words(String);

impl Words {
    fn say(&mut self, word: &str, value: Option<impl fmt::Display>) {
        if let Some(value) = value {
            // Writing to a string does not fail.
            let _ = write!(self.0, " {word} {value}");
        }
    }
}

impl fmt::Display for FlowLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule { rule, .. } => f.write_str(&rule.words()),
            Self::Default(FlowDefault { on, direction, action }) => {
                write!(f, "default {on} {} {}", direction.as_str(), action.as_str())
            }
        }
    }
}
