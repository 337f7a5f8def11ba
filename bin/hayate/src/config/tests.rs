//! What is accepted, and where and how mistakes are reported.

use super::*;
use schemars::JsonSchema;

#[track_caller]
fn refused(text: &str, position: &str, parts: &[&str]) {
    let error = parse(Path::new("h.toml"), text).unwrap_err().to_string();
    assert!(error.starts_with(&format!("h.toml:{position}: ")), "{error}");
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

#[test]
fn the_example_is_accepted_and_names_every_key() {
    let config = parse(Path::new("example.toml"), EXAMPLE).unwrap();
    assert_eq!((config.networks.len(), config.vms.len(), config.ports.len()), (2, 2, 5));
    assert_eq!((config.pfs.len(), config.disks.len()), (1, 3));
    let schemas = [
        schemars::schema_for!(Config),
        schemars::schema_for!(NetworkConfig),
        schemars::schema_for!(VmConfig),
        schemars::schema_for!(PortConfig),
        schemars::schema_for!(PfConfig),
        schemars::schema_for!(api::PortPolicy),
        schemars::schema_for!(DiskConfig),
        schemars::schema_for!(api::DiskLimits),
    ];
    for schema in schemas {
        for key in schema.get("properties").unwrap().as_object().unwrap().keys() {
            let shown = [
                format!("\n{key} = "),
                format!("\n#{key} = "),
                format!("\n[{key}."),
                format!(".{key}]"),
            ];
            assert!(shown.iter().any(|text| EXAMPLE.contains(text.as_str())), "{key} is not shown");
        }
    }
}

#[test]
fn an_empty_file_is_accepted() {
    assert_eq!(parse(Path::new("h.toml"), "").unwrap(), Config::default());
}

#[test]
fn unknown_keys_say_what_is_allowed() {
    refused("poling = 5\n", "1:1", &["unknown field `poling`", "`polling`", "1 | poling = 5"]);
    let text = "[networks.lan]\n\n[ports.a]\nnetwork = \"lan\"\nkind = \"tap\"\n  ifnam = \"x\"\n";
    refused(text, "6:3", &["unknown field `ifnam`", "`ifname`", "^^^^^"]);
}

#[test]
fn wrong_values_say_what_is_allowed() {
    refused("polling = 7", "1:11", &["polling"]);
    refused("polling = \"fast\"", "1:11", &["unknown variant `fast`", "`balanced`"]);
    refused("cpus = \"3-1\"", "1:8", &["not a list of CPUs", "0,2-3"]);
    refused("log = \"loud\"", "1:7", &["error, warn, info, debug, trace"]);
    refused("[networks.\"a b\"]", "1:11", &["1 to 63 letters"]);
    refused("[vms.a]\nmemory = \"1\"", "2:10", &["512M"]);
    refused("[vms.a]\nvcpus = 0", "2:9", &["vms.a.vcpus", "1 to 1024"]);
    let text = "[networks.lan]\n[ports.a]\nkind = \"wire\"\nnetwork = \"lan\"";
    refused(text, "3:8", &["unknown variant `wire`", "`vhost`", "`tap`"]);
    let text = "[networks.lan]\n[ports.a]\nkind = \"vhost\"\nnetwork = \"lan\"\nvlan = 5000";
    refused(text, "5:8", &["ports.a.vlan", "1 to 4094", "5 | vlan = 5000", "^^^^"]);
}

#[test]
fn what_is_missing_is_reported_at_its_table() {
    refused("\n[ports.a]\nkind = \"vhost\"\n", "2:1", &["missing field `network`"]);
    let text = "[networks.lan]\n[ports.a]\nkind = \"tap\"\nnetwork = \"lan\"\n";
    refused(text, "2:8", &["ports.a.ifname", "needs the name of its interface"]);
}

#[test]
fn references_and_things_wanted_twice() {
    let text = "[ports.a]\nkind = \"vhost\"\nnetwork = \"lan\"\nvm = \"web\"\n";
    refused(text, "3:11", &["no [networks.lan]", "h.toml:4:6", "no [vms.web]"]);
    let port = "kind = \"vhost\"\nnetwork = \"lan\"\nsocket = \"/s\"\n";
    let text = format!("[networks.lan]\n[ports.a]\n{port}[ports.b]\n{port}");
    refused(&text, "9:10", &["ports.b.socket: port a has the same"]);
    let channel = "channel = \"/s\"\n";
    let text = format!("[vms.a]\n{channel}[vms.b]\n{channel}[networks.lan]\n[ports.b]\n{port}");
    refused(
        &text,
        "4:11",
        &["vms.b.channel: vm a has the same", "ports.b.socket: vm b has the same"],
    );
    refused("[vms.a]\nchannel = \"s\"\n", "2:11", &["vms.a.channel", "not an absolute path"]);
    refused("[networks.lan]\n[networks.lan]\n", "2:11", &["duplicate key"]);
}

#[test]
fn virtual_functions_and_their_ports() {
    let pf = "network = \"lan\"\nvm = \"web\"\nvfs = 2\n";
    let text = format!("[pfs.p]\n{pf}");
    refused(&text, "2:11", &["no [networks.lan]", "h.toml:3:6", "no [vms.web]"]);
    let head = "[networks.lan]\n[vms.web]\n";
    let port = "[ports.pvf1]\nkind = \"vhost\"\nnetwork = \"lan\"\n";
    refused(&format!("{head}{port}[pfs.p]\n{pf}"), "6:6", &["[ports.pvf1] has the name"]);
    refused(&format!("{head}[pfs.p]\n{pf}[pfs.pvf1]\n{pf}"), "7:6", &["p has a port pvf1 too"]);
    let long = format!("{head}[pfs.{}]\n{pf}", "x".repeat(61));
    refused(&long, "3:6", &["too long: 60 bytes"]);
    let many = format!("{head}[pfs.p]\nnetwork = \"lan\"\nvm = \"web\"\nvfs = 256\n");
    refused(&many, "6:7", &["pfs.p.vfs", "1 to 255"]);
}

#[test]
fn broken_syntax_has_a_place_too() {
    refused("a = [\n", "1:6", &["unclosed array"]);
    refused("é = \n", "1:1", &[]);
    refused("log = \"é\" x", "1:11", &[]);
}

#[test]
fn the_reference_explains_every_key() {
    let text = reference();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        assert_eq!(cells.len(), 3, "{line}");
        assert!(cells[2].trim_end_matches('|').trim().len() > 10, "{line}");
    }
    assert!(text.contains("| `kind` | `vhost`, `tap` |"), "{text}");
    assert!(text.contains("| `vlan` | 1 to 4094 |"), "{text}");
    assert!(<Config as JsonSchema>::schema_name() == "Config");
}
