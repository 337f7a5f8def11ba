//! Huge pages: reserved for a run and given back.

use std::fs;
use std::io;
use std::path::Path;

const RESERVED: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

/// Pages of 2 MiB that are there for this run; the number there was before comes back when it is
/// dropped.
#[derive(Debug)]
pub struct HugePages {
    before: Option<u64>,
}

impl HugePages {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> HugePages {
        HugePages { before: None }
    }

    /// Makes sure that so many are free now: others of this machine take and give back theirs.
    ///
    /// # Errors
    /// The kernel has not so much memory in one piece, or this user may not ask.
    pub fn ensure(&mut self, pages: u64) -> io::Result<()> {
        let (reserved, free) = (read(RESERVED)?, read(FREE)?);
        if free >= pages {
            return Ok(());
        }
        // From here on the old number comes back whatever happens.
        self.before.get_or_insert(reserved);
        fs::write(RESERVED, (reserved + pages - free).to_string())?;
        let free = read(FREE)?;
        if free < pages {
            let why = format!("{free} of {pages} huge pages of 2 MiB could be reserved");
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, why));
        }
        Ok(())
    }
}

impl Default for HugePages {
    fn default() -> HugePages {
        HugePages::new()
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // What cannot be given back stays reserved; nothing breaks by it.
            let _ = fs::write(RESERVED, before.to_string());
        }
    }
}

fn read(path: impl AsRef<Path>) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(io::Error::other)
}
