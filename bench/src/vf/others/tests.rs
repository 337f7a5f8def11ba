use super::*;

/// As the kernel prints it; QEMU is 400, and the measurement's own.
const TRACE: &str = "\
# tracer: nop
#
# entries-in-buffer/entries-written: 6/6   #P:2
#
#                                _-----=> irqs-off/BH-disabled
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
 systemd-journal-8125    [000] d..2.  10.000100: sched_stat_runtime: comm=systemd-journal pid=8125 runtime=900000 [ns]
##### CPU 1 buffer started ####
       kdamond.0-77      [001] d.h2.  10.004200: sched_stat_runtime: comm=kdamond.0 pid=77 runtime=4000000 [ns]
     rcu_preempt-15      [001] d..2.  10.004207: sched_stat_runtime: comm=rcu_preempt pid=15 runtime=7000 [ns] vruntime=12 [ns]
 qemu-system-x86-400     [001] d..2.  10.004900: sched_stat_runtime: comm=qemu-system-x86 pid=400 runtime=693000 [ns]
          <idle>-0       [000] d..2.  10.005001: sched_stat_runtime: comm=kdamond.0 pid=77 runtime=1000 [ns]
              sh-900     [001] d..2.  10.007005: sched_stat_runtime: comm=sh pid=900 runtime=1005000 [ns]
";
const START: u64 = 10_000_000_000;
const END: u64 = START + 7_000_000;

fn own() -> BTreeSet<u32> {
    BTreeSet::from([0, 400])
}

fn line(name: &str, id: u32) -> String {
    format!(
        "{name:>16}-{id:<7} [001] d..2. 10.000500: sched_stat_runtime: comm={name} pid={id} runtime=20000 [ns]"
    )
}

fn names(recording: &Recording) -> Vec<&str> {
    recording.ran.iter().map(|ran| ran.name.as_str()).collect()
}

#[test]
fn records_say_when_others_ran() {
    let recording = parse(TRACE, &own(), (START, END)).unwrap();
    let at = |id, name: &str, from: u64, to: u64| Ran {
        id,
        name: name.to_owned(),
        from: START + from * 1000,
        to: START + to * 1000,
    };
    let expected = [
        // Who ran when it began, and who does when it ends.
        at(8125, "systemd-journal", 0, 100),
        at(77, "kdamond.0", 200, 4200),
        at(15, "rcu_preempt", 4200, 4207),
        at(77, "kdamond.0", 5000, 5001),
        at(900, "sh", 6000, 7000),
    ];
    assert_eq!(recording.ran, expected);
    assert_eq!((recording.records, recording.length), (6, 7_000_000));
    // Nobody is left to be recorded.
    let all = BTreeSet::from([15, 77, 400, 900, 8125]);
    assert_eq!(parse(TRACE, &all, (START, END)).unwrap().ran, []);
}

#[test]
fn names_say_what_they_like() {
    // Of fifteen bytes, the most there are.
    for name in [
        " pid=1 runtime=",
        "a b pid=1 pid=2",
        "[000] 1.000000:",
        "-7 [000] d..2. ",
        "# entries-in-bu",
    ] {
        assert_eq!(name.len(), 15);
        let text = format!("{}\n{}\n", line(name, 1), line(name, 2));
        let recording = parse(&text, &own(), (START, END)).unwrap();
        assert_eq!(names(&recording), [printable(name), printable(name)]);
        assert_eq!(recording.ran.iter().map(|ran| ran.id).collect::<Vec<_>>(), [1, 2]);
    }
    // What `echo sh >/proc/self/comm` makes.
    let text = format!("{}\n{}\n", line("sh\n", 1), line("a\n\nb", 2));
    assert_eq!(names(&parse(&text, &own(), (START, END)).unwrap()), ["sh?", "a?b"]);
    assert_eq!(printable("a|b `c`\u{1b}é"), "a?b??c???");
}

#[test]
fn half_a_record_is_an_error() {
    let good = line("sh", 1);
    assert!(parse(&good, &own(), (START, END)).is_ok());
    for bad in [
        good.split_at(80).0,
        &format!("{good}\n{}", "x\n".repeat(1000)),
        &format!("CPU:1 [LOST 12 EVENTS]\n{good}"),
        &good.replace("10.000500", "10.5"),
        &good.replace("10.000500", "99999999999999999999.000500"),
        &good.replace("pid=1", "pid=x"),
        &good.replace("pid=1", "pid=99999999999"),
        &good.replace("20000", "-1"),
        &TRACE.replace(" 6/6 ", " 6/9 "),
        &TRACE.replace(" 6/6 ", " 6 "),
    ] {
        assert!(parse(bad, &own(), (START, END)).is_err(), "{bad}");
    }
    // Without flags, which are an option of the kernel's; and longer than there is time.
    assert!(parse(&good.replace(" d..2.", ""), &own(), (START, END)).is_ok());
    let long = parse(&good.replace("20000", &u64::MAX.to_string()), &own(), (START, END)).unwrap();
    assert_eq!(long.named("sh"), 500_000);
}

#[test]
fn what_our_threads_start_is_ours() {
    let trace = "\
# entries-in-buffer/entries-written: 3/3   #P:2
            sh-400   [001] ..... 10.000001: sched_process_fork: comm=sh pid=400 child_comm=sh child_pid=401
            sh-401   [000] ..... 10.000002: sched_process_fork: comm=a pid=9 child_c pid=401 child_comm= pid=7 child_co child_pid=402
            sh-8     [000] ..... 10.000003: sched_process_fork: comm=sh pid=8 child_comm=sh child_pid=10
";
    let mut known = own();
    adopt(&mut known, trace).unwrap();
    assert_eq!(known, BTreeSet::from([0, 400, 401, 402]));
    assert!(adopt(&mut known, &trace.replace("3/3", "3/5")).is_err());
    assert!(adopt(&mut known, "sh-8 [000] 10.000003: something: else").is_err());
}

#[test]
fn trips_are_set_aside_while_others_run() {
    let recording = parse(TRACE, &own(), (START, END)).unwrap();
    let trip = |from: u64, to: u64| [START + to * 1000, (to - from) * 1000];
    // kdamond.0 takes 4 ms of the first; the second is beside it, and has 7 and 1 us of others; the third has none.
    let trips = vec![trip(4300, 4900), trip(4200, 5990), trip(100, 4300)];
    let found = recording.judge(trips.clone());
    assert_eq!(found.undisturbed, Some(1790.0));
    assert_eq!((found.listed, found.disturbed, found.aside), (3, 1, 1));
    let close = |one: f64, other: f64| (one - other).abs() < 1e-6;
    assert!(close(found.all, 1e3 * (0.1 + 4.0 + 0.007 + 0.001 + 1.0) / 7.0), "{found:?}");
    assert_eq!(found.most.len(), 4, "{found:?}");
    assert_eq!(found.most[0].0, "kdamond.0");
    assert!(close(found.most[0].1, 1e3 * 4.001 / 7.0), "{found:?}");
    assert!(close(found.records, 6e3 / 7.0), "{found:?}");
    assert_eq!(found.unseen, None);
    // Another 3 us, and the second is disturbed as well.
    let found = recording.judge(vec![trips[0], trip(4197, 5990)]);
    assert_eq!((found.undisturbed, found.disturbed, found.aside), (Some(600.0), 1, 1));
    // All of them.
    let found = recording.judge(vec![trip(100, 4300), trip(0, 7000)]);
    assert_eq!((found.undisturbed, found.disturbed, found.aside), (None, 2, 2));
    // None at all.
    let found = recording.judge(Vec::new());
    assert_eq!((found.undisturbed, found.listed), (None, 0));
}

#[test]
fn what_was_not_recorded_is_known() {
    let mut recording = parse(TRACE, &own(), (START, END)).unwrap();
    // 77 has had 4.001 ms by the records, 68 nothing; 15 is said to have had less than was recorded.
    recording.compare(&BTreeMap::from([(77, 5_001_000), (68, 400_000), (15, 6_000)]));
    let found = recording.judge(Vec::new());
    assert_eq!(found.unseen, Some(1.4e9 / 7e6));
}

#[test]
fn only_the_longest_are_looked_at() {
    let recording = parse("", &own(), (START, END)).unwrap();
    let trips = (0..1000).map(|n| [START + 1_000_000, n]).collect();
    let found = recording.judge(trips);
    assert_eq!((found.undisturbed, found.listed), (Some(0.999), LISTED));
}
