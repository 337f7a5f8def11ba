//! What a runtime asks by variables of the environment, and whether that may be.
//!
//! All of it is hostile: names become names of interfaces and keys of records, paths are opened as root.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use packet::Mac;

use crate::error::{Code, Error};

/// Longest name of a container or network, bytes.
pub const NAME_MAX: usize = 255;
/// Longest name of an interface, bytes (`IFNAMSIZ` without the zero).
pub const IFNAME_MAX: usize = 15;
/// Longest value of a variable, bytes.
const VALUE_MAX: usize = 64 * 1024;
const PATH_MAX: usize = 4095;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Give a container a VF.
    Add,
    /// Take it back.
    Del,
    /// Is it as it was made?
    Check,
    /// Take back what no listed container has.
    Gc,
    /// Could a container be added?
    Status,
    /// Which versions are spoken?
    Version,
}

impl Command {
    /// The one that `CNI_COMMAND` says.
    ///
    /// # Errors
    /// When it says none, or one that is not known.
    pub fn of(variables: &BTreeMap<String, String>) -> Result<Self, Error> {
        match variables.get("CNI_COMMAND").map(String::as_str) {
            Some("ADD") => Ok(Self::Add),
            Some("DEL") => Ok(Self::Del),
            Some("CHECK") => Ok(Self::Check),
            Some("GC") => Ok(Self::Gc),
            Some("STATUS") => Ok(Self::Status),
            Some("VERSION") => Ok(Self::Version),
            None | Some("") => Err(missing(&["CNI_COMMAND"])),
            Some(other) => Err(bad("CNI_COMMAND", other, "no known command")),
        }
    }
}

/// What was asked.
#[derive(Clone, Debug)]
pub struct Call {
    /// What is to be done.
    pub command: Command,
    /// The container's name; empty for commands that are about none.
    pub container: String,
    /// Its network namespace.
    pub netns: Option<PathBuf>,
    /// The name of the interface there; empty as for `container`.
    pub ifname: String,
    /// What `CNI_ARGS` says.
    pub args: Args,
    /// Where other plugins are.
    pub path: Vec<PathBuf>,
    /// All variables, as plugins that are asked next get them.
    pub variables: BTreeMap<String, String>,
}

/// What `CNI_ARGS` says that is of interest here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Args {
    /// The address the VF is to have.
    pub mac: Option<Mac>,
    /// `NAMESPACE/NAME` of the pod.
    pub pod: Option<String>,
    /// Which of the pods that had this name.
    pub uid: Option<String>,
}

impl Call {
    /// Reads and checks the variables that this command needs, and those it may have.
    ///
    /// # Errors
    /// When one is missing or is not what it has to be; the text names it.
    pub fn read(command: Command, variables: &BTreeMap<String, String>) -> Result<Self, Error> {
        let get = |name: &str| variables.get(name).map_or("", String::as_str);
        let needed: &[&str] = match command {
            Command::Add | Command::Check => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
            Command::Del => &["CNI_CONTAINERID", "CNI_IFNAME"],
            Command::Gc | Command::Status | Command::Version => &[],
        };
        let lacking: Vec<&str> =
            needed.iter().copied().filter(|name| get(name).is_empty()).collect();
        if !lacking.is_empty() {
            return Err(missing(&lacking));
        }
        for (name, value) in variables {
            if value.len() > VALUE_MAX {
                return Err(Error::new(Code::Environment, format!("{name} is too long")));
            }
        }
        let (container, ifname, netns) =
            (get("CNI_CONTAINERID"), get("CNI_IFNAME"), get("CNI_NETNS"));
        let about_one = !needed.is_empty();
        if about_one && !is_name(container) {
            return Err(bad("CNI_CONTAINERID", container, "no name of a container"));
        }
        if about_one && !is_ifname(ifname) {
            return Err(bad("CNI_IFNAME", ifname, "no name of an interface"));
        }
        if about_one && !netns.is_empty() && !is_path(netns) {
            return Err(bad("CNI_NETNS", netns, "no absolute path"));
        }
        let path = get("CNI_PATH").split(':').filter(|dir| !dir.is_empty());
        Ok(Self {
            command,
            container: if about_one { container.into() } else { String::new() },
            netns: (about_one && !netns.is_empty()).then(|| netns.into()),
            ifname: if about_one { ifname.into() } else { String::new() },
            args: if about_one { Args::read(get("CNI_ARGS"))? } else { Args::default() },
            path: path.map(PathBuf::from).collect(),
            variables: variables.clone(),
        })
    }

    /// The same about another attachment, as a plugin is asked that manages addresses.
    #[must_use]
    pub fn about(&self, command: &str, container: &str, ifname: &str, netns: &Path) -> Self {
        let mut call = self.clone();
        for (name, value) in [("COMMAND", command), ("CONTAINERID", container), ("IFNAME", ifname)]
        {
            call.variables.insert(format!("CNI_{name}"), value.into());
        }
        call.variables.insert("CNI_NETNS".into(), netns.to_string_lossy().into_owned());
        call
    }
}

impl Args {
    /// Reads `KEY=VALUE;KEY=VALUE`. Keys that are not known are an error, unless `IgnoreUnknown` is among
    /// them, and true.
    fn read(text: &str) -> Result<Self, Error> {
        let mut args = Self::default();
        let (mut namespace, mut name) = (None, None);
        let (mut unknown, mut ignore) = (Vec::new(), false);
        for pair in text.split(';').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(bad("CNI_ARGS", pair, "no KEY=VALUE"));
            };
            match key {
                "IgnoreUnknown" => {
                    ignore = matches!(value, "1" | "true" | "True" | "TRUE" | "t" | "T");
                }
                "MAC" => args.mac = Some(mac("CNI_ARGS: MAC", value)?),
                "K8S_POD_NAMESPACE" => namespace = Some(value),
                "K8S_POD_NAME" => name = Some(value),
                "K8S_POD_UID" => {
                    let uid = shortened(value, NAME_MAX);
                    args.uid = Some(uid.to_owned()).filter(|uid| !uid.is_empty());
                }
                // Of no interest here: for runtimes, and for plugins that manage addresses.
                "K8S_POD_INFRA_CONTAINER_ID" | "IP" | "GATEWAY" => {}
                other => unknown.push(other),
            }
        }
        if !ignore && !unknown.is_empty() {
            let unknown = unknown.join(", ");
            return Err(bad("CNI_ARGS", &unknown, "not known, and IgnoreUnknown is not set"));
        }
        if let (Some(namespace), Some(name)) = (namespace, name) {
            args.pod = Some(shortened(&format!("{namespace}/{name}"), 2 * NAME_MAX).to_owned());
        }
        Ok(args)
    }
}

/// A name of a container or a network: letters, digits, `_`, `.`, `-`, the first one a letter or digit.
pub fn is_name(text: &str) -> bool {
    let rest = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=NAME_MAX).contains(&text.len())
        && text.bytes().all(rest)
        && text.as_bytes()[0].is_ascii_alphanumeric()
}

/// A name that Linux takes for an interface as it is written: a `%` would make it a pattern.
pub fn is_ifname(text: &str) -> bool {
    (1..=IFNAME_MAX).contains(&text.len())
        && text != "."
        && text != ".."
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"/:%".contains(&byte))
}

/// An absolute path.
pub fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.len() <= PATH_MAX && !text.contains('\0')
}

/// An address that an interface may have.
pub(crate) fn mac(what: &str, text: &str) -> Result<Mac, Error> {
    let code = if what.starts_with("CNI_") { Code::Environment } else { Code::Config };
    let refuse = |why: &str| Error::new(code, format!("{what}={:?}: {why}", shortened(text, 64)));
    let mac: Mac = text.parse().map_err(|_| refuse("no MAC address"))?;
    if mac.is_multicast() || mac.is_zero() {
        return Err(refuse("no address of one interface"));
    }
    Ok(mac)
}

fn missing(names: &[&str]) -> Error {
    Error::new(Code::Environment, format!("required env variables [{}] missing", names.join(",")))
}

fn bad(name: &str, value: &str, why: &str) -> Error {
    Error::new(Code::Environment, format!("{name}={:?}: {why}", shortened(value, 64)))
}

/// The beginning of a text that a stranger wrote.
pub(crate) fn shortened(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| (format!("CNI_{name}"), (*value).to_owned())).collect()
    }

    const GOOD: [(&str, &str); 4] = [
        ("COMMAND", "ADD"),
        ("CONTAINERID", "0af3-x_y.z"),
        ("NETNS", "/run/netns/a"),
        ("IFNAME", "net1"),
    ];

    fn with(name: &str, value: &str) -> Result<Call, Error> {
        let mut all = variables(&GOOD);
        all.insert(format!("CNI_{name}"), value.into());
        Call::read(Command::of(&all)?, &all)
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = Call::read(Command::Add, &variables(&[("IFNAME", "a")])).unwrap_err();
        assert_eq!(error.code.number(), 4);
        assert_eq!(error.details, "required env variables [CNI_CONTAINERID,CNI_NETNS] missing");
        assert_eq!(Command::of(&variables(&[])).unwrap_err().code.number(), 4);
        Call::read(Command::Gc, &variables(&[])).unwrap();
    }

    #[test]
    fn names_cannot_leave_their_place() {
        for bad in ["../x", "a/b", ".hidden", "", "a b", "a\0", "-a", &"x".repeat(256)] {
            assert!(with("CONTAINERID", bad).is_err(), "{bad:?}");
        }
        for bad in [".", "..", "a/b", "a:b", "a b", "eth%d", "", "sixteen-letters!", "a\u{a0}"] {
            assert!(with("IFNAME", bad).is_err(), "{bad:?}");
        }
        for bad in ["relative", "/x\0y"] {
            assert!(with("NETNS", bad).is_err(), "{bad:?}");
        }
        assert_eq!(with("IFNAME", "fifteen-letters").unwrap().ifname, "fifteen-letters");
    }

    #[test]
    fn arguments_as_kubernetes_passes_them() {
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;MAC=02:00:00:00:00:01;X=y";
        let call = with("ARGS", args).unwrap();
        assert_eq!(call.args.pod.as_deref(), Some("default/web-0"));
        assert_eq!(call.args.mac, Some(Mac([2, 0, 0, 0, 0, 1])));
        for bad in ["X=y", "IgnoreUnknown=0;X=y", "MAC=01:00:00:00:00:01", "MAC=x", "nonsense"] {
            assert_eq!(with("ARGS", bad).unwrap_err().code.number(), 4, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_variable_makes_it_panic(name in "CNI_(ARGS|IFNAME|CONTAINERID|NETNS|PATH)", value in "\\PC*") {
            let mut all = variables(&GOOD);
            all.insert(name, value);
            if let Ok(call) = Call::read(Command::Add, &all) {
                prop_assert!(is_name(&call.container) && is_ifname(&call.ifname));
                prop_assert!(!call.container.contains('/') && !call.ifname.contains('/'));
            }
        }

        #[test]
        fn shortened_is_a_beginning(text in "\\PC*", max in 0..40_usize) {
            let short = shortened(&text, max);
            prop_assert!(text.starts_with(short) && short.len() <= max);
        }
    }
}
