//! DEL: a container's VF comes back.

use std::time::Instant;

use crate::error::{self, Error};
use crate::state::{Attachment, Lock, Phase, State};
use crate::vf::{Host, PATIENCE};
use crate::{Context, ipam, note};

pub(crate) fn del(context: &Context<'_>) -> Result<(), Error> {
    let key = context.key();
    let known = |state: &State| match state.attachment(&key) {
        Ok(known) => known,
        Err(error) => {
            // DEL does what it can.
            note(error);
            None
        }
    };
    let mut found = State::look(&context.conf.state).and_then(|state| known(&state));
    if found.is_some() {
        let mut host = Host::new(context)?;
        while let Some(attachment) = found {
            let lock = host.state.lock(attachment.vf, Instant::now() + PATIENCE)?;
            // Whoever had the lock may have ended it, or begun anew with another VF.
            match known(&host.state) {
                Some(now) if now.vf == lock.vf => {
                    return end(context, &mut host, &lock, now, "DEL");
                }
                other => found = other,
            }
        }
    }
    // Deleted before, or its records are lost: then its addresses are what can be given back.
    ipam::ask(context.call, context.conf, "DEL").map(drop)
}

/// Ends an attachment: addresses, VF, record.
pub(crate) fn end(
    context: &Context<'_>,
    host: &mut Host,
    lock: &Lock,
    mut attachment: Attachment,
    command: &str,
) -> Result<(), Error> {
    let Context { call, conf, .. } = context;
    if attachment.phase != Phase::Deleting {
        attachment.phase = Phase::Deleting;
        host.state.save(&attachment)?;
    }
    // First, as a lease is given back through the interface.
    let key = &attachment.key;
    let call = if command == "GC" {
        &call.about("DEL", &key.container, &key.ifname, &attachment.netns)
    } else {
        call
    };
    let given_back = ipam::ask(call, conf, "DEL").map(drop);
    let released = host.release(lock, &attachment, call.netns.as_deref());
    // Whoever asks again has the addresses given back; the VF is free.
    let forgotten = match &given_back {
        Ok(()) => host.state.forget(&attachment),
        Err(_) => Ok(()),
    };
    if let Err(error) = &released {
        // Whoever takes the VF next puts that right first.
        note(error);
    }
    error::all([given_back, forgotten].into_iter().filter_map(Result::err).collect())
}
