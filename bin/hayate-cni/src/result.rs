//! Results of ADD: read as plugins and runtimes write them, written in the version that was asked for.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::conf::or_default;
use crate::error::{Code, Error};

/// What came of ADD.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Outcome {
    /// Interfaces that were made.
    #[serde(default, deserialize_with = "or_default")]
    pub interfaces: Vec<Interface>,
    /// Addresses.
    #[serde(default, deserialize_with = "or_default")]
    pub ips: Vec<Ip>,
    /// Routes.
    #[serde(default, deserialize_with = "or_default")]
    pub routes: Vec<Route>,
    /// Resolvers.
    #[serde(default, deserialize_with = "or_default")]
    pub dns: Dns,
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// Its address.
    #[serde(default)]
    pub mac: Option<String>,
    /// Its MTU, since 1.1.0.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// The namespace it is in.
    #[serde(default)]
    pub sandbox: Option<String>,
    /// Where it is on the bus, since 1.1.0.
    #[serde(default, rename = "pciID")]
    pub pci: Option<String>,
}

/// An address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ip {
    /// With its prefix.
    pub address: IpNet,
    /// The router of its network.
    #[serde(default, deserialize_with = "address_or_none")]
    pub gateway: Option<IpAddr>,
    /// The interface that has it, of those that were made.
    #[serde(default)]
    pub interface: Option<i64>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Where to.
    pub dst: IpNet,
    /// By whom; if nobody is named, by the router of the network of an address.
    #[serde(
        default,
        deserialize_with = "address_or_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub gw: Option<IpAddr>,
    /// The MTU of the path, since 1.1.0 as all that follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The largest segment to announce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
    /// Its metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// The table it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// `RT_SCOPE_*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

/// Resolvers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    /// Their addresses.
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Domains that are searched.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Options of the resolver.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

fn address_or_none<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<IpAddr>, D::Error> {
    let text: Option<String> = Option::deserialize(from)?;
    let text = text.filter(|text| !text.is_empty());
    text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
}

impl Outcome {
    /// Reads what `whom` answered.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(whom: &str, value: &Value) -> Result<Self, Error> {
        Self::deserialize(value).map_err(|error| Error::decode(format!("result of {whom}"), &error))
    }

    /// It in this version, behind what the plugins before answered, whose interfaces are counted first.
    ///
    /// # Errors
    /// When what they answered is no result.
    pub fn answer(&self, version: &str, previous: Option<&Value>) -> Result<Value, Error> {
        let mut answer = match previous {
            None | Some(Value::Null) => json!({}),
            Some(value @ Value::Object(_)) => {
                Self::read("the plugin before (prevResult)", value)?;
                value.clone()
            }
            Some(_) => return Err(Error::new(Code::Decode, "prevResult is no object")),
        };
        let rich = version == "1.1.0";
        let families = matches!(version, "0.3.1" | "0.4.0");
        let before = answer["interfaces"].as_array().map_or(0, Vec::len) as i64;
        for interface in &self.interfaces {
            let mut value = json!({ "name": interface.name });
            for (key, text) in [("mac", &interface.mac), ("sandbox", &interface.sandbox)] {
                if let Some(text) = text {
                    value[key] = json!(text);
                }
            }
            if rich {
                if let Some(mtu) = interface.mtu {
                    value["mtu"] = json!(mtu);
                }
                if let Some(pci) = &interface.pci {
                    value["pciID"] = json!(pci);
                }
            }
            push(&mut answer, "interfaces", value);
        }
        for ip in &self.ips {
            let mut value = json!({ "address": ip.address });
            if families {
                let four = matches!(ip.address, IpNet::V4(_));
                value["version"] = json!(if four { "4" } else { "6" });
            }
            if let Some(gateway) = ip.gateway {
                value["gateway"] = json!(gateway);
            }
            if let Some(interface) = ip.interface {
                value["interface"] = json!(before + interface);
            }
            push(&mut answer, "ips", value);
        }
        for route in &self.routes {
            let whole = json!(route);
            let plain = json!({ "dst": route.dst });
            let mut value = if rich { whole } else { plain };
            if let Some(gateway) = route.gw {
                value["gw"] = json!(gateway);
            }
            push(&mut answer, "routes", value);
        }
        let dns = json!(self.dns);
        if dns != json!({}) || answer.get("dns").is_none() {
            answer["dns"] = dns;
        }
        answer["cniVersion"] = json!(version);
        Ok(answer)
    }
}

fn push(answer: &mut Value, key: &str, value: Value) {
    match answer.get_mut(key).and_then(Value::as_array_mut) {
        Some(list) => list.push(value),
        None => answer[key] = Value::Array(vec![value]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> Outcome {
        Outcome {
            interfaces: vec![Interface {
                name: "net1".into(),
                mac: Some("02:00:00:00:00:01".into()),
                mtu: Some(1500),
                sandbox: Some("/run/netns/a".into()),
                pci: Some("0000:01:00.1".into()),
            }],
            ips: vec![Ip {
                address: "10.0.0.2/24".parse().unwrap(),
                gateway: Some("10.0.0.1".parse().unwrap()),
                interface: Some(0),
            }],
            routes: vec![Route {
                dst: "0.0.0.0/0".parse().unwrap(),
                gw: None,
                mtu: Some(1400),
                advmss: None,
                priority: Some(7),
                table: None,
                scope: None,
            }],
            dns: Dns::default(),
        }
    }

    #[test]
    fn each_version_has_its_own() {
        let interface =
            json!({"name": "net1", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/a"});
        let ip = json!({"address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 0});
        let mut old_ip = ip.clone();
        old_ip["version"] = json!("4");
        let mut new = interface.clone();
        new["mtu"] = json!(1500);
        new["pciID"] = json!("0000:01:00.1");
        for (version, interface, ip, route) in [
            ("0.3.1", &interface, &old_ip, json!({"dst": "0.0.0.0/0"})),
            ("0.4.0", &interface, &old_ip, json!({"dst": "0.0.0.0/0"})),
            ("1.0.0", &interface, &ip, json!({"dst": "0.0.0.0/0"})),
            ("1.1.0", &new, &ip, json!({"dst": "0.0.0.0/0", "mtu": 1400, "priority": 7})),
        ] {
            let expected = json!({
                "cniVersion": version, "interfaces": [interface], "ips": [ip], "routes": [route], "dns": {},
            });
            assert_eq!(outcome().answer(version, None).unwrap(), expected);
        }
    }

    #[test]
    fn what_others_answered_stays() {
        let previous = json!({
            "cniVersion": "1.1.0",
            "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/x", "socketPath": "/y"}],
            "ips": [{"address": "10.9.0.2/24", "interface": 1}],
            "dns": {"nameservers": ["10.9.0.1"]}, "more": 1,
        });
        let answer = outcome().answer("1.1.0", Some(&previous)).unwrap();
        assert_eq!(answer["interfaces"].as_array().unwrap().len(), 3);
        assert_eq!(answer["interfaces"][1], previous["interfaces"][1]);
        assert_eq!(answer["ips"][0], previous["ips"][0]);
        assert_eq!(answer["ips"][1]["interface"], 2);
        assert_eq!((&answer["dns"], &answer["more"]), (&previous["dns"], &previous["more"]));
        for bad in [json!(3), json!({"ips": 3}), json!({"ips": [{"address": "x"}]})] {
            assert_eq!(
                outcome().answer("1.1.0", Some(&bad)).unwrap_err().code.number(),
                6,
                "{bad}"
            );
        }
    }

    #[test]
    fn as_go_programs_write_it() {
        let value = json!({
            "cniVersion": "0.4.0", "interfaces": null, "routes": null, "dns": {"nameservers": null},
            "ips": [{"version": "4", "address": "10.0.0.2/24", "gateway": "", "interface": null}],
        });
        let read = Outcome::read("x", &value).unwrap();
        assert_eq!(read.ips[0].gateway, None);
    }
}
