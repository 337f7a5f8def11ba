//! Figures of disks: one line for each system, over requests in flight.

use plotters::style::RGBColor;

use super::{Disks, P99, RATE, Row, Value};
use crate::disk::cell::{Access, Job, Medium};
use crate::disk::sut::System;
use crate::report::Version;
use crate::report::figures::{Figure, Frame, Line, render};

/// What a figure shows of the requests of 4 KiB at random.
struct Plot {
    file: &'static str,
    title: &'static str,
    up: &'static str,
    access: Access,
    value: Value,
}

const PLOTS: [Plot; 4] = [
    Plot {
        file: "read",
        title: "4 KiB random reads",
        up: "1000 IOPS",
        access: Access::RandomRead,
        value: |w| RATE(w).map(|rate| rate / 1e3),
    },
    Plot {
        file: "read-p99",
        title: "4 KiB random reads, 99th percentile",
        up: "µs",
        access: Access::RandomRead,
        value: P99,
    },
    Plot {
        file: "write",
        title: "4 KiB random writes",
        up: "1000 IOPS",
        access: Access::RandomWrite,
        value: |w| RATE(w).map(|rate| rate / 1e3),
    },
    Plot {
        file: "write-p99",
        title: "4 KiB random writes, 99th percentile",
        up: "µs",
        access: Access::RandomWrite,
        value: P99,
    },
];

/// All figures there is data for.
pub(crate) fn draw(disks: &Disks) -> Vec<Figure> {
    let rows = disks.rows();
    let mut figures = Vec::new();
    for medium in [Medium::Tmpfs, Medium::Disk] {
        for plot in &PLOTS {
            let job = |row: &Row<'_>| row.cell.job.filter(|job| job.access == plot.access);
            let mine: Vec<(&Row<'_>, Job)> = rows
                .iter()
                .filter(|row| row.cell.medium == medium && !row.cell.remote)
                .filter_map(|row| Some((row, job(row)?)))
                .collect();
            let line = |version: &Version<System>| {
                let system = version.system;
                let value = |(at, (row, _)): (usize, &(&Row<'_>, Job))| {
                    Some((at as f64, row.figure(system, plot.value)?.median))
                };
                let points: Vec<(f64, f64)> = mine.iter().enumerate().filter_map(value).collect();
                let (name, color, limit) = (system.as_str(), color(system), system == System::Null);
                (!points.is_empty()).then_some(Line { name, color, limit, points })
            };
            let lines: Vec<Line> = disks.systems.iter().filter_map(line).collect();
            let label = |&(_, job): &(&Row<'_>, Job)| match job.jobs {
                1 => format!("{}", job.depth),
                jobs => format!("{jobs} x {}", job.depth),
            };
            let labels: Vec<String> = mine.iter().map(label).collect();
            if mine.len() < 2 || lines.is_empty() {
                continue;
            }
            let title = format!("{}, image on {}", plot.title, medium.as_str());
            let frame = Frame { title: &title, across: "jobs x requests in flight", up: plot.up };
            // Only a drawing that fails is left out; a string takes everything.
            if let Ok(svg) = render(&frame, &labels, &lines) {
                let name = format!("disk-{}-{}.svg", plot.file, medium.as_str());
                figures.push(Figure { name, svg });
            }
        }
    }
    figures
}

fn color(system: System) -> RGBColor {
    match system {
        System::Qsd => RGBColor(0x00, 0x72, 0xb2),
        System::Fio => RGBColor(0x00, 0x9e, 0x73),
        System::FuseShm | System::FuseLibfabric | System::FuseTcp => RGBColor(0xe6, 0x9f, 0x00),
        System::Null | System::QsdNbd | System::Nbd | System::Gfarm => RGBColor(0x99, 0x99, 0x99),
        _ => RGBColor(0xd5, 0x5e, 0x00),
    }
}
