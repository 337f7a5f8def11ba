//! A QEMU guest with a disk of each system, and fio in it.
//!
//! **Purpose.** Everything else here has a client of vhost-user devices that does nothing but to make requests.
//! In a guest there are a kernel's driver, its page cache and interrupts as well. The guest is emulated (TCG) on
//! every machine, so that figures of two machines differ in one thing less; it has one virtual CPU.
//!
//! **Owner.** `Lab` has the guest, and back ends and images of their own for its disks: all of them run, and
//! those that have no turn are asked nothing. It boots from the disk that `testing/e2e/setup.sh` made, of which
//! QEMU changes nothing.
//!
//! **Failure.** What keeps the guest from booting is why nothing was measured in it; a system that does not start
//! has no disk there. One whose disk does not keep what the guest writes is not measured.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use e2e::accel::Accel;
use e2e::assets::{self, Assets};
use e2e::guest::{Config, Guest};
use tempfile::TempDir;

use super::cell::{Job, Medium};
use super::fio;
use super::load::LoadError;
use super::sut::{Backend, Images, System};
use crate::options::Options;
use crate::window::RoundTrips;

/// Longest time that fio may take for one run, which is a second or two when nothing else happens.
const LIMIT: Duration = Duration::from_secs(120);
/// Bytes that are written and read back before anything is measured.
const CHECKED: usize = 4 << 20;
/// The disk it boots from is the first one.
const FIRST: u8 = b'b';

/// A disk of the guest's.
struct Disk {
    backend: Backend,
    device: String,
    // They go after the back end.
    _images: Images,
}

/// A guest that runs, with its disks; they end after it.
pub(super) struct Lab {
    guest: Guest,
    disks: BTreeMap<System, Result<Disk, String>>,
    size: u64,
    /// QEMU and the guest's kernel, by their versions.
    pub(super) about: String,
    _dir: TempDir,
}

impl Lab {
    /// Starts a back end for each system, and a guest with all of their disks.
    ///
    /// # Errors
    /// `make setup` was not run, or the guest does not boot.
    pub(super) fn start(
        options: &Options,
        systems: &[System],
        mut start: impl FnMut(System, &Images) -> Result<Backend, String>,
    ) -> Result<Lab, String> {
        let assets = prepared(&options.guest)?;
        // Ctrl-C ends what waits for the guest, too.
        e2e::process::catch_signals();
        let size = options.disk_size << 20;
        let (mut disks, mut arguments) = (BTreeMap::new(), root(&assets.disk));
        let mut letter = FIRST;
        for &system in systems {
            let disk = Images::new(&options.tmpfs_dir, Medium::Tmpfs, size)
                .map_err(|error| error.to_string())
                .and_then(|images| Ok((start(system, &images)?, images)))
                .map(|(backend, _images)| {
                    let device = format!("vd{}", char::from(letter));
                    arguments.extend(backend.sockets.iter().flat_map(|at| attached(&device, at)));
                    letter += 1;
                    Disk { backend, device, _images }
                });
            disks.insert(system, disk);
        }
        let said = |error: e2e::Error| error.to_string();
        let dir = crate::sut::directory().map_err(|error| error.to_string())?;
        let mut config = Config::new("bench");
        (config.boots_from_disk, config.accel) = (true, Some(Accel::Tcg));
        let pinned = ["taskset", "-c", &options.cpus.guests.to_string()].map(str::to_owned);
        (config.under, config.more) = (pinned.into(), arguments);
        let mut guest = Guest::start(&assets, dir.path(), config).map_err(said)?;
        guest.wait_ready().map_err(said)?;
        let Assets { qemu_version, kernel_version, .. } = assets;
        let about = format!("QEMU {qemu_version}, Linux {kernel_version}");
        let mut lab = Lab { guest, disks, size, about, _dir: dir };
        for system in systems {
            if let Err(error) = lab.check(*system) {
                lab.disks.insert(*system, Err(error.to_string()));
            }
        }
        Ok(lab)
    }

    /// Whether QEMU has not ended.
    pub(super) fn alive(&mut self) -> bool {
        self.guest.check().is_ok()
    }

    /// Why a system's disk is not measured; none: it is there.
    ///
    /// # Errors
    /// It has no disk there, or its back end has ended.
    pub(super) fn ready(&mut self, system: System) -> Result<(), String> {
        match self.disks.get_mut(&system) {
            Some(Ok(disk)) => match disk.backend.alive() {
                true => Ok(()),
                false => Err("it ended in the middle".to_owned()),
            },
            Some(Err(problem)) => Err(problem.clone()),
            None => Err("it is no disk of the guest".to_owned()),
        }
    }

    fn disk(&self, system: System) -> Option<&Disk> {
        self.disks.get(&system)?.as_ref().ok()
    }

    /// Its processes, and those of all disks.
    pub(super) fn pids(&self) -> Vec<u32> {
        let disks = self.disks.values().filter_map(|disk| disk.as_ref().ok());
        let behind = disks.flat_map(|disk| disk.backend.pids());
        std::iter::once(self.guest.pid()).chain(behind).collect()
    }

    /// CPU time of a system's back end and server so far.
    pub(super) fn times(&self, system: System) -> [Duration; 2] {
        let of =
            |disk: &Disk| [disk.backend.cpu_time(), disk.backend.server_time().unwrap_or_default()];
        self.disk(system).map_or([Duration::ZERO; 2], of)
    }

    /// Runs fio on a system's disk.
    pub(super) fn fio(
        &mut self,
        system: System,
        job: &Job,
    ) -> Result<(f64, RoundTrips), LoadError> {
        let command = fio::in_guest(job, &self.device(system)?, self.size);
        fio::parse(&self.run(&command)?)
    }

    fn device(&self, system: System) -> Result<String, LoadError> {
        let none = || LoadError::Guest("it is no disk of the guest".to_owned());
        Ok(format!("/dev/{}", self.disk(system).ok_or_else(none)?.device))
    }

    fn run(&mut self, command: &str) -> Result<String, LoadError> {
        let said = self.guest.sh_for(LIMIT, command);
        said.map_err(|error| LoadError::Guest(error.to_string()))
    }

    /// Has the guest write to the beginning of a system's disk and read it again, and compares with the file
    /// behind it: it is that system's disk, and keeps what it is given.
    fn check(&mut self, system: System) -> Result<(), LoadError> {
        if self.disk(system).is_none() {
            return Ok(());
        }
        let (device, line) = (self.device(system)?, format!("{}\n", system.as_str()));
        let [written, read] = ["/tmp/written", "/tmp/read"];
        self.run(&format!(
            "yes '{}' | head -c {CHECKED} >{written} && dd if={written} of={device} bs=1M conv=fsync && \
             echo 3 >/proc/sys/vm/drop_caches && dd if={device} of={read} bs=1M count={} && \
             cmp {written} {read} && rm {written} {read}",
            line.trim_end(),
            CHECKED >> 20,
        ))?;
        let behind = self.disk(system).and_then(|disk| disk.backend.behind());
        let io = |source| LoadError::Io { what: "the raw file of the disk", source };
        let path = behind.ok_or_else(|| io(std::io::ErrorKind::NotFound.into()))?;
        let mut there = vec![0; CHECKED];
        File::open(path).and_then(|mut file| file.read_exact(&mut there)).map_err(io)?;
        let wrong =
            there.iter().zip(line.bytes().cycle()).position(|(there, wrote)| *there != wrote);
        match wrong {
            None => Ok(()),
            Some(at) => Err(LoadError::Data { what: "file", offset: at as u64 }),
        }
    }
}

/// What `make setup` made.
pub(crate) fn prepared(build: &Path) -> Result<Assets, String> {
    assets::made(build).map_err(|error| {
        format!(
            "not measured: no guest in {} ({error}); run `make setup` in hayate's source tree, and name \
             its folder `build` with --guest",
            build.display()
        )
    })
}

/// A name in one of QEMU's lists.
fn in_list(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// QEMU's arguments for the disk it boots from: what is written there goes elsewhere, and away with QEMU.
fn root(disk: &Path) -> Vec<String> {
    let file = in_list(disk);
    let drive = format!("if=none,id=root,format=raw,snapshot=on,file={file}");
    ["-drive", &drive, "-device", "virtio-blk-pci,drive=root,bootindex=0"].map(str::to_owned).into()
}

/// Those for a disk at a socket.
fn attached(name: &str, socket: &Path) -> [String; 4] {
    let chardev = format!("socket,id={name},path={}", in_list(socket));
    let device = format!("vhost-user-blk-pci,chardev={name},num-queues=1,queue-size=256");
    ["-chardev", &chardev, "-device", &device].map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_make_setup_it_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let said = prepared(dir.path()).unwrap_err();
        assert!(said.starts_with("not measured: "), "{said}");
        assert!(said.contains("`make setup`") && said.contains("--guest"), "{said}");
        assert!(!said.contains('\n'), "{said}");
        // Half of it is nothing.
        std::fs::create_dir(dir.path().join("guest")).unwrap();
        std::fs::write(dir.path().join("guest/env"), "QEMU=/bin/true\n").unwrap();
        let said = prepared(dir.path()).unwrap_err();
        assert!(said.contains("did not name KERNEL"), "{said}");
    }

    #[test]
    fn qemu_finds_paths_with_commas() {
        let root = root(Path::new("/a,b/disk.raw"));
        assert!(root.iter().any(|word| word.ends_with("file=/a,,b/disk.raw")), "{root:?}");
        let disk = attached("vdb", Path::new("/a,b/0.sock"));
        assert!(disk.iter().any(|word| word == "socket,id=vdb,path=/a,,b/0.sock"), "{disk:?}");
    }
}
