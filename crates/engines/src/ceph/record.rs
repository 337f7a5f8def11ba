//! Who last wrote an image, as kept with it.

use std::str::FromStr;

use crate::Owner;
use crate::owner::BadOwner;

/// Where it is kept.
pub(super) const KEY: &str = "hayate.writer";
/// Where the number of openings for writing is.
pub(super) const EPOCH: &str = "hayate.epoch";

/// A writer: as a client of the cluster, and as a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Writer {
    /// Its number in the cluster.
    pub(super) client: u64,
    /// By which the lock knows it.
    pub(super) address: String,
    pub(super) process: Owner,
}

impl std::fmt::Display for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.client, self.address, self.process)
    }
}

impl FromStr for Writer {
    type Err = BadOwner;

    fn from_str(text: &str) -> Result<Writer, BadOwner> {
        let (client, rest) = text.split_once(' ').ok_or(BadOwner)?;
        let (address, process) = rest.split_once(' ').ok_or(BadOwner)?;
        let client = client.parse().map_err(|_| BadOwner)?;
        Ok(Writer { client, address: address.to_owned(), process: process.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_as_it_was_written() {
        let process = Owner::this().unwrap();
        let writer = Writer { client: 4123, address: "10.0.0.7:0/31".to_owned(), process };
        assert_eq!(writer.to_string().parse(), Ok(writer));
        for text in ["", "x", "1 a", "x a 1 h b 1 2 3"] {
            assert_eq!(text.parse::<Writer>(), Err(BadOwner), "{text}");
        }
    }
}
