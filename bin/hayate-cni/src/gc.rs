//! GC: what no listed container has comes back.

use std::time::{Duration, Instant};

use crate::call::NAME_MAX;
use crate::conf::Valid;
use crate::error::{self, Code, Error};
use crate::state::{Lock, State};
use crate::sysfs::Address;
use crate::vf::Host;
use crate::{Context, del, ipam};

/// How long VFs are waited for that somebody else is at work on, all together: a call that was killed may leave its
/// lock with a child that has not yet become the program it was started for.
const BRIEF: Duration = Duration::from_secs(1);

pub(crate) fn gc(context: &Context<'_>) -> Result<(), Error> {
    let conf = context.conf;
    if conf.valid.iter().any(|one| one.container.len() > NAME_MAX) {
        return Err(Error::new(Code::Config, "cni.dev/valid-attachments: a name is too long"));
    }
    let mut errors = Vec::new();
    if State::look(&conf.state).is_some() {
        let mut host = Host::new(context)?;
        let (attachments, unread) = host.state.attachments(Some(&conf.name))?;
        errors.extend(unread);
        let until = Instant::now() + BRIEF;
        for found in attachments {
            let key = found.key.clone();
            let stays = |one: &Valid| one.container == key.container && one.ifname == key.ifname;
            if conf.valid.iter().any(stays) {
                continue;
            }
            let Some(lock) = idle(&host, found.vf, until)? else { continue };
            match host.state.attachment(&key) {
                Ok(Some(now)) if now.token == found.token => {
                    let ended = del::end(context, &mut host, &lock, now, "GC");
                    errors.extend(ended.err());
                }
                Ok(_) => {}
                Err(error) => errors.push(error),
            }
        }
        for vf in host.state.vfs()? {
            if let Some(lock) = idle(&host, vf, until)? {
                errors.extend(host.settle(&lock).err());
            }
        }
        host.state.sweep();
    }
    errors.extend(ipam::ask(context.call, conf, "GC").err());
    error::all(errors)
}

/// The lock of a VF, unless somebody keeps it: then they are at work on it.
fn idle(host: &Host, vf: Address, until: Instant) -> Result<Option<Lock>, Error> {
    match host.state.lock(vf, until) {
        Err(error) if error.code == Code::Later => Ok(None),
        other => other.map(Some),
    }
}
