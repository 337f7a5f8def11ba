use super::*;

#[test]
fn pins_to_each_allowed_cpu() {
    let allowed = allowed_cpus().unwrap();
    assert!(!allowed.is_empty() && allowed.is_sorted());
    for cpu in allowed {
        let thread = std::thread::spawn(move || {
            pin_current_thread(cpu).unwrap();
            assert_eq!(allowed_cpus().unwrap(), [cpu]);
            assert_eq!(rustix::thread::sched_getcpu(), cpu);
        });
        thread.join().unwrap();
    }
}

#[test]
fn refuses_cpus_that_are_not_there() {
    for cpu in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, usize::MAX] {
        let error = pin_current_thread(cpu).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{cpu}");
    }
}

#[test]
fn lists() {
    let parse = |text| parse_cpu_list(text).unwrap();
    assert_eq!(parse("0"), [0]);
    assert_eq!(parse("0-3,8"), [0, 1, 2, 3, 8]);
    assert_eq!(parse("8, 2-2,0-1,1\n"), [0, 1, 2, 8]);
    assert_eq!(parse("1023"), [1023]);
    for wrong in [
        "",
        "a",
        "1,",
        ",1",
        "3-1",
        "1-",
        "-1",
        "+1",
        "1-+2",
        "1--2",
        "1-2-3",
        "1024",
        "0-99999999999999999999",
    ] {
        assert!(parse_cpu_list(wrong).is_err(), "{wrong}");
    }
    let error = parse_cpu_list("0,two").unwrap_err().to_string();
    assert!(error.contains("`two`") && error.contains("0-3,8"), "{error}");
}

#[test]
fn a_thread_keeps_off_cpus_while_others_are_left() {
    std::thread::spawn(|| {
        let allowed = allowed_cpus().unwrap();
        assert!(!keep_current_thread_off(&allowed).unwrap());
        assert_eq!(allowed_cpus().unwrap(), allowed);
        let (first, rest) = allowed.split_first().unwrap();
        assert_eq!(keep_current_thread_off(&[*first, 99_999]).unwrap(), !rest.is_empty());
        assert_eq!(allowed_cpus().unwrap(), if rest.is_empty() { &allowed } else { rest });
    })
    .join()
    .unwrap();
}
