use super::*;
use crate::disk::Table;
use crate::disk::cell::{self, Access, Job, Medium};
use crate::disk::promises::promises;
use crate::place::Regime;
use crate::window::RoundTrips;

fn window(round: u32, rate: f64, p50: f64) -> Window {
    let latency = RoundTrips { n: 1_000, p50, p99: 2.0 * p50, p999: 3.0 * p50 };
    Window {
        round,
        line: [Some(100.0); 2],
        crowding: None,
        regime: Some(Regime::NEAR),
        quiet: true,
        waited: 0.0,
        others: 0.0,
        stolen: 0,
        seconds: 0.3,
        rate,
        latency: Some(latency),
        cpu: 50.0,
        server: None,
        empty: Some(90.0),
    }
}

const SYSTEMS: [System; 8] = [
    System::Hayate,
    System::Qsd,
    System::Fio,
    System::StoreShm,
    System::StoreGfarmTcp,
    System::FuseTcp,
    System::Gfarm,
    System::QsdNbd,
];

/// Everything once, made up: hayate is faster by half, and waits for QD 1 a little longer.
fn everything() -> Disks {
    let tables = [Table::Disk, Table::Store, Table::StoreGuest, Table::DiskIdle];
    let cells = cell::cells(&tables, &[Medium::Tmpfs, Medium::Disk], false);
    let few = |job: Job| match job.access {
        Access::RandomRead => job.jobs == 1 && job.depth < 128,
        Access::Write => job.block == 1 << 20,
        _ => false,
    };
    let short = |cell: &&Cell| cell.job.is_none_or(few);
    let mut outcomes = Vec::new();
    for &cell in cells.iter().filter(short) {
        for system in SYSTEMS {
            if !system.takes_part(&cell) {
                continue;
            }
            let depth = cell.job.map_or(0, |job| job.depth);
            let (rate, p50) = match system {
                System::Hayate | System::StoreShm => (15_000.0, 11_000.0),
                _ => (10_000.0, 10_000.0),
            };
            let rate = rate * f64::from(depth);
            let server = cell.remote.then_some(25.0);
            let one = |round| Window { cpu: 0.25, server, ..window(round, rate, p50) };
            let mut windows = vec![one(0), one(1)];
            if cell.job.is_some() {
                windows.iter_mut().for_each(|window| window.cpu = 50.0);
            }
            outcomes.push(Outcome { cell, system, windows, problem: None });
        }
    }
    if let Some(last) = outcomes.last_mut() {
        last.windows.clear();
        last.problem = Some("it ended in the middle\nfor some reason".into());
    }
    let version = |system| Version { system, version: "1.0".into() };
    Disks {
        systems: SYSTEMS.map(version).into(),
        size: 1 << 30,
        polls: true,
        guest: Some("QEMU 11, Linux 6.12".into()),
        aio: [(Medium::Tmpfs, "io_uring".into()), (Medium::Disk, "native".into())].into(),
        outcomes,
    }
}

#[test]
fn the_tables_look_as_they_should() {
    let golden = include_str!("golden.md");
    let mut text = String::new();
    write(&mut text, &everything()).unwrap();
    promises(&mut text, &everything()).unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/disk/report/golden.md");
        std::fs::write(path, &text).unwrap();
    }
    assert!(text == golden, "not as in golden.md:\n{text}");
}

#[test]
fn json_comes_back_as_it_was() {
    let text = serde_json::to_string(&everything()).unwrap();
    assert_eq!(serde_json::from_str::<Disks>(&text).unwrap(), everything());
}

#[test]
fn figures_are_of_a_medium() {
    let names: Vec<String> = draw(&everything()).into_iter().map(|f| f.name).collect();
    // Of the writes there is one point, which is no line.
    assert_eq!(names.len(), 2 * 2);
    assert!(names.contains(&"disk-read-tmpfs.svg".to_owned()), "{names:?}");
}

#[test]
fn windows_that_others_disturbed_do_not_count() {
    let disturbed = Window { quiet: false, ..window(0, 1.0, 1.0) };
    assert!(!disturbed.counts() && window(0, 1.0, 1.0).counts());
    assert!(one_line(&[disturbed]).starts_with("no window counts (of 1)"));
    assert!(one_line(&[window(0, 2_000.0, 1_000.0)]).contains("2.0 k IOPS"));
    assert_eq!(window(0, 1e6, 1.0).cpu_for_a_million(), Some(0.5));
    assert_eq!(window(0, 0.0, 1.0).cpu_for_a_million(), None);
}
