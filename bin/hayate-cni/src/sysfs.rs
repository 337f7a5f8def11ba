//! Finds functions: PFs, their VFs, and the interfaces of these.
//!
//! What is looked at is the part of sysfs that is the same for every driver: `sriov_totalvfs`, `virtfnN`,
//! `physfn`, and the folder `net` of a device, which virtio has one level deeper.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use packet::Mac;
use serde::{Deserialize, Serialize};

use crate::call::is_ifname;
use crate::conf::Pf;
use crate::error::{Code, Error};

/// Where a function is on the bus: `0000:01:00.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl FromStr for Address {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let hex = |text: &str, digits: std::ops::RangeInclusive<usize>| {
            // `from_str_radix` would take a sign.
            let fine = digits.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
            fine.then(|| u32::from_str_radix(text, 16).ok()).flatten().ok_or(())
        };
        let (domain, rest) = text.split_once(':').ok_or(())?;
        let (bus, rest) = rest.split_once(':').ok_or(())?;
        let (device, function) = rest.split_once('.').ok_or(())?;
        let device = hex(device, 2..=2)? as u8;
        let function = hex(function, 1..=1)? as u8;
        if device > 31 || function > 7 {
            return Err(());
        }
        Ok(Self { domain: hex(domain, 4..=8)?, bus: hex(bus, 2..=2)? as u8, device, function })
    }
}

impl TryFrom<String> for Address {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map_err(|()| "no address of a PCI function")
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

/// A function whose VFs may be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PfFound {
    /// Where it is.
    pub address: Address,
    /// Its VFs, those of lower numbers first, with their numbers.
    pub vfs: Vec<(u32, Address)>,
    /// How many it could have.
    pub total: u32,
}

/// Where to look.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    /// Looks below this, `/sys`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    fn device(&self, address: Address) -> PathBuf {
        self.root.join(format!("bus/pci/devices/{address}"))
    }

    /// Is there such a function?
    pub fn exists(&self, address: Address) -> bool {
        self.device(address).exists()
    }

    /// The PF that is named so.
    ///
    /// # Errors
    /// When there is none, or it cannot have VFs.
    pub fn pf(&self, pf: &Pf) -> Result<PfFound, Error> {
        let address = match pf {
            Pf::Address(address) => *address,
            Pf::Name(name) => self.of_interface(name).ok_or_else(|| {
                Error::new(Code::NoFunction, format!("pf: {name}: no interface of a PCI function"))
            })?,
            Pf::Mac(mac) => self.of_mac(*mac).ok_or_else(|| {
                let text = format!("pf: {mac}: no function that can have VFs has this address");
                Error::new(Code::NoFunction, text)
            })?,
        };
        self.pf_at(address)
    }

    /// The PF that is there.
    ///
    /// # Errors
    /// As [`Sysfs::pf`].
    pub fn pf_at(&self, address: Address) -> Result<PfFound, Error> {
        let device = self.device(address);
        let Ok(total) = fs::read_to_string(device.join("sriov_totalvfs")) else {
            let why = if device.exists() { "it cannot have VFs" } else { "it is not there" };
            return Err(Error::new(Code::NoFunction, format!("PF {address}: {why}")));
        };
        let mut vfs = Vec::new();
        for entry in entries(&device) {
            let number = entry.strip_prefix("virtfn").and_then(|number| number.parse().ok());
            let target = number.and_then(|_| fs::read_link(device.join(&entry)).ok());
            if let (Some(number), Some(vf)) = (number, target.and_then(|path| named(&path))) {
                vfs.push((number, vf));
            }
        }
        vfs.sort_unstable();
        Ok(PfFound { address, vfs, total: total.trim().parse().unwrap_or(0) })
    }

    /// The PF of a VF, and the VF's number.
    ///
    /// # Errors
    /// When there is no such function, or it is no VF.
    pub fn pf_of(&self, vf: Address) -> Result<(PfFound, u32), Error> {
        let device = self.device(vf);
        let refuse = |why: &str| Error::new(Code::NoFunction, format!("VF {vf}: {why}"));
        if !device.exists() {
            return Err(refuse("there is no such function"));
        }
        let pf = fs::read_link(device.join("physfn")).ok().and_then(|path| named(&path));
        let pf = self.pf_at(pf.ok_or_else(|| refuse("it is no VF"))?)?;
        let number = pf.vfs.iter().find(|(_, address)| *address == vf).map(|(number, _)| *number);
        Ok((pf, number.ok_or_else(|| refuse("its PF does not know it"))?))
    }

    /// The address of a PF's interface, which is its name on the other side.
    ///
    /// # Errors
    /// When it has no interface here.
    pub fn mac(&self, pf: Address) -> Result<Mac, Error> {
        let device = self.device(pf);
        let found = self.interfaces(pf).into_iter().find_map(|(name, parent)| {
            let of = if is_virtio(&parent) { device.join(parent) } else { device.clone() };
            let text = fs::read_to_string(of.join("net").join(name).join("address")).ok()?;
            text.trim().parse().ok()
        });
        found.ok_or_else(|| Error::new(Code::NoFunction, format!("PF {pf}: it has no interface")))
    }

    /// Names its interface may have in this namespace, and what the kernel calls the interface's device
    /// (`virtio3`), which stays when it is renamed.
    pub fn interfaces(&self, vf: Address) -> Vec<(String, String)> {
        let device = self.device(vf);
        let mut found = Vec::new();
        let mut look = |folder: &Path, parent: &str| {
            for name in entries(&folder.join("net")) {
                if is_ifname(&name) {
                    found.push((name, parent.to_owned()));
                }
            }
        };
        look(&device, &vf.to_string());
        for name in entries(&device) {
            if is_virtio(&name) {
                look(&device.join(&name), &name);
            }
        }
        found
    }

    /// What the kernel calls the devices whose interface could be that of this VF.
    pub fn parents(&self, vf: Address) -> Vec<String> {
        let virtio = entries(&self.device(vf)).into_iter().filter(|name| is_virtio(name));
        virtio.chain([vf.to_string()]).collect()
    }

    fn of_interface(&self, name: &str) -> Option<Address> {
        let device = self.root.join("class/net").join(name).join("device");
        let path = fs::canonicalize(device).ok()?;
        // The function itself, or the virtio device in it.
        path.ancestors().take(2).find_map(named)
    }

    fn of_mac(&self, mac: Mac) -> Option<Address> {
        let interfaces = self.root.join("class/net");
        entries(&interfaces).iter().find_map(|name| {
            let text = fs::read_to_string(interfaces.join(name).join("address")).ok()?;
            let same = text.trim().parse() == Ok(mac);
            let address = self.of_interface(name).filter(|_| same)?;
            self.device(address).join("sriov_totalvfs").exists().then_some(address)
        })
    }
}

fn is_virtio(name: &str) -> bool {
    let number = name.strip_prefix("virtio");
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// The function a path ends with.
fn named(path: &Path) -> Option<Address> {
    path.file_name()?.to_str()?.parse().ok()
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_the_kernel_does() {
        for text in ["0000:01:00.1", "0000:ff:1f.7", "10000:00:02.0"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for bad in [
            "",
            "01:00.1",
            "0000:01:00",
            "0000:01:20.0",
            "0000:01:00.8",
            "../0:01:00.1",
            "+000:01:00.1",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
