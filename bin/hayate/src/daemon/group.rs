//! Groups of the system, by name or number.

use rustix::fs::Gid;
use std::io;

/// Why there is no such group.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GroupError {
    #[error("there is no group {0:?} in /etc/group; a number is allowed too")]
    Unknown(String),
    #[error("/etc/group cannot be read: {0}")]
    Read(#[from] io::Error),
}

/// The group of that name or number.
pub(super) fn find(group: &str) -> Result<Gid, GroupError> {
    if let Ok(number) = group.parse::<u32>() {
        return Ok(Gid::from_raw(number));
    }
    let text = std::fs::read_to_string("/etc/group")?;
    number_of(&text, group).map(Gid::from_raw).ok_or_else(|| GroupError::Unknown(group.to_owned()))
}

fn number_of(text: &str, group: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        let text = "root:x:0:\nkvm:x:104:alice,bob\nbroken\n";
        assert_eq!(number_of(text, "kvm"), Some(104));
        assert_eq!(number_of(text, "broken"), None);
        assert_eq!(number_of(text, "x"), None);
        assert_eq!(find("107").unwrap().as_raw(), 107);
        assert!(find("no such group").unwrap_err().to_string().contains("no such group"));
    }
}
