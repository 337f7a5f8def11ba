//! STATUS: could a container be added?

use crate::agent::Agent;
use crate::error::{Code, Error};
use crate::state::State;
use crate::sysfs::Sysfs;
use crate::{Context, ipam};

pub(crate) fn status(context: &Context<'_>) -> Result<(), Error> {
    let Context { call, conf, machine } = context;
    let sysfs = Sysfs::new(&machine.sysfs);
    let state = State::look(&conf.state);
    let attached = || {
        let all = state.as_ref().map(|state| state.attachments(Some(&conf.name)));
        all.is_some_and(|all| all.is_ok_and(|(all, _)| !all.is_empty()))
    };
    // Without its VFs the PF serves nobody, those included that had one.
    let lost = |details: String| {
        let code = if attached() { Code::Limited } else { Code::Unavailable };
        Err(Error::new(code, details))
    };
    if let Some(pf) = &conf.pf {
        match sysfs.pf(pf) {
            Err(error) => return lost(error.details),
            Ok(pf) if pf.vfs.is_empty() => {
                return lost(format!("PF {} has no VFs", pf.address));
            }
            Ok(pf) => {
                let free = |vf| match &state {
                    Some(state) => state.peek(vf).is_ok_and(|record| record.owner.is_none()),
                    None => true,
                };
                // A device plugin counts those of its own.
                if conf.device.is_none() && !pf.vfs.iter().any(|(_, vf)| free(*vf)) {
                    let text =
                        format!("PF {}: none of its {} VFs is free", pf.address, pf.vfs.len());
                    return Err(Error::new(Code::Unavailable, text));
                }
            }
        }
    }
    if (conf.needs_agent() || conf.agent_named)
        && let Err(error) = Agent::connect(&conf.agent)
    {
        return Err(Error::new(Code::Unavailable, error.details));
    }
    ipam::ask(call, conf, "STATUS").map(drop)
}
