//! Flow rules of PFs: what their guests asked for, kept, and put into force.
//!
//! The rules of a PF and its VFs are one [`FlowBook`]. They belong to the PF, not to the channel they came by:
//! they go when they are deleted, with the PF, or when the machine was booted anew, and a port that is opened
//! has them before its first frame. A change is put into force, then saved, then answered; when it cannot be
//! saved it is taken back.

use super::guests::VmPorts;
use super::{Pf, Port, Registry, Tables, not_found};
use crate::plane::{Plane, PortHandle, RuleSet, RulesDone, RulesError, rule_set};
use crate::state::Books;
use api::channel::{CountedRule, Failed, FlowCursor, FlowFunction, FlowRest, Flows, Refusal};
use api::rule::{FlowDirection, FlowPort};
use api::{Error, ErrorCode, Function, Mac, Name};
use channel::{Changed, FlowBook, FlowChange, FlowPace, FlowPf};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use tally::{Decided, Tally};
use tracing::{info, warn};

mod tally;

pub(crate) use tally::RuleTotals;

/// Rules shown at once.
const SHOWN: usize = 10_000;

/// The rules of a PF.
pub(super) struct Rules {
    book: FlowBook,
    pace: FlowPace,
    tally: Tally,
}

impl Rules {
    pub(super) fn new(book: FlowBook) -> Self {
        Self { book, pace: FlowPace::new(Instant::now()), tally: Tally::default() }
    }

    pub(super) fn is_of_another(&self, boot: &str) -> bool {
        self.book.booted(boot)
    }

    pub(super) fn len(&self) -> usize {
        self.book.rules().len()
    }
}

/// Which function a port is, in the words of rules.
fn flow_port(function: &Function) -> FlowPort {
    function.vf.and_then(FlowPort::vf).unwrap_or(FlowPort::PF)
}

impl Tables {
    /// The functions of a PF that are open.
    fn open_functions(&self, pf: &Name) -> BTreeMap<FlowPort, PortHandle> {
        let open = |port: &Port| {
            let function = port.function.as_ref().filter(|function| function.pf == *pf)?;
            Some((flow_port(function), port.handle()?))
        };
        self.ports.values().filter_map(open).collect()
    }

    /// What is to be in force on these functions by this book.
    fn rule_sets(
        &self,
        name: &Name,
        book: &FlowBook,
        on: &BTreeSet<FlowPort>,
    ) -> Vec<(PortHandle, Option<RuleSet>)> {
        let Some(pf) = self.pfs.get(name) else { return Vec::new() };
        let own = self.open_functions(name);
        let limits = pf.config.flow_limits();
        let all = on.iter().filter_map(|on| Some((*on, *own.get(on)?)));
        all.map(|(on, port)| (port, rule_set(book, on, &own, (&limits, pf.config.vfs)))).collect()
    }

    /// The rules with which a port of this function is opened.
    pub(super) fn rules_of(&self, function: &Function) -> Option<RuleSet> {
        let pf = self.pfs.get(&function.pf)?;
        let own = self.open_functions(&function.pf);
        let limits = pf.config.flow_limits();
        rule_set(&pf.rules.book, flow_port(function), &own, (&limits, pf.config.vfs))
    }

    /// What the rules of this book did on these functions.
    fn decided(
        &self,
        plane: &Plane,
        pf: &Name,
        book: &FlowBook,
        on: &BTreeSet<FlowPort>,
    ) -> Decided {
        let open = self.open_functions(pf);
        let open = on.iter().filter_map(|on| Some((*on, *open.get(on)?)));
        let done = open.map(|(on, port)| (on, plane.rules_done(port))).collect();
        Decided::by(book, &done)
    }

    fn flows(&self, plane: &Plane, pf: &Name, after: Option<FlowCursor>) -> Flows {
        let Some(Pf { config, rules: Rules { book, .. }, .. }) = self.pfs.get(pf) else {
            return Flows::default();
        };
        let open = self.open_functions(pf);
        let done: BTreeMap<FlowPort, RulesDone> = book
            .functions()
            .into_iter()
            .map(|on| (on, open.get(&on).map(|port| plane.rules_done(*port)).unwrap_or_default()))
            .collect();
        let behind = |cursor: FlowCursor| after.is_none_or(|after| cursor > after);
        let functions = done.iter().filter(|(on, _)| behind(FlowCursor::Function(**on)));
        let rest =
            |on, direction, count| FlowRest { action: book.default_of(on, direction), count };
        let functions = functions.map(|(on, done)| FlowFunction {
            on: *on,
            from: rest(*on, FlowDirection::From, done.from),
            to: rest(*on, FlowDirection::To, done.to),
        });
        let rules = book.rules().values().filter(|rule| behind(FlowCursor::Rule(rule.id)));
        let rules = rules.map(|rule| CountedRule {
            rule: rule.clone(),
            count: done
                .get(&rule.on)
                .and_then(|done| done.rules.get(&rule.id).copied())
                .unwrap_or_default(),
        });
        Flows {
            limits: config.flow_limits(),
            functions: functions.collect(),
            rules: rules.collect(),
            next: None,
        }
    }
}

impl VmPorts {
    /// The PF of the VM with this address.
    pub(super) fn pf_at(&self, mac: Mac) -> Option<FlowPf> {
        let tables = self.tables.read();
        let mut own = tables.pfs.iter().filter(|(_, pf)| pf.config.vm == self.vm);
        let (name, pf) = own.find(|(name, _)| {
            tables.ports.get(*name).and_then(|port| port.config.card(name)) == Some(mac)
        })?;
        Some(FlowPf { name: name.clone(), vfs: pf.config.vfs, limits: pf.config.flow_limits() })
    }

    pub(super) fn rules(&self, pf: &Name, after: Option<FlowCursor>) -> Flows {
        self.tables.read().flows(&self.plane, pf, after)
    }

    /// Changes the rules of a PF, if it is still there.
    pub(super) async fn set_rules(
        &self,
        pf: &Name,
        change: &FlowChange,
        boot: Option<&str>,
    ) -> Result<(), Failed> {
        let set = self.try_set_rules(pf, change, boot).await;
        if let Err(failed) = &set
            && let Some(pf) = self.tables.write().pfs.get_mut(pf)
        {
            pf.rules.tally.refused(failed.data);
        }
        set
    }

    async fn try_set_rules(
        &self,
        pf: &Name,
        change: &FlowChange,
        boot: Option<&str>,
    ) -> Result<(), Failed> {
        let _changing = self.changing.lock().await;
        let changed = {
            let mut tables = self.tables.write();
            let found = tables.pfs.get_mut(pf).filter(|found| found.config.vm == self.vm);
            let Some(Pf { config, rules, .. }) = found else {
                return Err(Failed::new(Refusal::UnknownFunction, "this PF is gone"));
            };
            let limits = config.flow_limits();
            let changed = rules.book.apply(change, boot, &limits)?;
            if changed.updates == 0 {
                return Ok(());
            }
            rules.pace.take(changed.updates, &limits, Instant::now()).map_err(|wait| {
                let message = format!(
                    "{} rules a second are allowed; wait {} ms",
                    limits.rate,
                    wait.as_millis().saturating_add(1),
                );
                Failed::new(Refusal::TooManyUpdates, message)
            })?;
            changed
        };
        put(&self.tables, &self.plane, &self.books, pf, changed).await
    }

    /// Ends the rules of another boot of the machine. `changing` is held.
    pub(super) async fn end_rules(&self, boot: &str) -> Result<(), Failed> {
        let stale: Vec<Name> = {
            let tables = self.tables.read();
            let own = tables.pfs.iter().filter(|(_, pf)| pf.config.vm == self.vm);
            own.filter(|(_, pf)| pf.rules.is_of_another(boot))
                .map(|(name, _)| name.clone())
                .collect()
        };
        for pf in stale {
            clear(&self.tables, &self.plane, &self.books, &pf).await?;
            info!("pf {pf}: the machine was booted, its flow rules ended");
        }
        Ok(())
    }
}

type Locked = parking_lot::RwLock<Tables>;

/// Deletes all rules of a PF.
async fn clear(tables: &Locked, plane: &Plane, books: &Books, pf: &Name) -> Result<(), Failed> {
    let touched = tables.read().pfs.get(pf).map(|pf| pf.rules.book.functions());
    let touched = touched.unwrap_or_default();
    let changed = Changed { book: FlowBook::default(), touched, updates: 0 };
    put(tables, plane, books, pf, changed).await
}

/// Puts a book into force and keeps it.
async fn put(
    tables: &Locked,
    plane: &Plane,
    books: &Books,
    pf: &Name,
    Changed { book, touched, updates }: Changed,
) -> Result<(), Failed> {
    let (after, before, decided) = {
        let tables = tables.read();
        let before = tables.pfs.get(pf).map(|pf| pf.rules.book.clone()).unwrap_or_default();
        let decided = tables.decided(plane, pf, &before, &touched);
        (tables.rule_sets(pf, &book, &touched), tables.rule_sets(pf, &before, &touched), decided)
    };
    plane.set_rules(after).await.map_err(|error| match error {
        RulesError::Wrong(why) => Failed::new(Refusal::TooManyRules, why),
        RulesError::Plane(error) => Failed::new(Refusal::NotDone, error.to_string()),
    })?;
    if let Err(why) = save(books, pf, &book).await {
        if let Err(error) = plane.set_rules(before).await {
            warn!("pf {pf}: flow rules that were not saved are in force: {error}");
        }
        return Err(Failed::new(Refusal::NotDone, why));
    }
    let mut tables = tables.write();
    let now = tables.decided(plane, pf, &book, &touched);
    if let Some(pf) = tables.pfs.get_mut(pf) {
        pf.rules.tally.changed(updates, decided, now);
        pf.rules.book = book;
    }
    Ok(())
}

/// The disk may be slow, and sessions run on this thread: it is done on another.
async fn save(books: &Books, pf: &Name, book: &FlowBook) -> Result<(), String> {
    let (books, pf, book) = (books.clone(), pf.clone(), book.clone());
    match tokio::task::spawn_blocking(move || books.save(&pf, &book)).await {
        Ok(saved) => saved.map_err(|error| error.to_string()),
        Err(error) => Err(format!("the rules cannot be saved: {error}")),
    }
}

impl Registry {
    /// The rules of a PF, those behind a number.
    pub(crate) fn flow_rules(&self, name: &Name, after: Option<u64>) -> Result<Flows, Error> {
        let tables = self.tables.read();
        if !tables.pfs.contains_key(name) {
            return Err(not_found("vf", name));
        }
        let mut flows = tables.flows(&self.plane, name, after.map(FlowCursor::Rule));
        if flows.rules.len() > SHOWN {
            flows.rules.truncate(SHOWN);
            flows.next = flows.rules.last().map(|last| FlowCursor::Rule(last.rule.id));
        }
        Ok(flows)
    }

    /// What the rules of each PF did, all together.
    pub(crate) fn rule_totals(&self) -> Vec<RuleTotals> {
        let tables = self.tables.read();
        let all = tables.pfs.iter().map(|(name, Pf { config, rules, .. })| {
            let book = &rules.book;
            let now = tables.decided(&self.plane, name, book, &book.functions());
            rules.tally.totals(name, book, config.flow_limits(), now)
        });
        all.collect()
    }

    /// Deletes all rules of a PF.
    pub(crate) async fn clear_flow_rules(&self, name: &Name) -> Result<(), Error> {
        let _changing = self.changing.lock().await;
        if !self.tables.read().pfs.contains_key(name) {
            return Err(not_found("vf", name));
        }
        let cleared = clear(&self.tables, &self.plane, &self.books, name).await;
        cleared.map_err(|failed| Error::new(ErrorCode::Host, failed.message))?;
        info!("pf {name}: its flow rules were deleted");
        Ok(())
    }

    /// Forgets the rules of PFs that were gone before this daemon began.
    pub(super) fn tidy_rules(&self) {
        let tables = self.tables.read();
        let there =
            |name: &str| name.parse().is_ok_and(|name: Name| tables.pfs.contains_key(&name));
        if let Err(error) = self.books.tidy(there) {
            warn!("flow rules of PFs that are gone cannot be removed: {error}");
        }
    }

    /// Forgets the rules of a PF that is gone.
    pub(super) async fn forget_rules(&self, name: &Name) {
        if let Err(why) = save(&self.books, name, &FlowBook::default()).await {
            warn!("pf {name}: its flow rules are still on disk: {why}");
        }
    }

    /// Has all functions of a PF judge by its rules: one was opened that others may forward to.
    pub(super) async fn enforce_rules(&self, name: &Name) {
        let sets = {
            let tables = self.tables.read();
            let Some(pf) = tables.pfs.get(name) else { return };
            let book = &pf.rules.book;
            tables.rule_sets(name, book, &book.functions())
        };
        if sets.is_empty() {
            return;
        }
        if let Err(error) = self.plane.set_rules(sets).await {
            warn!("pf {name}: its flow rules are not all in force: {error}");
        }
    }
}
