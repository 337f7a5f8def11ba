//! Ethernet addresses.

use std::fmt;
use std::str::FromStr;

/// An Ethernet address; its text is `02:00:5e:10:00:01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

/// A text that is not a [`Mac`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is not an Ethernet address: six hexadecimal bytes like 02:00:5e:10:00:01 are allowed"
)]
pub struct BadMac;

impl Mac {
    /// The address of a VM's port: locally administered (`02:...`), unicast, and the same every
    /// time for the same two names, so that a guest sees the same card after any restart.
    pub fn of_port(vm: &str, port: &str) -> Self {
        // FNV-1a with a separator no name can contain, then one avalanche step: the low bytes of
        // plain FNV of short, similar names are too much alike.
        let text = vm.bytes().chain([0]).chain(port.bytes());
        let mut hash = text.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let [a, b, c, d, e, ..] = (hash ^ (hash >> 32)).to_be_bytes();
        Self([0x02, a, b, c, d, e])
    }
}

impl FromStr for Mac {
    type Err = BadMac;

    fn from_str(text: &str) -> Result<Self, BadMac> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|p| p.len() == 2).ok_or(BadMac)?;
            if !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(BadMac);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| BadMac)?;
        }
        if parts.next().is_some() { Err(BadMac) } else { Ok(Self(bytes)) }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

crate::text::as_text!(
    Mac,
    pattern: "^([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}$",
    example: "02:00:5e:10:00:01",
    what: "an Ethernet address"
);

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn text_and_back() {
        let mac: Mac = "02:00:5e:AB:00:01".parse().unwrap();
        assert_eq!(mac.to_string(), "02:00:5e:ab:00:01");
        for bad in [
            "",
            "02",
            "02:00:5e:ab:00",
            "02:00:5e:ab:00:01:02",
            "2:0:5e:ab:0:1",
            "02:00:5e:ab:00:+1",
        ] {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
    }

    #[test]
    fn derived_addresses_are_stable_local_unicast_and_spread() {
        // A guest's configuration hangs on this value: it must never change between releases.
        assert_eq!(Mac::of_port("web", "web0").to_string(), "02:36:bc:11:48:4f");
        assert_ne!(Mac::of_port("a", "bc"), Mac::of_port("ab", "c"));
        let many: HashSet<Mac> = (0..200)
            .flat_map(|vm| (0..50).map(move |p| Mac::of_port(&format!("vm{vm}"), &format!("p{p}"))))
            .collect();
        assert_eq!(many.len(), 10_000);
        assert!(many.iter().all(|mac| mac.0[0] == 2));
    }
}
