//! `hayate fabric`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use common::hayate;

#[test]
fn providers_are_listed_or_said_to_be_missing() {
    let said = hayate(["fabric", "list", "--json"]);
    assert_eq!(said.status, 0, "{said:?}");
    let all: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let providers = all["providers"].as_array().unwrap();
    let names: Vec<&str> = providers.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["tcp", "verbs"]);
    let text = hayate(["fabric", "list"]);
    assert_eq!(text.status, 0, "{text:?}");
    // As in the tests of the crate `fabric`.
    if let Ok(expected) = std::env::var("FABRIC_TEST_VERSION") {
        assert_eq!(all["libfabric"], expected);
        assert!(text.out.starts_with(&format!("libfabric {expected} (/")), "{text:?}");
    }
    if let Some(library) = all["library"].as_str() {
        assert!(std::path::Path::new(library).is_file(), "{library}");
        assert!(text.out.contains(&format!("({library})\n")), "{text:?}");
    }
    for provider in providers {
        // Either there is a place, or a reason: in both forms.
        let (name, places) = (provider["name"].as_str().unwrap(), &provider["places"]);
        assert_eq!(provider["usable"], !places.as_array().unwrap().is_empty());
        assert_eq!(provider["usable"], provider["reason"].is_null());
        match provider["reason"].as_str() {
            Some(reason) => {
                assert!(text.out.contains(&format!("{name}: not usable: {reason}")), "{text:?}");
            }
            None => assert!(text.out.lines().any(|line| line.starts_with(name)), "{text:?}"),
        }
    }
    // Every machine has a loopback interface.
    if all["libfabric"].is_null() {
        assert!(text.out.contains("libfabric-dev"), "{text:?}");
    } else {
        let local = providers[0]["places"].as_array().unwrap();
        assert!(local.iter().any(|place| place["address"] == "127.0.0.1"), "{local:?}");
    }
}
