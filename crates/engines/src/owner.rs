//! Who writes an image, as kept with the image: enough for a successor on the same machine to know that the writer
//! is dead.

use std::fmt;
use std::fs;
use std::str::FromStr;

/// Format of the text.
const VERSION: &str = "1";

/// A process that writes images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The host's name, for people.
    pub host: String,
    /// This start of its kernel.
    pub boot: String,
    /// The process namespace in which `pid` is a number.
    pub namespace: u64,
    /// The process.
    pub pid: u32,
    /// When it was started, in clock ticks since the machine was.
    pub start: u64,
}

impl Owner {
    /// This process. `None`: the kernel does not say.
    #[must_use]
    pub fn this() -> Option<Owner> {
        let pid = std::process::id();
        Some(Owner {
            host: host(),
            boot: boot()?,
            namespace: namespace()?,
            pid,
            start: start_of(pid)?,
        })
    }

    /// Whether it is known that this process has ended: it was one of this machine and process namespace, and is not
    /// there any more. Of others nothing is known.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        let here = boot().is_some_and(|boot| boot == self.boot)
            && namespace().is_some_and(|namespace| namespace == self.namespace);
        // A number may be given out again, but not with the same start.
        here && start_of(self.pid) != Some(self.start)
    }
}

fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // It is one word.
    let name: String = name.chars().filter(char::is_ascii_graphic).take(64).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

fn boot() -> Option<String> {
    Some(fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned())
}

fn namespace() -> Option<u64> {
    Some(rustix::fs::stat("/proc/self/ns/pid").ok()?.st_ino)
}

/// When a process that runs was started; `None`: there is none, or all of its threads have ended and nobody has asked
/// how.
fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program may have anything in it; after it come state, and 19 more until the start.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok()?;
    // The first thread may have ended before the others: they may still be writing.
    let others = || fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.count() > 1);
    (!matches!(state, "Z" | "X") || others()).then_some(start)
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { host, boot, namespace, pid, start } = self;
        write!(f, "{VERSION} {host} {boot} {namespace} {pid} {start}")
    }
}

/// The text is none of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the text of an owner")]
pub struct BadOwner;

impl FromStr for Owner {
    type Err = BadOwner;

    fn from_str(text: &str) -> Result<Owner, BadOwner> {
        let mut words = text.split(' ');
        let mut word = || words.next().filter(|word| !word.is_empty()).ok_or(BadOwner);
        if word()? != VERSION {
            return Err(BadOwner);
        }
        let (host, boot) = (word()?.to_owned(), word()?.to_owned());
        let mut number = || word()?.parse::<u64>().map_err(|_| BadOwner);
        let (namespace, pid, start) = (number()?, number()?, number()?);
        let pid = u32::try_from(pid).map_err(|_| BadOwner)?;
        Ok(Owner { host, boot, namespace, pid, start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_text_is_read_as_it_was_written() {
        let owner = Owner::this().unwrap();
        assert_eq!(owner.to_string().parse(), Ok(owner));
        for text in
            ["", "1", "1 a b 1 2", "2 a b 1 2 3", "1 a b 1 2 x", "1  b 1 2 3", "1 a b 1 -2 3"]
        {
            assert_eq!(text.parse::<Owner>(), Err(BadOwner), "{text}");
        }
    }

    #[test]
    fn only_who_was_here_and_is_gone_is_dead() {
        let this = Owner::this().unwrap();
        assert!(!this.is_dead());
        // The number was given out again.
        let earlier = Owner { start: this.start - 1, ..this.clone() };
        assert!(earlier.is_dead());
        for elsewhere in [
            Owner { boot: "another".to_owned(), ..earlier.clone() },
            Owner { namespace: this.namespace + 1, ..earlier },
        ] {
            assert!(!elsewhere.is_dead());
        }
    }

    #[test]
    fn who_has_ended_is_dead_before_anybody_has_asked_how() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let start = start_of(child.id()).unwrap();
        let owner = Owner { pid: child.id(), start, ..Owner::this().unwrap() };
        assert!(!owner.is_dead());
        child.kill().unwrap();
        let begin = std::time::Instant::now();
        while !owner.is_dead() {
            assert!(begin.elapsed().as_secs() < 60);
        }
        child.wait().unwrap();
        assert!(owner.is_dead());
    }
}
