use std::path::PathBuf;

use tempfile::TempDir;

use super::*;

/// A machine with one CPU, this driver and this request; and where the request is.
fn machine(driver: &str, request: &str) -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("cpuidle")).unwrap();
    fs::create_dir_all(root.path().join("cpu3/power")).unwrap();
    fs::write(root.path().join("cpuidle/current_driver"), format!("{driver}\n")).unwrap();
    let path = root.path().join("cpu3/power/pm_qos_resume_latency_us");
    fs::write(&path, request).unwrap();
    (root, path)
}

#[test]
fn it_is_asked_for_and_withdrawn() {
    for (driver, usual, quick) in
        [("haltpoll", "0\n", "n/a"), ("intel_idle", "0\n", "20"), ("acpi_idle", "100", "20")]
    {
        let (root, path) = machine(driver, usual);
        let now = || {
            // A kernel replaces the request, a file keeps what was behind it.
            let text = fs::read_to_string(&path).unwrap();
            text.trim().to_owned()
        };
        let mut wakeup = QuickWakeup::of(root.path(), 3).unwrap();
        assert_eq!(now(), usual.trim());
        wakeup.ask(true).unwrap();
        assert!(now().starts_with(quick));
        fs::write(&path, "").unwrap();
        wakeup.ask(true).unwrap();
        assert_eq!(now(), "", "it was asked for twice");
        drop(wakeup);
        assert_eq!(now(), usual.trim());
    }
}

#[test]
fn what_a_killed_process_left_is_withdrawn() {
    let (root, path) = machine("haltpoll", "n/a\n");
    let mut wakeup = QuickWakeup::of(root.path(), 3).unwrap();
    wakeup.ask(true).unwrap();
    fs::write(&path, "").unwrap();
    drop(wakeup);
    assert_eq!(fs::read_to_string(&path).unwrap(), "0");
}

#[test]
fn stricter_requests_of_others_stay() {
    for usual in ["n/a", "10"] {
        let (root, _) = machine("intel_idle", usual);
        let refused = QuickWakeup::of(root.path(), 3).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
    }
}

#[test]
fn machines_that_cannot_say_so() {
    let (root, path) = machine("none", "0");
    assert_eq!(QuickWakeup::of(root.path(), 3).unwrap_err().kind(), io::ErrorKind::NotFound);
    fs::write(root.path().join("cpuidle/current_driver"), "haltpoll\n").unwrap();
    assert!(QuickWakeup::of(root.path(), 3).is_ok());
    fs::remove_file(path).unwrap();
    assert_eq!(QuickWakeup::of(root.path(), 3).unwrap_err().kind(), io::ErrorKind::NotFound);
}
