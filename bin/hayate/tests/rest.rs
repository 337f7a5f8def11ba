//! The REST interface, as a program without this one's client sees it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use common::{Daemon, committed, hayate};
use serde_json::Value;

fn document() -> Value {
    serde_json::from_str(&hayate(["openapi"]).out).unwrap()
}

#[track_caller]
fn refused(daemon: &Daemon, request: (&str, &str, &str), status: u16, code: &str) -> Value {
    let (got, body) = daemon.http(request.0, request.1, request.2);
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((got, body["error"]["code"].as_str()), (status, Some(code)), "{request:?}: {body}");
    assert!(body["error"]["message"].as_str().unwrap().len() > 10, "{body}");
    body
}

#[test]
fn the_description_matches_what_answers() {
    let daemon = Daemon::start(&[]);
    assert_eq!(daemon.http("PUT", "/v1/networks/x", "{}").0, 201);
    let vm = format!("{{\"channel\":\"{}\"}}", daemon.run_dir.join("x.sock").display());
    assert_eq!(daemon.http("PUT", "/v1/vms/x", &vm).0, 201);
    // Its first port is named as it is.
    let pf = r#"{"network":"x","vm":"x","vfs":2}"#;
    assert_eq!(daemon.http("PUT", "/v1/pfs/x", pf).0, 201);
    assert_eq!(daemon.http("PUT", "/v1/images/x", r#"{"size":"1M"}"#).0, 201);
    assert_eq!(daemon.http("PUT", "/v1/disks/x", r#"{"image":"x","vm":"x"}"#).0, 201);
    let document = document();
    let mut operations = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.replace("{name}", "x").replace("{id}", "0");
        for (method, operation) in methods.as_object().unwrap() {
            operations += 1;
            if method != "get" {
                continue;
            }
            let (status, body) = daemon.http("GET", &path, "");
            assert_eq!(status, 200, "{path}: {body}");
            let content = &operation["responses"]["200"]["content"];
            if let Some(schema) = content.get("application/json") {
                let answer = serde_json::from_str(&body).unwrap();
                conforms(&answer, &schema["schema"], &document, &path);
            }
        }
        // A method that is not described is refused, and not as an unknown path.
        refused(&daemon, ("PATCH", &path, ""), 405, "no-such-method");
    }
    assert_eq!(operations, 49);
}

/// Checks types, required fields and that nothing is there that is not described.
fn conforms(value: &Value, schema: &Value, document: &Value, place: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap();
        return conforms(value, &document["components"]["schemas"][name], document, place);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let null = value.is_null() && choices.iter().any(|choice| choice["type"] == "null");
        if !null {
            let choice = choices.iter().find(|choice| choice["type"] != "null").unwrap();
            // An enumeration of texts is a choice of choices.
            if choice.get("enum").is_none() {
                conforms(value, choice, document, place);
            }
        }
        return;
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => return,
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    assert!(kinds.contains(&kind), "{place}: {value} is not {kinds:?}");
    for item in value.as_array().into_iter().flatten() {
        conforms(item, &schema["items"], document, place);
    }
    let Some(properties) = schema["properties"].as_object() else { return };
    for required in schema["required"].as_array().into_iter().flatten() {
        assert!(value.get(required.as_str().unwrap()).is_some(), "{place}: {required} is missing");
    }
    for (key, inner) in value.as_object().unwrap() {
        let place = format!("{place}.{key}");
        assert!(properties.contains_key(key), "{place} is not described");
        conforms(inner, &properties[key], document, &place);
    }
}

#[test]
fn the_committed_description_is_that_of_the_program() {
    committed("docs/openapi.json", &hayate(["openapi"]).out);
}

#[test]
fn asking_twice_for_the_same_is_no_mistake() {
    let daemon = Daemon::start(&[]);
    for (path, one, two) in [
        ("/v1/networks/lan", "{}", r#"{"mac_limit": 5}"#),
        ("/v1/vms/web", r#"{"memory": "2G"}"#, r#"{"memory": "3G"}"#),
        (
            "/v1/ports/a",
            r#"{"network":"lan","kind":"vhost"}"#,
            r#"{"network":"lan","kind":"vhost","mtu":9000}"#,
        ),
        (
            "/v1/pfs/p",
            r#"{"network":"lan","vm":"web","vfs":2}"#,
            r#"{"network":"lan","vm":"web","vfs":3}"#,
        ),
    ] {
        assert_eq!(daemon.http("PUT", path, one).0, 201);
        assert_eq!(daemon.http("PUT", path, one).0, 200);
        refused(&daemon, ("PUT", path, two), 409, "exists");
    }
    // A default that is said is the same as one that is not.
    let said = r#"{"network":"lan","kind":"vhost","mode":"server","queues":8}"#;
    assert_eq!(daemon.http("PUT", "/v1/ports/a", said).0, 200);
    assert_eq!(daemon.http("DELETE", "/v1/ports/a", ""), (204, String::new()));
    refused(&daemon, ("DELETE", "/v1/ports/a", ""), 404, "not-found");
}

#[test]
fn refusals_have_a_code_a_message_and_a_hint() {
    let daemon = Daemon::start(&[]);
    daemon.ok("network add lan");
    daemon.ok("port add a --network lan --kind vhost");
    daemon.ok("port add t --network lan --kind tap --ifname t0");
    let put = |body: &'static str| ("PUT", "/v1/ports/b", body);
    for (request, status, code) in [
        (("GET", "/v1/ports/b", ""), 404, "not-found"),
        (("GET", "/v1/ports/a%20b", ""), 400, "invalid"),
        (("GET", "/v1/nothing", ""), 404, "not-found"),
        (("GET", "/v2/ports", ""), 404, "not-found"),
        (("POST", "/v1/ports", "{}"), 405, "no-such-method"),
        (("DELETE", "/v1/networks/lan", ""), 409, "in-use"),
        (put(""), 400, "invalid"),
        (put("{"), 400, "invalid"),
        (put(r#"{"network":"lan"}"#), 400, "invalid"),
        (put(r#"{"network":"lan","kind":"vhost","speed":1}"#), 400, "invalid"),
        (put(r#"{"network":"lan","kind":"vhost","vlan":4095}"#), 400, "invalid"),
        (put(r#"{"network":"lan","kind":"vhost","worker":9}"#), 400, "invalid"),
        (put(r#"{"network":"lan","kind":"vhost","socket":"relative"}"#), 400, "invalid"),
        (put(r#"{"network":"none","kind":"vhost"}"#), 404, "not-found"),
        (put(r#"{"network":"lan","kind":"vhost","vm":"none"}"#), 404, "not-found"),
        (put(r#"{"network":"lan","kind":"tap","ifname":"t0"}"#), 409, "in-use"),
        (put(r#"{"network":"lan","kind":"tap","ifname":"t1","netns":"none"}"#), 500, "host"),
    ] {
        refused(&daemon, request, status, code);
    }
    let put = |body: &'static str| ("PUT", "/v1/pfs/p", body);
    for (request, status, code) in [
        (("GET", "/v1/pfs/p", ""), 404, "not-found"),
        (put(r#"{"network":"lan","vfs":1}"#), 400, "invalid"),
        (put(r#"{"network":"lan","vm":"v","vfs":0}"#), 400, "invalid"),
        (put(r#"{"network":"lan","vm":"v","vfs":256}"#), 400, "invalid"),
        (put(r#"{"network":"lan","vm":"v","vfs":1,"kind":"vhost"}"#), 400, "invalid"),
        (put(r#"{"network":"lan","vm":"v","vfs":1}"#), 404, "not-found"),
    ] {
        refused(&daemon, request, status, code);
    }
    let own = daemon.run_dir.join("ports/a.sock");
    let body = format!(r#"{{"network":"lan","kind":"vhost","socket":"{}"}}"#, own.display());
    let body = refused(&daemon, ("PUT", "/v1/ports/b", &body), 409, "in-use");
    assert!(body["error"]["message"].as_str().unwrap().contains("port a"), "{body}");
    let body = refused(&daemon, ("GET", "/v1/networks/none", ""), 404, "not-found");
    assert!(body["error"]["hint"].as_str().unwrap().contains("hayate network list"), "{body}");
    // None of this left anything behind.
    assert_eq!(daemon.json("port list --json").as_array().unwrap().len(), 2);
}

#[test]
fn large_bodies_are_refused() {
    let daemon = Daemon::start(&[]);
    let large = format!("{{\"x\": \"{}\"}}", "x".repeat(100_000));
    refused(&daemon, ("PUT", "/v1/networks/a", &large), 413, "too-large");
    daemon.ok("network add lan");
}

#[test]
fn counters_for_prometheus() {
    let daemon = Daemon::start(&[]);
    daemon.ok("network add lan");
    daemon.ok("port add a --network lan --kind vhost");
    let (status, text) = daemon.http("GET", "/v1/metrics", "");
    assert_eq!(status, 200);
    let mut samples = 0;
    let mut announced = String::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("# TYPE ") {
            announced = name.split(' ').next().unwrap().to_owned();
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let name = name.split('{').next().unwrap();
            assert_eq!(name, announced, "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            samples += 1;
        }
    }
    assert!(samples > 10, "{text}");
    assert_eq!(daemon.ok("stats --prometheus").lines().count(), text.lines().count());
    assert!(
        text.contains("hayate_port_frames_total{port=\"a\",network=\"lan\",direction=\"from\"} 0")
    );
    assert!(text.contains("hayate_port_state{port=\"a\",network=\"lan\",state=\"waiting\"} 1"));
}

#[test]
fn a_hundred_ports_come_and_go_together() {
    let daemon = Daemon::start(&[]);
    daemon.ok("network add lan");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let daemon = &daemon;
            scope.spawn(move || {
                for port in 0..25 {
                    let path = format!("/v1/ports/p{thread}-{port}");
                    let body = r#"{"network":"lan","kind":"vhost"}"#;
                    assert_eq!(daemon.http("PUT", &path, body).0, 201);
                    assert_eq!(daemon.http("GET", "/v1/ports", "").0, 200);
                    if port % 5 == 0 {
                        assert_eq!(daemon.http("DELETE", &path, "").0, 204);
                    }
                }
            });
        }
    });
    assert_eq!(daemon.json("port list --json").as_array().unwrap().len(), 80);
    daemon.stop();
}
