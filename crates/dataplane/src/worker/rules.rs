//! What the owner of a port enforces on its frames, and flow rules: of the port a frame comes from,
//! and of each that it is to go to.
//!
//! Nothing here is on the way of frames between ports of which nothing of the sort is asked. A frame
//! that goes to a mirror is fetched from the guest once, so that its copies have the same bytes
//! whatever the guest does meanwhile. A frame that rules forward or mirror to a port is not judged by
//! the rules of that port: both have one owner.

use packet::VlanEdit;
use packet::eth::vlan_tag;
use switch::rules::{self, Actions, Connections, Denied, Table, TagAction};
use switch::{DropReason, PortId, Spot};

use crate::egress::Egress;
use crate::frame::{Body, Frame};
use crate::worker::forward::{Lookup, Sender};

/// What rules said of a frame.
struct Judged {
    /// The port it goes to, if not on its way.
    to: Option<PortId>,
    /// It is another one than came.
    changed: bool,
}

impl Lookup<'_> {
    /// Forwards a frame from a port with checks or rules, and counts it if that drops it.
    #[cold]
    pub(super) fn examine(
        &mut self,
        sender: &Sender<'_>,
        frame: &mut Frame<'_, '_>,
        egress: &mut Egress<'_>,
    ) {
        if let Err(reason) = self.try_examine(sender, frame, egress) {
            sender.counters.drop(reason, 1);
        }
    }

    fn try_examine(
        &mut self,
        sender: &Sender<'_>,
        frame: &mut Frame<'_, '_>,
        egress: &mut Egress<'_>,
    ) -> Result<(), DropReason> {
        if let Some(guard) = sender.guard {
            guard.check(frame.head.bytes())?;
            guard.meter(frame.len, sender.now_ns)?;
        }
        let Some(rules) = sender.rules else { return self.route_aside(sender, frame, egress) };
        let judging = (&rules.from, rules.connections());
        self.fetched(rules.from.mirrors(), frame, |lookup, frame| {
            let Judged { to, changed } = lookup.judge(judging, sender, frame, egress)?;
            if let Some(to) = to {
                egress.send_aside(to, frame, sender.counters);
                return Ok(());
            }
            // Rules are the guest's, checks are the host's: what a rule makes of a frame is checked too.
            if let Some(guard) = sender.guard.filter(|_| changed) {
                guard.check(frame.head.bytes())?;
            }
            lookup.route_aside(sender, frame, egress)
        })
    }

    /// [`Lookup::route`] once more, away from the usual way.
    #[inline(never)]
    fn route_aside(
        &mut self,
        sender: &Sender<'_>,
        frame: &mut Frame<'_, '_>,
        egress: &mut Egress<'_>,
    ) -> Result<(), DropReason> {
        // Rules may have made another one of it than was announced.
        self.route::<true>(sender, frame, &Spot::NONE, egress)
    }

    /// Sends a frame out by a port, if the port's rules let it.
    #[cold]
    pub(super) fn deliver(
        &mut self,
        to: PortId,
        sender: &Sender<'_>,
        frame: &mut Frame<'_, '_>,
        egress: &mut Egress<'_>,
    ) {
        let Some(rules) = self.switch.rules(to) else {
            return egress.send_aside(to, frame, sender.counters);
        };
        let judging = (&rules.to, rules.connections());
        self.fetched(rules.to.mirrors(), frame, |lookup, frame| {
            match lookup.judge(judging, sender, frame, egress) {
                Ok(judged) => {
                    egress.send_aside(judged.to.unwrap_or(to), frame, sender.counters);
                }
                Err(reason) => egress.refuse(to, frame, reason, sender.counters),
            }
        });
    }

    /// Does something with a frame that is, if asked for, in worker memory as a whole.
    fn fetched<T>(
        &mut self,
        whole: bool,
        frame: &mut Frame<'_, '_>,
        work: impl FnOnce(&mut Self, &mut Frame<'_, '_>) -> T,
    ) -> T {
        if !whole || matches!(frame.body, Body::Local(_)) {
            return work(self, frame);
        }
        let spare = std::mem::take(&mut self.spare);
        let n = frame.body.copy_to(spare);
        let body = Body::Local(spare.get(..n).unwrap_or_default());
        let Frame { head, offload, len, .. } = frame;
        let mut whole = Frame { head, offload: *offload, body, len: *len };
        let done = work(self, &mut whole);
        self.spare = spare;
        done
    }

    /// What rules say of a frame, carried out but for where it goes.
    fn judge(
        &self,
        (table, connections): (&Table, Option<&Connections>),
        sender: &Sender<'_>,
        frame: &mut Frame<'_, '_>,
        egress: &mut Egress<'_>,
    ) -> Result<Judged, DropReason> {
        let seen = rules::Frame::read(frame.head.bytes(), frame.len).ok_or(DropReason::Runt)?;
        let ruling = table.judge(&seen, connections, (self.now_ms, egress.now()));
        let actions = ruling.rule.map(|rule| &rule.actions);
        let mirror_to = actions.and_then(|actions| actions.mirror);
        if let Some(port) = mirror_to.filter(|port| self.switch.is_up(*port)) {
            mirror(port, sender, frame, egress);
        }
        let to = ruling.to.map_err(|why| match why {
            Denied::ByRule => DropReason::RuleDrop,
            Denied::ByMeter => DropReason::RuleRate,
            Denied::Connections => DropReason::ConnectionsFull,
        })?;
        if to.is_some_and(|port| !self.switch.is_up(port)) {
            return Err(DropReason::PortDown);
        }
        actions.map_or(Ok(()), |actions| change(actions, frame))?;
        let changed = |actions: &Actions| !actions.rewrite.is_none() || actions.tag.is_some();
        Ok(Judged { to, changed: actions.is_some_and(changed) })
    }
}

/// Sends a copy of a frame, as it is now.
fn mirror(to: PortId, sender: &Sender<'_>, frame: &Frame<'_, '_>, egress: &mut Egress<'_>) {
    let mut head = frame.head.clone();
    let Frame { offload, body, len, .. } = *frame;
    egress.send_aside(to, &mut Frame { head: &mut head, offload, body, len }, sender.counters);
    sender.counters.flood_copies.add(1);
}

/// Changes a frame as a rule says.
fn change(actions: &Actions, frame: &mut Frame<'_, '_>) -> Result<(), DropReason> {
    let unable = DropReason::RuleRewrite;
    actions.rewrite.apply(frame.head.bytes_mut(), &frame.offload).map_err(|_| unable)?;
    let edit = match actions.tag {
        None => return Ok(()),
        Some(TagAction::Push(tci)) => VlanEdit::Push(tci),
        Some(TagAction::Pop) if vlan_tag(frame.head.bytes()).is_some() => VlanEdit::Pop,
        Some(TagAction::Pop) => return Err(unable),
    };
    if !frame.head.edit(edit) {
        return Err(unable);
    }
    frame.offload.follow(edit);
    frame.len = frame.len.saturating_add_signed(edit.growth().into());
    Ok(())
}
