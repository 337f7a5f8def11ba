//! What was found out about disks: what is kept of it, tables for people, figures.
//!
//! A system that could not do something has no windows but a problem ([`Outcome`]), which the tables tell
//! in place of its figures.

mod figures;
mod tables;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub(crate) use figures::draw;
pub(crate) use tables::write;

use super::cell::{Cell, Medium};
use super::sut::System;
use super::window::Window;
use crate::report::{self, Sample, Version};
use crate::stats::summary;

/// All windows of a cell of a system.
pub type Outcome = report::Outcome<Cell, System, Window>;

/// Everything about disks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Disks {
    /// What was compared.
    pub systems: Vec<Version<System>>,
    /// Bytes of the disk that had requests.
    pub size: u64,
    /// The client polled; otherwise it slept until it was notified.
    pub polls: bool,
    /// How qemu-storage-daemon read and wrote files on a medium: what was best there.
    pub aio: BTreeMap<Medium, String>,
    /// QEMU and the kernel of the guest in which requests were made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<String>,
    /// What was found, by cell, then system.
    pub outcomes: Vec<Outcome>,
}

/// Figures that are compared.
pub(super) type Value = fn(&Window) -> Option<f64>;
pub(super) const RATE: Value = |w| (w.rate > 0.0).then_some(w.rate);
pub(super) const P50: Value = |w| w.latency.map(|times| times.p50 / 1e3);
const P99: Value = |w| w.latency.map(|times| times.p99 / 1e3);
const P999: Value = |w| w.latency.map(|times| times.p999 / 1e3);
pub(super) const CPU: Value = |w| Some(w.cpu);
const MILLION: Value = Window::cpu_for_a_million;
const SERVER: Value = Window::server_for_a_million;

/// A cell of disks with all its systems.
pub(super) type Row<'a> = report::Row<'a, Cell, System, Window>;

impl Disks {
    /// Cells in their order, each with the regime in which most can be compared.
    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        report::rows(&self.outcomes)
    }
}

/// What a turn found, in one line.
pub(super) fn one_line(windows: &[Window]) -> String {
    let good = || windows.iter().filter(|window| window.counts());
    let of = |value: Value| summary(good().filter_map(value)).map(|s| s.median);
    let Some(regime) = good().next().and_then(|window| window.regime) else {
        let of = |value: Value| summary(windows.iter().filter_map(value)).map_or(0.0, |s| s.median);
        let moved = windows.iter().filter(|window| window.regime.is_none()).count();
        return format!(
            "no window counts (of {}): waited {:.0} % for a CPU, others used {:.0} %, host took {:.0} \
             ticks, CPUs moved in {moved}",
            windows.len(),
            of(|w| Some(w.waited)),
            of(|w| Some(w.others)),
            of(|w| Some(w.stolen as f64)),
        );
    };
    let (cpu, n) = (of(CPU).unwrap_or(0.0), good().count());
    let rate = match (of(RATE), of(P50), of(P99)) {
        (Some(rate), Some(p50), Some(p99)) => {
            let empty =
                of(|w| w.empty).map_or(String::new(), |e| format!(", {e:.0} % looks empty"));
            format!("{:7.1} k IOPS, p50 {p50:6.1} us, p99 {p99:7.1} us{empty}, ", rate / 1e3)
        }
        _ => String::new(),
    };
    format!("{rate}CPU {cpu:5.1} %  ({}, n={n})", regime.as_str())
}

#[cfg(test)]
mod tests;
