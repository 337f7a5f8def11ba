//! A VF is chosen, and comes home again.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::agent::Agent;
use crate::error::{Code, Error};
use crate::link::{Link, Links};
use crate::netns::Netns;
use crate::policy::flow::FlowRules;
use crate::state::{self, Attachment, Home, Lock, Phase, State, Vf};
use crate::sysfs::{Address, PfFound, Sysfs};
use crate::{Context, call::IFNAME_MAX, note};

/// So long another call may be busy with a VF.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// So long the kernel may take to bring an interface home when its namespace has ended.
const RETURN: Duration = Duration::from_secs(5);
const NAP: Duration = Duration::from_millis(20);

/// The namespace that VFs come from.
pub(crate) struct Host {
    pub(crate) sysfs: Sysfs,
    pub(crate) state: State,
    pub(crate) netns: Netns,
    pub(crate) links: Links,
}

/// A VF that is an attachment's now, with its lock.
pub(crate) struct Claim {
    pub(crate) lock: Lock,
    pub(crate) attachment: Attachment,
    pub(crate) record: Vf,
    pub(crate) link: Link,
    pub(crate) pf: Address,
    pub(crate) number: u32,
}

impl Host {
    pub(crate) fn new(context: &Context<'_>) -> Result<Self, Error> {
        let failed = |error| Error::kernel("this network namespace", &error);
        Ok(Self {
            sysfs: Sysfs::new(&context.machine.sysfs),
            state: State::open(&context.conf.state)?,
            netns: Netns::here().map_err(failed)?,
            links: Links::here().map_err(failed)?,
        })
    }

    /// The interface of a VF, if it is here.
    pub(crate) fn at_home(&mut self, vf: Address) -> Result<Option<Link>, Error> {
        for (name, parent) in self.sysfs.interfaces(vf) {
            let found = self.links.named(&name).map_err(|error| Error::kernel(&name, &error))?;
            // It may have been renamed meanwhile, and another have its name.
            let found = found.filter(|link| link.parent.as_ref().is_none_or(|own| *own == parent));
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The VF that `wanted` is to have, taken; `wanted` becomes the attachment.
    pub(crate) fn choose(
        &mut self,
        context: &Context<'_>,
        wanted: &Attachment,
    ) -> Result<Claim, Error> {
        let until = Instant::now() + PATIENCE;
        match (context.conf.device, &context.conf.pf) {
            (Some(vf), named) => {
                let (pf, number) = self.sysfs.pf_of(vf)?;
                if let Some(named) = named
                    && self.sysfs.pf(named)?.address != pf.address
                {
                    let text = format!("deviceID: VF {vf} is one of PF {}, not of pf", pf.address);
                    return Err(Error::new(Code::Config, text));
                }
                self.named(wanted, pf.address, number, vf, until)
            }
            (None, Some(pf)) => {
                let pf = self.sysfs.pf(pf)?;
                self.any(wanted, &pf, until)
            }
            (None, None) => Err(Error::new(Code::Config, "deviceID or pf is needed")),
        }
    }

    /// Takes the VF that a device plugin chose. It knows who has it better than the records do: a container
    /// that had it before may be deleted only now.
    fn named(
        &mut self,
        wanted: &Attachment,
        pf: Address,
        number: u32,
        vf: Address,
        until: Instant,
    ) -> Result<Claim, Error> {
        let home_until = Instant::now() + RETURN;
        loop {
            let lock = self.state.lock(vf, until)?;
            let why = match self.claim(wanted, lock, pf, number, true)? {
                Ok(claim) => return Ok(claim),
                Err(why) => why,
            };
            if Instant::now() > home_until {
                return Err(Error::new(Code::Later, format!("VF {vf}: {why}")));
            }
            std::thread::sleep(NAP);
        }
    }

    /// Takes a VF that nobody has.
    fn any(&mut self, wanted: &Attachment, pf: &PfFound, until: Instant) -> Result<Claim, Error> {
        let PfFound { address, vfs, total } = pf;
        if vfs.is_empty() {
            let text = format!(
                "PF {address} has no VFs: write a number, at most {total}, to \
                 /sys/bus/pci/devices/{address}/sriov_numvfs"
            );
            return Err(Error::new(Code::NoFunction, text));
        }
        loop {
            let (mut busy, mut failed) = (false, None);
            for (number, vf) in vfs {
                let Some(lock) = self.state.try_lock(*vf)? else {
                    busy = true;
                    continue;
                };
                match self.claim(wanted, lock, *address, *number, false) {
                    Ok(Ok(claim)) => return Ok(claim),
                    Ok(Err(_)) => {}
                    Err(error) if error.code == Code::Exists => return Err(error),
                    Err(error) => failed = Some(error.during(format!("VF {vf}"))),
                }
            }
            if !busy || Instant::now() > until {
                let text = format!("PF {address}: none of its {} VFs is free", vfs.len());
                let none = Error::new(Code::Later, text);
                return Err(match failed {
                    Some(failed) => Error::new(Code::Later, format!("{}: {failed}", none.details)),
                    None => none,
                });
            }
            std::thread::sleep(NAP);
        }
    }

    /// Takes a VF whose lock is held, or says why not.
    fn claim(
        &mut self,
        wanted: &Attachment,
        lock: Lock,
        pf: Address,
        number: u32,
        named: bool,
    ) -> Result<Result<Claim, String>, Error> {
        let vf = lock.vf;
        let mut record = self.state.vf(&lock)?;
        let owner = match &record.owner {
            None => None,
            Some(key) => self.state.attachment(key)?.filter(|one| one.token == record.token),
        };
        // Whoever did not end adding or deleting has died: the lock is ours.
        let used = owner.as_ref().filter(|one| one.phase == Phase::Added);
        let by = used.map(|one| format!(", container {} has it", one.key.container));
        if let (Some(by), false) = (&by, named) {
            return Ok(Err(format!("it is in use{by}")));
        }
        let Some(mut link) = self.at_home(vf)? else {
            let by = by.unwrap_or_default();
            return Ok(Err(format!("its interface is not in this network namespace{by}")));
        };
        if link.enslaved && !named {
            return Ok(Err(format!("its interface {} is part of another one", link.name)));
        }
        if let Some(home) = &record.home {
            // What its last owner left.
            self.put_right(pf, number, &link, home)?;
            record.home = None;
            self.state.save_vf(&lock, &record)?;
            match self.at_home(vf)? {
                Some(now) => link = now,
                None => return Ok(Err("its interface went away".into())),
            }
        }
        let attachment = Attachment { vf, token: state::token()?, ..wanted.clone() };
        self.state.create(&attachment)?;
        let home = Home {
            name: link.name.clone(),
            mac: link.mac.map(|mac| mac.to_string()),
            mtu: link.mtu,
            parent: link.parent.clone(),
            settings: None,
            rules: None,
        };
        let owner = Some(attachment.key.clone());
        let record = Vf { token: attachment.token, owner, home: Some(home) };
        if let Err(error) = self.state.save_vf(&lock, &record) {
            // It has no VF, so nothing is left to be done for it.
            let _ = self.state.forget(&attachment);
            return Err(error);
        }
        Ok(Ok(Claim { lock, attachment, record, link, pf, number }))
    }

    /// Brings home the VF of an attachment, unless it is another's by now.
    ///
    /// It looks here, in the container's namespace and in `other`. What the kernel does not give back in time is
    /// put right by whoever takes the VF next. An error says what could not be put right; the VF is free anyway.
    pub(crate) fn release(
        &mut self,
        lock: &Lock,
        attachment: &Attachment,
        other: Option<&Path>,
    ) -> Result<(), Error> {
        let vf = lock.vf;
        let mut record = self.state.vf(lock)?;
        if record.token != attachment.token || record.owner.as_ref() != Some(&attachment.key) {
            return Ok(());
        }
        let mut failed = None;
        if let Some(home) = record.home.clone() {
            match self.fetch(vf, attachment, &home, other) {
                Ok(Some(link)) => {
                    let at = self.sysfs.pf_of(vf);
                    match at
                        .and_then(|(pf, number)| self.put_right(pf.address, number, &link, &home))
                    {
                        Ok(()) => record.home = None,
                        Err(error) => failed = Some(error),
                    }
                }
                Ok(None) if !self.sysfs.exists(vf) => record.home = None,
                Ok(None) => note(format_args!(
                    "VF {vf}: its interface is in no namespace known here; it is put right when it is back"
                )),
                Err(error) => failed = Some(error),
            }
        }
        record.owner = None;
        self.state.save_vf(lock, &record)?;
        failed.map_or(Ok(()), Err)
    }

    /// The interface, here again; `None` when it cannot be found.
    fn fetch(
        &mut self,
        vf: Address,
        attachment: &Attachment,
        home: &Home,
        other: Option<&Path>,
    ) -> Result<Option<Link>, Error> {
        let until = Instant::now() + RETURN;
        let paths =
            [Some(attachment.netns.as_path()), other.filter(|path| *path != attachment.netns)];
        let mut said = false;
        loop {
            if let Some(link) = self.at_home(vf)? {
                return Ok(Some(link));
            }
            let mut there = false;
            for path in paths.iter().flatten() {
                // Whatever is wrong with a namespace that has ended: it has no VF.
                there |= self.fetch_from(path, attachment, home).unwrap_or_else(|error| {
                    if !said {
                        note(format_args!("{}: {error}", path.display()));
                    }
                    said = true;
                    false
                });
            }
            if there {
                // It may have come under a name that sysfs does not say yet.
                if let Some(link) = self.at_home(vf)? {
                    return Ok(Some(link));
                }
            }
            if Instant::now() > until || !self.sysfs.exists(vf) {
                return Ok(None);
            }
            std::thread::sleep(NAP);
        }
    }

    /// Moves it from a namespace to here, if it is there.
    fn fetch_from(
        &mut self,
        path: &Path,
        attachment: &Attachment,
        home: &Home,
    ) -> std::io::Result<bool> {
        let pod = match Netns::open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            other => other?,
        };
        if pod.is(&self.netns)? {
            return Ok(false);
        }
        let mut links = Links::of(&pod)?;
        let Some(link) = find(&mut links, home, &attachment.key.ifname)? else { return Ok(false) };
        links.calm(link.index)?;
        match links.send(link.index, &self.netns, &home.name) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                // Somebody has its name here. Better under another one than not at all.
                let name = spare(attachment.token);
                note(format_args!("{} is taken, {} comes back as {name}", home.name, link.name));
                links.send(link.index, &self.netns, &name)?;
            }
            other => other?,
        }
        Ok(true)
    }

    /// Makes a VF whose interface is here what it was.
    fn put_right(
        &mut self,
        pf: Address,
        number: u32,
        link: &Link,
        home: &Home,
    ) -> Result<(), Error> {
        let failed = |what: &str, error: std::io::Error| {
            Error::kernel(format!("{what} of {} as before", link.name), &error)
        };
        let links = &mut self.links;
        links.calm(link.index).map_err(|error| failed("state", error))?;
        if let Some(mac) = home.mac.as_ref().and_then(|mac| mac.parse().ok())
            && link.mac != Some(mac)
        {
            links.set_mac(link.index, mac).map_err(|error| failed("address", error))?;
        }
        if link.mtu != home.mtu {
            links.set_mtu(link.index, home.mtu).map_err(|error| failed("MTU", error))?;
        }
        if link.name != home.name {
            match links.rename(link.index, &home.name) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                    note(format_args!("{} is taken, {} keeps its name", home.name, link.name));
                }
                other => other.map_err(|error| failed("name", error))?,
            }
        }
        // Last, as it may be away for longer.
        if let Some((socket, settings)) = &home.settings {
            Agent::connect(socket)?.set(self.sysfs.mac(pf)?, number, settings)?;
        }
        // Nobody has it any more: it is closed until here.
        if let Some(socket) = &home.rules {
            let none = FlowRules::closed(number, false, false);
            Agent::connect(socket)?.set_rules(self.sysfs.mac(pf)?, &none)?;
        }
        Ok(())
    }

    /// Puts right what came back after its attachment was gone.
    pub(crate) fn settle(&mut self, lock: &Lock) -> Result<(), Error> {
        let mut record = self.state.vf(lock)?;
        if let Some(key) = &record.owner {
            // A record that was removed by hand.
            let owner = self.state.attachment(key)?;
            if owner.is_some_and(|one| one.token == record.token) {
                return Ok(());
            }
            record.owner = None;
        }
        if let Some(home) = record.home.clone() {
            if let Some(link) = self.at_home(lock.vf)? {
                let (pf, number) = self.sysfs.pf_of(lock.vf)?;
                self.put_right(pf.address, number, &link, &home)?;
                record.home = None;
            } else if !self.sysfs.exists(lock.vf) {
                record.home = None;
            }
        }
        self.state.save_vf(lock, &record)
    }
}

/// The interface of a VF among those of a container: by what the kernel calls its device, which the container
/// cannot change; by its name where the kernel does not say that.
pub(crate) fn find(links: &mut Links, home: &Home, ifname: &str) -> std::io::Result<Option<Link>> {
    Ok(match &home.parent {
        Some(parent) => links.all()?.into_iter().find(|link| link.parent.as_ref() == Some(parent)),
        None => links.named(ifname)?.filter(|link| link.parent.is_none()),
    })
}

/// A name that nobody else chooses.
fn spare(token: u64) -> String {
    let mut name = format!("hv{token:016x}");
    name.truncate(IFNAME_MAX);
    name
}
