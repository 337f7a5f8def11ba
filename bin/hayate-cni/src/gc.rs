//! GC: what no listed container has comes back.

use crate::call::NAME_MAX;
use crate::conf::Valid;
use crate::error::{self, Code, Error};
use crate::state::State;
use crate::vf::Host;
use crate::{Context, del, ipam};

pub(crate) fn gc(context: &Context<'_>) -> Result<(), Error> {
    let conf = context.conf;
    let Some(valid) = &conf.valid else {
        // An empty list would free everything; one that is missing is a mistake.
        return Err(Error::new(Code::Config, "cni.dev/valid-attachments is missing"));
    };
    if valid.iter().any(|one| one.container.len() > NAME_MAX) {
        return Err(Error::new(Code::Config, "cni.dev/valid-attachments: a name is too long"));
    }
    let mut errors = Vec::new();
    if State::look(&conf.state).is_some() {
        let mut host = Host::new(context)?;
        let (attachments, unread) = host.state.attachments(Some(&conf.name))?;
        errors.extend(unread);
        for found in attachments {
            let key = found.key.clone();
            let stays = |one: &Valid| one.container == key.container && one.ifname == key.ifname;
            if valid.iter().any(stays) {
                continue;
            }
            // Whoever has the lock is at work on it.
            let Some(lock) = host.state.try_lock(found.vf)? else { continue };
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
            if let Some(lock) = host.state.try_lock(vf)? {
                errors.extend(host.settle(&lock).err());
            }
        }
        host.state.sweep();
    }
    errors.extend(ipam::ask(context.call, conf, "GC").err());
    error::all(errors)
}
