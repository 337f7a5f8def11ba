//! A Gfarm of one node, in namespaces of its own: gfmd and gfsd, and behind a cable in another network
//! namespace whoever asks them, gfarm2fs or a store.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::sut::Images;
use crate::sched;
use crate::sut::SutError;
use crate::sut::process::{Process, Rank};

/// How it is started.
const SCRIPT: &str = include_str!("gfarm.sh");
/// Those of its processes that have files, and the one that asks for them.
const SERVERS: &[&str] = &["gfsd", "gfmd"];
const CLIENT: &[&str] = &["gfarm2fs"];
/// What keeps the client's network namespace.
const KEEPER: &[&str] = &["sleep"];
/// Where the store's images are in it.
const PLACE: &str = "/vm";

/// One that runs; it ends when dropped, before its directory goes.
pub(super) struct Gfarm {
    process: Process,
    dir: TempDir,
}

impl Gfarm {
    /// Starts it on one CPU, with its files beside the images: mounted by gfarm2fs and empty, or with a
    /// copy of the first image, for a store.
    ///
    /// # Errors
    /// Something of it cannot be started.
    pub(super) fn start(images: &Images, mounted: bool, cpu: usize) -> Result<Gfarm, SutError> {
        let io = |what: &str| SutError::io(what.to_owned());
        let dir = tempfile::Builder::new().prefix("gfarm-").tempdir_in(images.dir());
        let dir = dir.map_err(io("a directory beside the images"))?;
        let script = dir.path().join("gfarm.sh");
        fs::write(&script, SCRIPT).map_err(io("gfarm.sh cannot be written"))?;
        let text = |path: &Path| path.display().to_string();
        let spaces = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let mut start: Vec<String> = vec!["unshare".to_owned()];
        start.extend(spaces.map(str::to_owned));
        let (home, spool) = (dir.path().join("gfarm"), dir.path().join("spool"));
        start.extend(["sh".to_owned(), text(&script), text(&home), text(&spool), cpu.to_string()]);
        if !mounted {
            start.push(text(&images.file(0)?));
        }
        let log = dir.path().join("log");
        let mut process = Process::start("Gfarm", Rank::Ordinary, &start, &[], &log, Some("end"))?;
        let ready = || fs::read_to_string(&log).ok().filter(|said| said.contains("ready"));
        process.wait_for(60, ready)?;
        Ok(Gfarm { process, dir })
    }

    /// Where its node keeps the files.
    pub(super) fn spool(&self) -> PathBuf {
        self.dir.path().join("spool")
    }

    /// Where it is mounted, as others see it: its mounts are its own.
    pub(super) fn mount(&self) -> PathBuf {
        let mnt = self.dir.path().join("gfarm/mnt");
        let root = PathBuf::from(format!("/proc/{}/root", self.process.pid()));
        root.join(mnt.strip_prefix("/").unwrap_or(&mnt))
    }

    /// What starts a program on the client's host, which knows the node by its name: all of its threads have
    /// that CPU, those too that ask Gfarm.
    ///
    /// # Errors
    /// There is no such host any more.
    pub(super) fn client_host(&self, cpu: usize) -> Result<Vec<String>, SutError> {
        let keeper = sched::descendants(self.process.pid(), KEEPER);
        let keeper = keeper.first().ok_or(SutError::Lacks("Gfarm has no client's host"))?;
        let (keeper, cpu) = (keeper.to_string(), cpu.to_string());
        let there = ["nsenter", "--mount", "--net", "--target", &keeper, "--"];
        // Its process is one of this machine's, and so is to be what it reads of itself.
        let own = ["unshare", "--mount-proc", "--", "taskset", "-c", &cpu];
        let words = [&there[..], &own].concat();
        Ok(words.into_iter().map(str::to_owned).collect())
    }

    /// What tells a store where its images are.
    pub(super) fn place(&self) -> [String; 4] {
        let conf = self.dir.path().join("gfarm/gfarm2.conf").display().to_string();
        ["--gfarm".to_owned(), PLACE.to_owned(), "--gfarm-conf".to_owned(), conf]
    }

    /// Whether it has not ended.
    pub(super) fn alive(&mut self) -> bool {
        self.process.alive()
    }

    /// Its processes.
    pub(super) fn pids(&self) -> Vec<u32> {
        let of = |names| sched::descendants(self.process.pid(), names);
        [vec![self.process.pid()], of(SERVERS), of(CLIENT)].concat()
    }

    /// CPU time of gfarm2fs so far.
    pub(super) fn client_time(&self) -> Duration {
        self.time_of(CLIENT)
    }

    /// CPU time of gfmd and gfsd so far.
    pub(super) fn time(&self) -> Duration {
        self.time_of(SERVERS)
    }

    fn time_of(&self, names: &[&str]) -> Duration {
        sched::descendants(self.process.pid(), names).into_iter().map(sched::cpu_time).sum()
    }
}

/// The largest file below a directory, as gfsd keeps it: each time that it was written, by another name.
pub(super) fn largest(dir: &Path) -> Option<PathBuf> {
    let mut best: Option<(u64, PathBuf)> = None;
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
            match entry.metadata() {
                Ok(found) if found.is_dir() => dirs.push(entry.path()),
                Ok(found) if best.as_ref().is_none_or(|(size, _)| found.len() > *size) => {
                    best = Some((found.len(), entry.path()));
                }
                _ => {}
            }
        }
    }
    best.map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_file_is_found_wherever_it_is() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(largest(dir.path()), None);
        let deep = dir.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        for (name, size) in [("c", 10), ("a/d", 30), ("a/b/e", 20)] {
            fs::write(dir.path().join(name), vec![0; size]).unwrap();
        }
        assert_eq!(largest(dir.path()), Some(dir.path().join("a/d")));
    }
}
