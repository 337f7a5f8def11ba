//! Policies, and who reaches whom under them. Pods and their addresses are those of [`crate::policy`]: `web` (10.66.0.1)
//! and `client` (.2) in the namespace `shop` of team red, `other` (.3) and `db` (.4) in `ops` of team blue.

use serde_json::{Value, json};

use crate::policy::Case;

/// A policy.
pub(crate) fn policy(namespace: &str, name: &str, spec: &Value) -> Value {
    json!({ "kind": "NetworkPolicy", "metadata": { "namespace": namespace, "name": name }, "spec": spec })
}

/// One that isolates all pods of a namespace in these directions.
pub(crate) fn deny(namespace: &str, name: &str, types: &[&str]) -> Value {
    policy(namespace, name, &json!({ "podSelector": {}, "policyTypes": types }))
}

fn app(name: &str) -> Value {
    json!({ "matchLabels": { "app": name } })
}

/// Who may reach `web`, by rules.
fn web(ingress: &Value) -> Value {
    policy("shop", "web", &json!({ "podSelector": app("web"), "ingress": ingress }))
}

/// Whom `client` may reach.
fn client(egress: &Value) -> Value {
    let spec = json!({ "podSelector": app("client"), "policyTypes": ["Egress"], "egress": egress });
    policy("shop", "client", &spec)
}

fn case(name: &'static str, policies: &[Value], reach: &'static str) -> Case {
    Case { name, policies: policies.to_vec(), reach }
}

pub(crate) fn cases() -> Vec<Case> {
    let mut all = ingress();
    all.extend(ports());
    all.extend(egress());
    all.extend(both());
    all
}

fn ingress() -> Vec<Case> {
    let pods = |selector: Value| json!([{ "from": [{ "podSelector": selector }] }]);
    let namespaces = |selector: Value| json!([{ "from": [{ "namespaceSelector": selector }] }]);
    vec![
        case("no policy", &[], "+client>web:tcp80 +other>web:udp53 +db>web:6tcp443 +web>db:ping"),
        case(
            "deny ingress of a namespace",
            &[deny("shop", "deny", &["Ingress"])],
            "-client>web:tcp80 -other>web:udp53 -db>web:6tcp443 -other>client:6udp53 -db>web:ping +client>db:tcp80 +web>db:6udp53",
        ),
        case(
            "answers to a pod that nobody may reach",
            &[deny("shop", "deny", &["Ingress"])],
            "+web>db:tcp80 +web>db:6tcp80 +web>other:udp53 +web>other:6udp53 +web>db:ping +web>db:6ping -db>web:tcp80",
        ),
        case(
            "policyTypes left away is ingress",
            &[policy("shop", "web", &json!({ "podSelector": app("web") }))],
            "-client>web:tcp80 +other>client:tcp80 +web>client:tcp80",
        ),
        case(
            "allow all ingress",
            &[deny("shop", "deny", &["Ingress"]), web(&json!([{}]))],
            "+client>web:tcp80 +other>web:6udp53 +db>web:ping -other>client:tcp80",
        ),
        case(
            "from pods of the namespace",
            &[web(&pods(json!({})))],
            "+client>web:tcp80 +client>web:6udp53 -other>web:tcp80 -db>web:udp53",
        ),
        case(
            "from pods by label",
            &[web(&pods(app("client")))],
            "+client>web:tcp80 -other>web:tcp80 -db>web:tcp80",
        ),
        case(
            "from a label nobody has",
            &[web(&pods(app("nobody")))],
            "-client>web:tcp80 -other>web:tcp80",
        ),
        case(
            "from all namespaces",
            &[web(&namespaces(json!({})))],
            "+client>web:tcp80 +other>web:tcp80 +db>web:6tcp80",
        ),
        case(
            "from namespaces by label",
            &[web(&namespaces(json!({ "matchLabels": { "team": "blue" } })))],
            "-client>web:tcp80 +other>web:tcp80 +db>web:6udp53",
        ),
        case(
            "from a namespace by name",
            &[web(&namespaces(json!({ "matchLabels": { "kubernetes.io/metadata.name": "ops" } })))],
            "-client>web:tcp80 +other>web:tcp80",
        ),
        case(
            "pods of namespaces",
            &[web(
                &json!([{ "from": [{ "podSelector": app("client"), "namespaceSelector": { "matchLabels": { "team": "blue" } } }] }]),
            )],
            "-client>web:tcp80 +other>web:tcp80 -db>web:tcp80",
        ),
        case(
            "pods, or namespaces",
            &[web(
                &json!([{ "from": [{ "podSelector": app("client") }, { "namespaceSelector": { "matchLabels": { "team": "blue" } } }] }]),
            )],
            "+client>web:tcp80 +other>web:tcp80 +db>web:tcp80",
        ),
        case(
            "matchExpressions: In",
            &[web(&namespaces(
                json!({ "matchExpressions": [{ "key": "team", "operator": "In", "values": ["red", "green"] }] }),
            ))],
            "+client>web:tcp80 -other>web:tcp80",
        ),
        case(
            "matchExpressions: NotIn",
            &[policy(
                "ops",
                "db",
                &json!({ "podSelector": app("db"), "ingress": [{ "from": [{
                "namespaceSelector": {}, "podSelector": { "matchExpressions": [{ "key": "env", "operator": "NotIn", "values": ["test"] }] } }] }] }),
            )],
            "+client>db:tcp80 +web>db:tcp80 -other>db:tcp80",
        ),
        case(
            "matchExpressions: Exists and DoesNotExist",
            &[policy(
                "ops",
                "db",
                &json!({ "podSelector": app("db"), "ingress": [{ "from": [{ "namespaceSelector": {}, "podSelector": {
                "matchExpressions": [{ "key": "env", "operator": "Exists" }, { "key": "tier", "operator": "DoesNotExist" }] } }] }] }),
            )],
            "+client>db:tcp80 +other>db:tcp80 -web>db:tcp80",
        ),
        case(
            "from a block of addresses",
            &[web(&json!([{ "from": [{ "ipBlock": { "cidr": "10.66.0.2/31" } }] }]))],
            "+client>web:tcp80 +other>web:udp53 -db>web:tcp80 -client>web:6tcp80",
        ),
        case(
            "a block but",
            &[web(
                &json!([{ "from": [{ "ipBlock": { "cidr": "10.66.0.0/24", "except": ["10.66.0.3/32"] } }] }]),
            )],
            "+client>web:tcp80 -other>web:tcp80 +db>web:tcp80",
        ),
        case(
            "a block of IPv6 but",
            &[web(
                &json!([{ "from": [{ "ipBlock": { "cidr": "fd66::/64", "except": ["fd66::4/128"] } }] }]),
            )],
            "+client>web:6tcp80 +other>web:6udp53 -db>web:6tcp80 -client>web:tcp80",
        ),
        case(
            "policies add up",
            &[
                web(&pods(app("client"))),
                policy(
                    "shop",
                    "more",
                    &json!({ "podSelector": {}, "ingress": [{ "from": [{ "ipBlock": { "cidr": "10.66.0.4/32" } }] }] }),
                ),
            ],
            "+client>web:tcp80 +db>web:tcp80 -other>web:tcp80 +db>client:tcp80 -other>client:tcp80",
        ),
        case(
            "echo is no port",
            &[web(&json!([{ "from": [{ "podSelector": {} }], "ports": [{ "port": 80 }] }]))],
            "-client>web:ping -client>web:6ping +client>web:tcp80 +web>client:ping",
        ),
        case(
            "echo of whoever may all",
            &[web(&pods(json!({})))],
            "+client>web:ping +client>web:6ping -other>web:ping",
        ),
    ]
}

fn ports() -> Vec<Case> {
    let ports = |ports: Value| json!([{ "ports": ports }]);
    vec![
        case(
            "one port",
            &[web(&ports(json!([{ "port": 80 }])))],
            "+client>web:tcp80 +other>web:6tcp80 -client>web:udp80 -client>web:tcp81 -other>web:tcp8080",
        ),
        case(
            "a port of UDP",
            &[web(&ports(json!([{ "protocol": "UDP", "port": 53 }])))],
            "+client>web:udp53 +other>web:6udp53 -client>web:tcp53 -client>web:udp80",
        ),
        case(
            "several ports",
            &[web(&ports(
                json!([{ "port": 80 }, { "port": 443 }, { "protocol": "UDP", "port": 53 }]),
            ))],
            "+client>web:tcp80 +client>web:tcp443 +client>web:udp53 -client>web:tcp81 -client>web:udp443",
        ),
        case(
            "endPort",
            &[web(&ports(json!([{ "port": 8080, "endPort": 8089 }])))],
            "+client>web:tcp8080 +other>web:6tcp8081 -client>web:tcp8090 -client>web:tcp80 -client>web:udp8080",
        ),
        case(
            "endPort that is the port",
            &[web(&ports(json!([{ "port": 8081, "endPort": 8081 }])))],
            "+client>web:tcp8081 -client>web:tcp8080 -client>web:tcp8090",
        ),
        case(
            "all ports of TCP",
            &[web(&ports(json!([{ "protocol": "TCP" }])))],
            "+client>web:tcp80 +other>web:6tcp8090 -client>web:udp53 -client>web:ping",
        ),
        case(
            "a named port",
            &[web(&ports(json!([{ "port": "http" }])))],
            "+client>web:tcp8080 -client>web:tcp80 -client>web:tcp8081",
        ),
        case(
            "a named port of UDP",
            &[web(&ports(json!([{ "protocol": "UDP", "port": "dns" }])))],
            "+client>web:udp53 -client>web:tcp53 -client>web:udp80",
        ),
        case(
            "a name nobody has",
            &[web(&ports(json!([{ "port": "none" }])))],
            "-client>web:tcp80 -client>web:tcp8080",
        ),
        case(
            "a name that means something else for each",
            &[policy(
                "ops",
                "http",
                &json!({ "podSelector": {}, "ingress": [{ "ports": [{ "port": "http" }] }] }),
            )],
            "+web>db:tcp8081 -web>db:tcp8080 -web>other:tcp8081 -web>other:tcp80",
        ),
        case(
            "peers and ports",
            &[web(
                &json!([{ "from": [{ "podSelector": app("client") }], "ports": [{ "port": 80 }] },
                { "from": [{ "namespaceSelector": { "matchLabels": { "team": "blue" } } }], "ports": [{ "port": 443 }] }]),
            )],
            "+client>web:tcp80 -client>web:tcp443 +other>web:tcp443 -other>web:tcp80 +db>web:6tcp443",
        ),
        case(
            "long datagrams in fragments",
            &[web(&ports(json!([{ "protocol": "UDP", "port": 53 }])))],
            "+client>web:big53 +client>web:6big53 -client>web:big80 -client>web:6big80 +web>db:big80",
        ),
    ]
}

fn egress() -> Vec<Case> {
    let to = |peer: Value| json!([{ "to": [peer] }]);
    vec![
        case(
            "deny egress of a namespace",
            &[deny("shop", "deny", &["Egress"])],
            "-web>db:tcp80 -client>web:udp53 -client>db:6tcp80 -web>other:ping +other>web:tcp80 +db>client:6udp53",
        ),
        case(
            "answers of a pod that may reach nobody",
            &[deny("shop", "deny", &["Egress"])],
            "+other>web:tcp80 +other>web:6tcp443 +db>web:udp53 +db>client:big53 +other>web:ping -web>other:tcp80",
        ),
        case(
            "to pods of the namespace",
            &[client(&to(json!({ "podSelector": {} })))],
            "+client>web:tcp80 -client>other:tcp80 -client>db:udp53 +web>db:tcp80",
        ),
        case(
            "to namespaces by label",
            &[client(&to(json!({ "namespaceSelector": { "matchLabels": { "team": "blue" } } })))],
            "-client>web:tcp80 +client>other:tcp80 +client>db:6udp53",
        ),
        case(
            "to a block but",
            &[client(&to(
                json!({ "ipBlock": { "cidr": "10.66.0.0/24", "except": ["10.66.0.4/32", "10.66.0.1/32"] } }),
            ))],
            "+client>other:tcp80 -client>db:tcp80 -client>web:udp53 -client>other:6tcp80",
        ),
        case(
            "to a block of IPv6 but",
            &[client(&to(
                json!({ "ipBlock": { "cidr": "fd66::/64", "except": ["fd66::3/128"] } }),
            ))],
            "-client>other:6tcp80 +client>db:6tcp80 +client>web:6udp53 -client>db:tcp80",
        ),
        case(
            "to ports",
            &[client(&json!([{ "ports": [{ "protocol": "UDP", "port": 53 }, { "port": 443 }] }]))],
            "+client>web:udp53 +client>db:tcp443 -client>web:tcp53 -client>db:tcp80",
        ),
        case(
            "to a range of ports",
            &[client(&json!([{ "ports": [{ "port": 8080, "endPort": 8081 }] }]))],
            "+client>web:tcp8080 +client>db:6tcp8081 -client>db:tcp8090 -client>web:tcp443",
        ),
        case(
            "to a name, which is what the other end says",
            &[client(
                &json!([{ "to": [{ "namespaceSelector": {} }], "ports": [{ "port": "http" }] }]),
            )],
            "+client>web:tcp8080 -client>web:tcp8081 +client>db:tcp8081 -client>db:tcp8080 -client>other:tcp8080",
        ),
    ]
}

fn both() -> Vec<Case> {
    let db = |from: &str| {
        let spec = json!({ "podSelector": app("db"), "policyTypes": ["Ingress", "Egress"],
            "ingress": [{ "from": [{ "namespaceSelector": {}, "podSelector": app(from) }] }] });
        policy("ops", "db", &spec)
    };
    let to_db = client(&json!([{ "to": [{ "namespaceSelector": {}, "podSelector": app("db") }] }]));
    vec![
        case(
            "deny both",
            &[
                deny("shop", "deny", &["Ingress", "Egress"]),
                deny("ops", "deny", &["Ingress", "Egress"]),
            ],
            "-web>client:tcp80 -client>web:6udp53 -web>db:tcp80 -db>web:tcp80 -other>db:6tcp80 -other>web:ping",
        ),
        case(
            "allowed at both ends",
            &[to_db.clone(), db("client")],
            "+client>db:tcp80 +other>db:tcp80 -web>db:tcp80 -client>web:tcp80 -db>client:tcp80",
        ),
        case(
            "allowed by the sender alone",
            &[to_db.clone(), db("web")],
            "-client>db:tcp80 -client>db:6udp53 +web>db:tcp80 -client>other:tcp80",
        ),
        case(
            "allowed by the receiver alone",
            &[client(&json!([])), db("client")],
            "-client>db:tcp80 -client>web:tcp80 +other>db:tcp80",
        ),
        case(
            "and its answers",
            &[to_db, db("client")],
            "+client>db:big53 +client>db:6big53 +client>db:ping -db>other:tcp80",
        ),
    ]
}
