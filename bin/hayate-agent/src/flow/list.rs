//! Rules for people.

use std::fmt::Write as _;
use std::time::Duration;

use api::channel::{FlowCount, FlowRest, Flows};
use api::rule::{FlowDefault, FlowDirection, FlowLine};

/// A line for each rule, in the words it is made with, behind what it did.
pub(super) fn text(flows: &Flows) -> String {
    let mut rows = vec![["PACKETS", "BYTES", "USED", "RULE"].map(str::to_owned)];
    let mut row = |count: &FlowCount, rule: String| {
        rows.push([count.packets.to_string(), count.bytes.to_string(), used(count), rule]);
    };
    for one in &flows.rules {
        row(&one.count, one.rule.words());
    }
    for one in &flows.functions {
        let both = [(FlowDirection::From, one.from), (FlowDirection::To, one.to)];
        for (direction, FlowRest { action, count }) in both {
            let default = FlowLine::Default(FlowDefault { on: one.on, direction, action });
            row(&count, default.to_string());
        }
    }
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or_default()
    };
    let (packets, bytes, used) = (width(0), width(1), width(2));
    let mut text = String::new();
    for [a, b, c, rule] in &rows {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{a:>packets$}  {b:>bytes$}  {c:>used$}  {rule}");
    }
    text
}

/// How long ago.
fn used(count: &FlowCount) -> String {
    let Some(idle) = count.idle_ms else { return "-".to_owned() };
    let seconds = Duration::from_millis(idle).as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::channel::{CountedRule, FlowFunction};
    use api::rule::{FlowAction, FlowPort, FlowRule, FlowVerdict};

    #[test]
    fn what_is_shown_can_be_typed_again() {
        let count = FlowCount { packets: 12, bytes: 768, idle_ms: Some(61_000) };
        let rule = FlowRule::new(7, FlowPort::PF, FlowDirection::To, FlowAction::Accept);
        let rest = |action| FlowRest { action, count: FlowCount::default() };
        let function = FlowFunction {
            on: FlowPort::PF,
            from: rest(FlowVerdict::Accept),
            to: rest(FlowVerdict::Drop),
        };
        let flows = Flows {
            functions: vec![function],
            rules: vec![CountedRule { rule, count }],
            ..Flows::default()
        };
        assert_eq!(
            text(&flows),
            "PACKETS  BYTES  USED  RULE\n     12    768    1m  pf to id 7 priority 0 accept\n      \
             0      0     -  default pf from accept\n      0      0     -  default pf to drop\n"
        );
        for line in text(&flows).lines().skip(1) {
            let words = line.split_whitespace().skip(3).collect::<Vec<_>>().join(" ");
            assert!(words.parse::<FlowLine>().is_ok(), "{words}");
        }
    }
}
