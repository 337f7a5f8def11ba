use super::*;
use crate::cell::{Kind, Rings, Side};
use crate::place::{Crowded, Distance};
use crate::wake::WakeUp;
use crate::window::RoundTrips;

const MIDDLE: Regime = Regime { distance: Distance::Middle, ..Regime::NEAR };

/// A report that was made up.
fn report(outcomes: Vec<Outcome>) -> Report {
    let mut systems: Vec<System> = outcomes.iter().map(|outcome| outcome.system).collect();
    systems.sort();
    systems.dedup();
    let version = |system| Version { system, version: "1.0".into() };
    Report {
        command: "hayate bench --quick".into(),
        machine: Machine {
            processor: "A processor".into(),
            cpus: 2,
            memory: 24,
            kernel: "6.0".into(),
            system: "A system".into(),
            ticks: 2.6,
            place: [0, 1],
        },
        wake: Some(WakeUp { delay: 39.2, cpu: 9.2, halt_poll: Some(0) }),
        systems: systems.into_iter().map(version).collect(),
        touch: Touch::Headers,
        offloads: false,
        outcomes,
        disks: None,
        pods: None,
    }
}

fn cell(kind: Kind) -> Cell {
    Cell {
        kind,
        rings: Rings::Packed,
        size: 64,
        pairs: 1,
        queues: 1,
        entries: 256,
        flows: 1,
        routers: 0,
        machines: 0,
        prefixes: 0,
        mischief: None,
        rate: None,
        side: Side::Both,
        touch: Touch::Headers,
        offloads: false,
    }
}

pub(crate) fn window(round: u32, regime: Regime, mpps: f64) -> Window {
    Window {
        round,
        line: [Some(100.0); 2],
        crowding: None,
        regime: Some(regime),
        quiet: true,
        alive: true,
        waited: 0.0,
        stolen: 0,
        seconds: 0.1,
        sent: 1_000,
        received: 1_000,
        mpps,
        away: 0.0,
        full: 90.0,
        cpu: 100.0,
        busy: Some(95.0),
        cycles: Some(150.0),
        round_trips: None,
    }
}

pub(crate) fn outcome(system: System, windows: Vec<Window>) -> Outcome {
    Outcome { cell: cell(Kind::Throughput), system, windows, problem: None }
}

#[test]
fn windows_of_one_regime_are_compared() {
    let (middle, near) = (MIDDLE, Regime::NEAR);
    // hayate had most of its windows far away, but there the other one has none.
    let own = [(0, middle, 5.0), (0, middle, 5.0), (0, middle, 5.0), (1, near, 20.0)];
    let its = [(0, near, 10.0), (1, near, 10.0)];
    let windows = |of: &[(u32, Regime, f64)]| {
        of.iter().map(|&(round, regime, mpps)| window(round, regime, mpps)).collect()
    };
    let report =
        report(vec![outcome(System::Hayate, windows(&own)), outcome(System::Ovs, windows(&its))]);
    let rows = report.rows();
    assert_eq!(rows[0].regime, Some(near));
    let mpps = |window: &Window| Some(window.mpps);
    assert_eq!(rows[0].figure(System::Hayate, mpps).unwrap().median, 20.0);
    // Only round 1 has both.
    let ratio = rows[0].ratio(System::Ovs, mpps).unwrap();
    assert_eq!((ratio.median, ratio.n), (0.5, 1));
}

#[test]
fn ratios_are_of_the_same_round() {
    let own = vec![window(0, Regime::NEAR, 20.0), window(1, Regime::NEAR, 10.0)];
    let its = vec![window(0, Regime::NEAR, 10.0), window(1, Regime::NEAR, 5.0)];
    let report = report(vec![outcome(System::Hayate, own), outcome(System::Testpmd, its)]);
    let ratio = report.rows()[0].ratio(System::Testpmd, |w| Some(w.mpps)).unwrap();
    assert_eq!((ratio.median, ratio.min, ratio.max, ratio.n), (0.5, 0.5, 0.5, 2));
}

#[test]
fn shared_cores_are_compared_only_where_there_is_little_else() {
    let near = Regime::NEAR;
    let (crowded, apart) =
        (Regime { crowded: Crowded::Both, ..near }, Regime { crowded: Crowded::Both, ..MIDDLE });
    for (alone, regime, mpps) in [(11, crowded, 5.0), (12, near, 10.0)] {
        let windows = [(alone, near, 10.0), (13, apart, 2.0), (14, crowded, 5.0)];
        let windows = windows
            .iter()
            .flat_map(|&(n, regime, mpps)| (0..n).map(move |_| window(0, regime, mpps)));
        let report = report(vec![outcome(System::Hayate, windows.collect())]);
        let rows = report.rows();
        assert_eq!(rows[0].regime, Some(regime));
        assert_eq!(rows[0].figure(System::Hayate, |w| Some(w.mpps)).unwrap().median, mpps);
    }
    assert!(!window(0, crowded, 1.0).is_wanted() && window(0, near, 1.0).is_wanted());
}

#[test]
fn whose_core_is_shared_is_not_mixed() {
    // Both have most windows with the switch's core crowded, but in no round both.
    let [guests, switch] =
        [Crowded::Guests, Crowded::Switch].map(|crowded| Regime { crowded, ..Regime::NEAR });
    let own = [(0, switch, 5.0), (0, switch, 5.0), (0, switch, 5.0), (1, guests, 9.0)];
    let its = [(0, guests, 6.0), (1, guests, 6.0), (2, switch, 3.0), (2, switch, 3.0)];
    let of = |system, windows: [(u32, Regime, f64); 4]| {
        outcome(system, windows.map(|(round, regime, mpps)| window(round, regime, mpps)).to_vec())
    };
    let report = report(vec![of(System::Hayate, own), of(System::Ovs, its)]);
    let row = &report.rows()[0];
    assert_eq!(row.regime, Some(switch));
    let mpps = |w: &Window| Some(w.mpps);
    assert_eq!(row.ratio(System::Ovs, mpps).unwrap().median, 3.0 / 5.0);
    let (own, its) = (row.of(System::Hayate).unwrap(), row.of(System::Ovs).unwrap());
    assert!(ratios(its, own, switch, mpps).is_empty(), "no rounds, so no tie");
    assert_eq!(ratios(its, own, guests, mpps), vec![6.0 / 9.0]);
}

#[test]
fn noisy_windows_and_moved_cpus_do_not_count() {
    let noisy = Window { quiet: false, ..window(0, Regime::NEAR, 99.0) };
    let moved = Window { regime: None, ..window(0, Regime::NEAR, 99.0) };
    let dead = Window { alive: false, ..window(0, Regime::NEAR, 99.0) };
    assert!(!noisy.counts() && !moved.counts() && !dead.counts());
    let windows = vec![noisy, window(0, Regime::NEAR, 10.0), moved, dead];
    let report = report(vec![outcome(System::Hayate, windows)]);
    let figure = report.rows()[0].figure(System::Hayate, |w| Some(w.mpps)).unwrap();
    assert_eq!((figure.median, figure.n), (10.0, 1));
}

#[test]
fn a_figure_near_the_limit_is_marked() {
    let of = |system, mpps| outcome(system, vec![window(0, Regime::NEAR, mpps)]);
    let report =
        report(vec![of(System::Hayate, 33.0), of(System::Ovs, 14.0), of(System::Limit, 40.0)]);
    let rows = report.rows();
    assert!(rows[0].bound(System::Hayate));
    assert!(!rows[0].bound(System::Ovs));
    assert!(!rows[0].bound(System::Limit));
    let text = report.markdown();
    assert_eq!(text.matches(" † |").count(), 1, "{text}");
}

#[test]
fn a_figure_of_a_worker_that_had_time_is_marked() {
    let of = |system, busy| {
        let windows = vec![Window { busy: Some(busy), ..window(0, Regime::NEAR, 10.0) }];
        outcome(system, windows)
    };
    // What others count as busy is not everything they do for frames.
    let report = report(vec![of(System::Hayate, 89.0), of(System::Ovs, 75.0)]);
    let rows = report.rows();
    assert!(rows[0].bound(System::Hayate));
    assert!(!rows[0].bound(System::Ovs));
}

#[test]
fn one_system_is_recorded_over_many_turns() {
    let mut outcomes = Vec::new();
    let cell = cell(Kind::Throughput);
    let turn = |round| vec![window(round, Regime::NEAR, 1.0)];
    Outcome::record(&mut outcomes, cell, System::Hayate, turn(0), None);
    Outcome::record(&mut outcomes, cell, System::Ovs, turn(0), Some("it broke\nhere".into()));
    Outcome::record(&mut outcomes, cell, System::Ovs, Vec::new(), None);
    Outcome::record(&mut outcomes, cell, System::Hayate, turn(1), None);
    assert_eq!(outcomes.len(), 2);
    assert_eq!(outcomes[0].windows.len(), 2);
    // What was measured before it broke is kept, and why there is no more.
    assert_eq!(outcomes[1].windows.len(), 1);
    let text = report(outcomes).markdown();
    assert!(text.contains("OVS-DPDK, Throughput, one way, packed, 64 B: it broke"), "{text}");
}

/// All kinds of tables, with something of everything in them.
fn everything() -> Report {
    let trips = |p50| Some(RoundTrips { n: 4_000, p50, p99: 2.0 * p50, p999: 9.0 * p50 });
    let mut outcomes = Vec::new();
    for size in [64, 1518] {
        for (system, mpps) in [(System::Hayate, 16.0), (System::Testpmd, 20.0)] {
            let windows = (0..3).map(|round| window(round, Regime::NEAR, mpps)).collect();
            let cell = Cell { size, ..cell(Kind::Throughput) };
            outcomes.push(Outcome { cell, system, windows, problem: None });
        }
    }
    for (system, p50) in [(System::Hayate, 700.0), (System::Testpmd, 1_400.0)] {
        let one = Window { round_trips: trips(p50), ..window(0, Regime::NEAR, 0.1) };
        outcomes.push(Outcome { cell: cell(Kind::Rtt), system, windows: vec![one], problem: None });
    }
    for (rate, cpu) in [(0, 0.25), (1_000_000, 50.0)] {
        let (sent, received) = (rate.into(), rate.into());
        let one = Window { cpu, sent, received, ..window(0, Regime::NEAR, f64::from(rate) / 1e6) };
        let cell = Cell { rate: Some(rate), ..cell(Kind::Cpu) };
        let system = System::Hayate;
        outcomes.push(Outcome { cell, system, windows: vec![one], problem: None });
    }
    for (system, cpu) in [(System::Hayate, 10.0), (System::OvsSleep, 30.0)] {
        for (side, cpu) in [(Side::Sending, cpu), (Side::Both, 2.0 * cpu)] {
            let one = Window { cpu, cycles: Some(10.0 * cpu), ..window(0, Regime::NEAR, 0.5) };
            let cell = Cell { rate: Some(500_000), side, ..cell(Kind::Sides) };
            outcomes.push(Outcome { cell, system, windows: vec![one], problem: None });
        }
    }
    outcomes.sort_by_key(|outcome| (outcome.cell.kind, outcome.cell));
    let problem = Some("it has not so many ports".to_owned());
    let cell = Cell { pairs: 32, ..cell(Kind::Pairs) };
    outcomes.push(Outcome { cell, system: System::Testpmd, windows: Vec::new(), problem });
    report(outcomes)
}

#[test]
fn the_tables_look_as_they_should() {
    let golden = include_str!("golden.md");
    let text = everything().markdown();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/report/golden.md");
        fs::write(path, &text).unwrap();
    }
    assert!(text == golden, "not as in golden.md:\n{text}");
}

#[test]
fn json_comes_back_as_it_was() {
    let report = everything();
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
}

#[test]
fn files_are_written_and_figures_are_drawn() {
    let directory = tempfile::tempdir().unwrap();
    let paths = everything().write(&directory.path().join("new")).unwrap();
    let mut names: Vec<String> =
        paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    let figures = ["sides-packed.svg", "throughput-bits-packed.svg", "throughput-packed.svg"];
    let others = ["README.md", "cpu-packed.svg", "figures.json"];
    assert_eq!(names, [others, figures].concat());
    let read = |name: &str| fs::read_to_string(directory.path().join("new").join(name)).unwrap();
    let svg = read("throughput-packed.svg");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for word in ["hayate", "dpdk-testpmd io", "1518", "Mpps"] {
        assert!(svg.contains(word), "{word}");
    }
    assert!(read("README.md").contains("](throughput-packed.svg)"));
}
