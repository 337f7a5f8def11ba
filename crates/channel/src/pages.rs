//! Lists: as much of them as fits a line.

use std::ops::Bound;

use api::Mac;
use api::channel::{
    ConnectionCount, ConnectionCounters, Counted, CountedConnections, CountedNextHop, Counters,
    Failed, FlowCursor, Flows, Functions, HopCount, LINE_MAX, ListFlows, ListFunctions, Refusal,
};

use crate::{Delegation, FlowPf, World};

/// Room for what is around a list in an answer, bytes.
const ENVELOPE: usize = 512;

/// As many functions as fit a line.
pub(crate) fn functions<P>(params: &ListFunctions, world: &impl World<Port = P>) -> Functions {
    let all = world.functions();
    let pf = params.pf.map(|mac| {
        let pf = all.iter().find(|one| one.function.vf.is_none() && one.mac == mac);
        pf.map(|one| one.function.pf.clone())
    });
    let mut found = Functions::default();
    let mut room = LINE_MAX - ENVELOPE;
    for one in all {
        let wanted = pf.as_ref().is_none_or(|pf| pf.as_ref() == Some(&one.function.pf))
            && params.after.as_ref().is_none_or(|after| one.function > *after);
        if !wanted {
            continue;
        }
        if !takes(&mut room, &one) {
            found.more = true;
            break;
        }
        found.functions.push(one);
    }
    found
}

pub(crate) fn flow_pf<P>(mac: Mac, world: &impl World<Port = P>) -> Result<FlowPf, Failed> {
    let none = || format!("this VM has no PF with the address {mac}");
    world.flow_pf(mac).ok_or_else(|| Failed::new(Refusal::UnknownFunction, none()))
}

/// As much of the flow rules as fits a line.
pub(crate) fn flows<P>(params: &ListFlows, world: &impl World<Port = P>) -> Result<Flows, Failed> {
    let pf = flow_pf(params.pf, world)?;
    let Flows { limits, functions, rules, .. } = world.flows(&pf.name, params.after);
    let mut found = Flows { limits, ..Flows::default() };
    let mut room = LINE_MAX - ENVELOPE;
    let mut place = params.after;
    for one in functions {
        if !takes(&mut room, &one) {
            return Ok(Flows { next: place, ..found });
        }
        place = Some(FlowCursor::Function(one.on));
        found.functions.push(one);
    }
    for one in rules {
        if !takes(&mut room, &one) {
            return Ok(Flows { next: place, ..found });
        }
        place = Some(FlowCursor::Rule(one.rule.id));
        found.rules.push(one);
    }
    Ok(found)
}

/// Takes room for one more, if there is enough.
fn takes(room: &mut usize, one: &impl serde::Serialize) -> bool {
    let size = serde_json::to_vec(one).map_or(usize::MAX, |text| text.len() + 1);
    match room.checked_sub(size) {
        Some(left) => {
            *room = left;
            true
        }
        None => false,
    }
}

/// As many counters as fit a line.
pub(crate) fn counted(Counters { after }: Counters, world: &impl World) -> Counted {
    let mut counted = Counted::default();
    let mut room = LINE_MAX - ENVELOPE;
    let used = |hops: &[HopCount]| hops.iter().any(|hop| hop.packets > 0);
    let counts = world.counts().into_iter();
    for (id, hops) in
        counts.filter(|(id, hops)| after.is_none_or(|after| *id > after) && used(hops))
    {
        let one = CountedNextHop { id, hops };
        if !takes(&mut room, &one) {
            counted.more = true;
            break;
        }
        counted.nexthops.push(one);
    }
    counted
}

/// As many connections as fit a line.
pub(crate) fn counted_connections<P: Copy + Eq + std::fmt::Debug>(
    delegation: &Delegation<P>,
    ConnectionCounters { after }: ConnectionCounters,
    world: &impl World<Port = P>,
) -> CountedConnections {
    let mut counted = CountedConnections::default();
    let mut room = LINE_MAX - ENVELOPE;
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    for flow in delegation.connections().range((from, Bound::Unbounded)).map(|(f, _)| f) {
        let one = ConnectionCount { flow: *flow, count: world.connection_count(flow) };
        if one.count.packets == 0 {
            continue;
        }
        if !takes(&mut room, &one) {
            counted.more = true;
            break;
        }
        counted.connections.push(one);
    }
    counted
}
