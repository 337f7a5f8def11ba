//! What is compiled against what the API says, asked packet by packet.

use std::net::IpAddr;

use ipnet::IpNet;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::object::{Labels, Namespace, NetworkPolicy, Peer, Pod, PolicyPort, Port, Selector};
use super::{Direction, PodRules, Protocol, compile};

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

// The reference: no lists of addresses, no order, only the question whether this packet may pass.

struct World {
    policies: Vec<NetworkPolicy>,
    pods: Vec<Pod>,
    namespaces: Vec<Namespace>,
}

/// One end of a connection.
#[derive(Clone, Copy)]
struct End<'a> {
    ip: IpAddr,
    pod: Option<&'a Pod>,
}

fn selects(selector: &Selector, labels: &Labels) -> bool {
    selector.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
        && selector.match_expressions.iter().all(|one| {
            let value = labels.get(&one.key);
            match one.operator.as_str() {
                "In" => value.is_some_and(|value| one.values.contains(value)),
                "NotIn" => !value.is_some_and(|value| one.values.contains(value)),
                "Exists" => value.is_some(),
                _ => value.is_none(),
            }
        })
}

impl World {
    fn peer_is(&self, peer: &Peer, policy: &NetworkPolicy, end: End<'_>) -> bool {
        if let Some(block) = &peer.ip_block {
            return block.cidr.contains(&end.ip)
                && !block.except.iter().any(|net| net.contains(&end.ip));
        }
        let Some(pod) = end.pod else { return false };
        let namespace = match &peer.namespace_selector {
            None => pod.metadata.namespace == policy.metadata.namespace,
            Some(selector) => self
                .namespaces
                .iter()
                .find(|one| one.metadata.name == pod.metadata.namespace)
                .is_some_and(|one| {
                    let mut labels = one.metadata.labels.clone();
                    labels.insert("kubernetes.io/metadata.name".into(), one.metadata.name.clone());
                    selects(selector, &labels)
                }),
        };
        namespace && peer.pod_selector.as_ref().is_none_or(|s| selects(s, &pod.metadata.labels))
    }

    fn port_is(wanted: &PolicyPort, to: Option<&Pod>, protocol: Protocol, port: u16) -> bool {
        let of = |name: Option<&str>| match name {
            Some("UDP") => Protocol::Udp,
            _ => Protocol::Tcp,
        };
        if of(wanted.protocol.as_deref()) != protocol {
            return false;
        }
        match &wanted.port {
            None => true,
            Some(Port::Number(first)) => {
                (*first..=wanted.end_port.unwrap_or(*first)).contains(&i64::from(port))
            }
            Some(Port::Name(name)) => to.is_some_and(|pod| {
                pod.spec.containers.iter().flat_map(|one| &one.ports).any(|one| {
                    one.name.as_ref() == Some(name)
                        && one.container_port == port
                        && of(one.protocol.as_deref()) == protocol
                })
            }),
        }
    }

    fn allows(
        &self,
        ingress: bool,
        own: &Pod,
        other: End<'_>,
        protocol: Protocol,
        port: u16,
    ) -> bool {
        let about = |policy: &&NetworkPolicy| {
            let spec = &policy.spec;
            let types = spec.policy_types.clone().filter(|types| !types.is_empty());
            let about = match (types, ingress) {
                (Some(types), true) => types.contains(&"Ingress".to_owned()),
                (Some(types), false) => types.contains(&"Egress".to_owned()),
                (None, true) => true,
                (None, false) => spec.egress.is_some(),
            };
            about
                && policy.metadata.namespace == own.metadata.namespace
                && selects(&spec.pod_selector, &own.metadata.labels)
        };
        let policies: Vec<&NetworkPolicy> = self.policies.iter().filter(about).collect();
        let rules = |policy: &NetworkPolicy| {
            if ingress {
                policy.spec.ingress.clone()
            } else {
                policy.spec.egress.clone().unwrap_or_default()
            }
        };
        policies.is_empty()
            || policies.iter().any(|policy| {
                rules(policy).iter().any(|rule| {
                    let peers = if ingress { &rule.from } else { &rule.to };
                    // A name is what the pod says that is connected to. Who only is in a block of addresses says none.
                    let told = if ingress {
                        Some(own)
                    } else {
                        let chosen = |peer: &Peer| {
                            peer.ip_block.is_none() && self.peer_is(peer, policy, other)
                        };
                        other.pod.filter(|_| peers.is_empty() || peers.iter().any(chosen))
                    };
                    (peers.is_empty() || peers.iter().any(|peer| self.peer_is(peer, policy, other)))
                        && (rule.ports.is_empty()
                            || rule
                                .ports
                                .iter()
                                .any(|one| Self::port_is(one, told, protocol, port)))
                })
            })
    }
}

fn passes(direction: &Direction, other: IpAddr, protocol: Protocol, port: u16) -> bool {
    !direction.isolated
        || direction.allow.iter().any(|rule| {
            let peer =
                rule.peers.as_ref().is_none_or(|nets| nets.iter().any(|net| net.contains(&other)));
            let ports = rule.ports.as_ref().is_none_or(|ports| {
                ports
                    .iter()
                    .any(|one| one.protocol == protocol && (one.first..=one.last).contains(&port))
            });
            peer && ports
        })
}

// Worlds.

fn labels() -> impl Strategy<Value = Value> {
    proptest::collection::btree_map("[ab]", "[xy]", 0..3).prop_map(|map| json!(map))
}

fn selector() -> impl Strategy<Value = Value> {
    let expression =
        ("[abc]", "In|NotIn|Exists|DoesNotExist", proptest::collection::vec("[xy]", 1..3))
            .prop_map(|(key, operator, values)| {
                let values = if operator.ends_with("In") { values } else { Vec::new() };
                json!({ "key": key, "operator": operator, "values": values })
            });
    (labels(), proptest::collection::vec(expression, 0..2))
        .prop_map(|(labels, more)| json!({ "matchLabels": labels, "matchExpressions": more }))
}

fn peer() -> impl Strategy<Value = Value> {
    let block = prop_oneof![
        Just(json!({ "cidr": "10.0.0.0/8" })),
        Just(json!({ "cidr": "0.0.0.0/0", "except": ["10.0.0.0/31", "10.0.0.4/32"] })),
        Just(json!({ "cidr": "10.0.0.0/29", "except": ["10.0.0.0/30", "10.0.0.2/32"] })),
        Just(json!({ "cidr": "::/0", "except": ["fd00::2/127"] })),
        Just(json!({ "cidr": "fd00::1/128" })),
    ];
    prop_oneof![
        selector().prop_map(|pods| json!({ "podSelector": pods })),
        selector().prop_map(|namespaces| json!({ "namespaceSelector": namespaces })),
        (selector(), selector()).prop_map(
            |(pods, namespaces)| json!({ "podSelector": pods, "namespaceSelector": namespaces })
        ),
        Just(json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "n1"}}})),
        block.prop_map(|block| json!({ "ipBlock": block })),
    ]
}

fn port() -> impl Strategy<Value = Value> {
    let which = prop_oneof![
        Just(json!({})),
        (1..6_u16).prop_map(|port| json!({ "port": port })),
        (1..4_u16, 0..3_u16)
            .prop_map(|(port, more)| json!({ "port": port, "endPort": port + more })),
        Just(json!({ "port": "web" })),
        Just(json!({ "port": "dns" })),
    ];
    (which, prop_oneof![Just(Value::Null), Just(json!("TCP")), Just(json!("UDP"))]).prop_map(
        |(mut port, protocol)| {
            port["protocol"] = protocol;
            port
        },
    )
}

fn rule(word: &'static str) -> impl Strategy<Value = Value> {
    use proptest::collection::vec;
    (vec(peer(), 0..3), vec(port(), 0..3))
        .prop_map(move |(peers, ports)| json!({ word: peers, "ports": ports }))
}

fn policy() -> impl Strategy<Value = NetworkPolicy> {
    use proptest::collection::vec;
    let types = prop_oneof![
        Just(Value::Null),
        Just(json!([])),
        Just(json!(["Ingress"])),
        Just(json!(["Egress"])),
        Just(json!(["Ingress", "Egress"])),
    ];
    let egress = proptest::option::of(vec(rule("to"), 0..3));
    (0..2_u8, selector(), types, vec(rule("from"), 0..3), egress).prop_map(
        |(namespace, selector, types, ingress, egress)| {
            from(json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": { "name": "p", "namespace": format!("n{namespace}") },
                "spec": { "podSelector": selector, "policyTypes": types, "ingress": ingress, "egress": egress },
            }))
        },
    )
}

fn world() -> impl Strategy<Value = World> {
    use proptest::collection::vec;
    let pod = (0..2_u8, labels(), 1..4_u16, any::<bool>());
    let namespaces = (labels(), labels());
    (vec(policy(), 0..4), vec(pod, 1..5), namespaces).prop_map(|(policies, pods, (one, other))| {
        let pods = pods.into_iter().enumerate().map(|(at, (namespace, labels, port, udp))| {
            let protocol = if udp { "UDP" } else { "TCP" };
            from(json!({
                "metadata": { "name": format!("pod{at}"), "namespace": format!("n{namespace}"), "labels": labels },
                "spec": { "containers": [{ "ports": [{ "name": "web", "containerPort": port },
                    { "name": "dns", "containerPort": port + 1, "protocol": protocol }] }] },
                "status": { "podIP": format!("10.0.0.{at}"),
                    "podIPs": [{ "ip": format!("10.0.0.{at}") }, { "ip": format!("fd00::{at}") }] },
            }))
        });
        let namespace = |name: &str, labels| from(json!({ "metadata": { "name": name, "labels": labels } }));
        World {
            policies,
            pods: pods.collect(),
            namespaces: vec![namespace("n0", one), namespace("n1", other)],
        }
    })
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#?}\n{:#?}\n{:#?}", self.policies, self.pods, self.namespaces)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn rules_are_what_policies_say(world in world()) {
        let compiled = compile(&world.policies, &world.pods, &world.namespaces).unwrap();
        prop_assert_eq!(compiled.len(), world.pods.len());
        let outside = ["10.0.0.7", "10.0.1.1", "192.0.2.1", "fd00::7", "2001:db8::1"];
        let outside = outside.map(|ip| End { ip: ip.parse().unwrap(), pod: None });
        let inside = world.pods.iter().flat_map(|pod| {
            pod.status.ips.iter().map(move |one| End { ip: one.ip, pod: Some(pod) })
        });
        let ends: Vec<End<'_>> = inside.chain(outside).collect();
        for (pod, rules) in world.pods.iter().zip(&compiled) {
            for other in &ends {
                for protocol in [Protocol::Tcp, Protocol::Udp] {
                    for port in 1..8 {
                        for (ingress, direction) in [(true, &rules.ingress), (false, &rules.egress)] {
                            prop_assert_eq!(
                                passes(direction, other.ip, protocol, port),
                                world.allows(ingress, pod, *other, protocol, port),
                                "{} and {}, {:?} {}, ingress: {}: {:#?}",
                                &pod.metadata.name, other.ip, protocol, port, ingress, direction
                            );
                        }
                    }
                }
            }
        }
    }
}

fn compiled(spec: &Value) -> Result<Vec<PodRules>, String> {
    let policy = json!({ "metadata": { "name": "p", "namespace": "n" }, "spec": spec });
    let pods = json!([
        { "metadata": { "name": "a", "namespace": "n" }, "status": { "podIP": "10.0.0.1" } },
        { "metadata": { "name": "h", "namespace": "n" }, "spec": { "hostNetwork": true }, "status": { "podIP": "10.9.0.1" } },
        { "metadata": { "name": "e", "namespace": "n" }, "status": { "podIP": "10.0.0.3", "phase": "Succeeded" } },
    ]);
    compile(&[from(policy)], &from::<Vec<Pod>>(pods), &[]).map_err(|refused| refused.to_string())
}

#[test]
fn what_cannot_be_compiled_is_named() {
    for (spec, said) in [
        (
            json!({"ingress": [{}, {"ports": [{"port": 1}, {"protocol": "SCTP"}]}]}),
            "n/p: ingress[1]: ports[1]: protocol SCTP",
        ),
        (json!({"ingress": [{"ports": [{"port": 5, "endPort": 4}]}]}), "before"),
        (json!({"ingress": [{"ports": [{"port": "web", "endPort": 4}]}]}), "endPort"),
        (json!({"ingress": [{"ports": [{"port": 65536}]}]}), "no port"),
        (
            json!({"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}}]}]}),
            "egress[0]: to[0]",
        ),
        (
            json!({"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]}]}),
            "together",
        ),
        (json!({"egress": [{"to": [{}]}]}), "nobody"),
        (json!({"egress": [{"from": [{"podSelector": {}}]}]}), "from"),
        (json!({"policyTypes": ["Both"]}), "policyTypes"),
        (
            json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
            "needs values",
        ),
        (
            json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}),
            "Gt",
        ),
    ] {
        let error = compiled(&spec).unwrap_err();
        assert!(error.contains(said), "{spec}: {error}");
    }
}

#[test]
fn who_takes_no_part_has_no_rules() {
    let rules = compiled(&json!({"ingress": [{"from": [{"podSelector": {}}]}]})).unwrap();
    assert_eq!(rules.len(), 1);
    let own: Vec<IpNet> = vec!["10.0.0.1/32".parse().unwrap()];
    assert_eq!(rules[0].ingress.allow[0].peers, Some(own));
    assert!(rules[0].ingress.isolated && !rules[0].egress.isolated);
}

#[test]
fn a_block_without_parts_is_few_prefixes() {
    let spec = json!({"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.128.0.0/9", "10.0.0.0/10"]}}]}]});
    let rules = compiled(&spec).unwrap();
    let left: Vec<IpNet> = vec!["10.64.0.0/10".parse().unwrap()];
    assert_eq!(rules[0].egress.allow[0].peers, Some(left));
}
