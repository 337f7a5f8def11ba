//! Policies in force: the pods of this node that have a VF get the rules of their policies on it.
//!
//! **Purpose.** [`apply`] is what a controller calls whenever policies, pods or namespaces have changed, with all of them.
//! What was applied last is kept beside the records of who has which VF, so that ADD gives a VF its rules before the
//! container has it ([`rules_for`]).
//!
//! **Order.** The objects are written first, then the VFs of attachments are gone through, each under its lock, which ADD
//! holds from before it reads the objects until the container has the VF. So an ADD has either read these objects, or is
//! among the attachments that are found. Rules of a VF are replaced as a whole. Before a VF gets rules it is noted that
//! they have to go when it comes back.
//!
//! **A pod that the objects do not have**, or whose identity is another there, is closed in all directions that a policy
//! of its namespace is about, until objects with it are applied: who it is, is not known.
//!
//! **Failure.** Objects that cannot be compiled change nothing. A VF that cannot be given its rules keeps those that it has;
//! the others get theirs.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use packet::Mac;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::flow::FlowRules;
use super::object::{Namespace, NetworkPolicy, Pod, PodIp};
use super::{PodRules, compile};
use crate::Machine;
use crate::agent::Agent;
use crate::error::{Code, Error};
use crate::state::{Attachment, Lock, Phase, State, store};
use crate::sysfs::Sysfs;
use crate::vf::PATIENCE;

/// Longest file of objects, bytes.
const OBJECTS_MAX: u64 = 256 << 20;
const FILE: &str = "policies.json";
const LOCK: &str = "policies.lock";

/// All that policies are about.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Objects {
    /// Policies.
    pub policies: Vec<NetworkPolicy>,
    /// Pods, of all nodes.
    pub pods: Vec<Pod>,
    /// Namespaces.
    pub namespaces: Vec<Namespace>,
}

/// What was done for a pod of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// `NAMESPACE/NAME`.
    pub pod: String,
    /// Its VF.
    pub vf: String,
    /// Rules that the VF has now.
    pub rules: usize,
    /// Why they are still those of before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl Objects {
    /// Takes what a list of objects has, or one object. Kinds that policies are not about are left out.
    ///
    /// # Errors
    /// Which object is not what its kind has to be, and why.
    pub fn add(&mut self, value: Value) -> Result<(), String> {
        let objects = match value {
            Value::Object(mut list) if list.contains_key("items") => list["items"].take(),
            other => Value::Array(vec![other]),
        };
        for object in objects.as_array().into_iter().flatten() {
            let failed = |error| format!("{}: {error}", object["metadata"]["name"]);
            match object["kind"].as_str() {
                Some("NetworkPolicy") => {
                    self.policies.push(Deserialize::deserialize(object).map_err(failed)?);
                }
                Some("Pod") => self.pods.push(Deserialize::deserialize(object).map_err(failed)?),
                Some("Namespace") => {
                    self.namespaces.push(Deserialize::deserialize(object).map_err(failed)?);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The rules of all pods. Those with an attachment here have its addresses too, which the API may not know yet, or at
    /// all, when the VF is not the pod's first interface.
    fn compile(&self, attachments: &[Attachment]) -> Result<Vec<PodRules>, Error> {
        let mut pods = self.pods.clone();
        for pod in &mut pods {
            let name = pod.metadata.full_name();
            let own = attachments.iter().filter(|one| one.pod.as_ref() == Some(&name));
            let ips = own.flat_map(|one| &one.ips).map(|ip| PodIp { ip: ip.address.addr() });
            pod.status.ips.extend(ips);
        }
        compile(&self.policies, &pods, &self.namespaces)
            .map_err(|refused| Error::new(Code::Config, refused.to_string()))
    }

    /// What is to hold on the VF of an attachment.
    fn rules(&self, compiled: &[PodRules], attachment: &Attachment, vf: u32) -> FlowRules {
        let Some(name) = &attachment.pod else { return FlowRules::closed(vf, false, false) };
        let found = self.pods.iter().find(|pod| pod.metadata.full_name() == *name);
        let same = |pod: &&Pod| {
            let ids = (&pod.metadata.uid, &attachment.uid);
            !matches!(ids, (Some(one), Some(other)) if one != other)
        };
        let known = found.filter(same).and_then(|_| {
            let is = |rules: &&PodRules| format!("{}/{}", rules.namespace, rules.name) == *name;
            compiled.iter().find(is)
        });
        if let Some(rules) = known {
            return FlowRules::new(rules, vf);
        }
        let namespace = name.split('/').next().unwrap_or_default();
        let own = self.policies.iter().filter(|one| one.metadata.namespace == namespace);
        let (mut ingress, mut egress) = (false, false);
        for policy in own {
            // They were compiled, so that is what they are about.
            let about = super::compile::about(&policy.spec).unwrap_or((true, true));
            (ingress, egress) = (ingress || about.0, egress || about.1);
        }
        FlowRules::closed(vf, ingress, egress)
    }

    /// Those that were applied last; `None`: none were.
    fn load(state: &Path) -> Result<Option<Self>, Error> {
        let path = state.join(FILE);
        let mut bytes = Vec::new();
        match File::open(&path).and_then(|file| file.take(OBJECTS_MAX).read_to_end(&mut bytes)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(path.display(), &error)),
            Ok(_) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|error| Error::decode(path.display(), &error)),
        }
    }
}

/// What is to hold on a VF before the container of this attachment has it.
///
/// # Errors
/// When what was applied cannot be read.
pub(crate) fn rules_for(
    state: &Path,
    attachment: &Attachment,
    vf: u32,
) -> Result<Option<FlowRules>, Error> {
    if attachment.pod.is_none() {
        return Ok(None);
    }
    let Some(objects) = Objects::load(state)? else { return Ok(None) };
    // The rules of a pod do not depend on its own addresses.
    let rules = objects.rules(&objects.compile(&[])?, attachment, vf);
    Ok(Some(rules).filter(|rules| !rules.is_empty()))
}

/// Puts policies in force on this node, and keeps them for pods that come later.
///
/// # Errors
/// When they cannot be compiled or kept; nothing is changed then.
pub fn apply(
    machine: &Machine,
    state: &Path,
    agent: &Path,
    objects: &Objects,
) -> Result<Vec<Applied>, Error> {
    objects.compile(&[])?;
    let records = State::open(state)?;
    let _one_at_a_time = exclusive(&state.join(LOCK))?;
    let path = state.join(FILE);
    store(&path, objects, false).map_err(|error| Error::io(path.display(), &error))?;
    let (attachments, unread) = records.attachments(None)?;
    if let Some(error) = unread.into_iter().next() {
        return Err(error);
    }
    let compiled = objects.compile(&attachments)?;
    let sysfs = Sysfs::new(&machine.sysfs);
    let mut done = Vec::new();
    for attachment in attachments.iter().filter(|one| one.pod.is_some()) {
        let node = Node { records: &records, sysfs: &sysfs, agent };
        let (rules, failed) = match node.put(objects, &compiled, attachment) {
            Ok(None) => continue,
            Ok(Some(rules)) => (rules, None),
            Err(error) => (0, Some(error.to_string())),
        };
        let pod = attachment.pod.clone().unwrap_or_default();
        done.push(Applied { pod, vf: attachment.vf.to_string(), rules, failed });
    }
    Ok(done)
}

/// Where it happens.
struct Node<'a> {
    records: &'a State,
    sysfs: &'a Sysfs,
    agent: &'a Path,
}

impl Node<'_> {
    /// Gives the VF of an attachment its rules; how many. `None`: it is no longer its VF.
    fn put(
        &self,
        objects: &Objects,
        compiled: &[PodRules],
        attachment: &Attachment,
    ) -> Result<Option<usize>, Error> {
        let lock = self.records.lock(attachment.vf, Instant::now() + PATIENCE)?;
        let now = self.records.attachment(&attachment.key)?;
        let Some(now) = now.filter(|now| now.token == attachment.token) else { return Ok(None) };
        if now.phase == Phase::Deleting || self.records.vf(&lock)?.token != now.token {
            return Ok(None);
        }
        let (pf, vf) = self.sysfs.pf_of(now.vf)?;
        let rules = objects.rules(compiled, &now, vf);
        set(self.records, &lock, self.agent, self.sysfs.mac(pf.address)?, &rules)?;
        Ok(Some(rules.rules.len()))
    }
}

/// Gives a VF its rules, and notes before that they have to go with its owner. Without any, and without any of before,
/// nobody is asked.
fn set(
    records: &State,
    lock: &Lock,
    agent: &Path,
    pf: Mac,
    rules: &FlowRules,
) -> Result<(), Error> {
    let mut record = records.vf(lock)?;
    let Some(home) = &mut record.home else { return Ok(()) };
    if rules.is_empty() && home.rules.is_none() {
        return Ok(());
    }
    home.rules = Some(agent.to_owned());
    records.save_vf(lock, &record)?;
    Agent::connect(agent)?.set_rules(pf, rules)?;
    if rules.is_empty() {
        if let Some(home) = &mut record.home {
            home.rules = None;
        }
        records.save_vf(lock, &record)?;
    }
    Ok(())
}

/// Waits until nobody else applies anything; until it is dropped, nobody does.
fn exclusive(path: &PathBuf) -> Result<File, Error> {
    let failed = |error: std::io::Error| Error::io(path.display(), &error);
    let file =
        fs::File::options().create(true).truncate(false).write(true).open(path).map_err(failed)?;
    file.lock().map_err(failed)?;
    Ok(file)
}
