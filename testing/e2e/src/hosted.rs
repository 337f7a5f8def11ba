//! Programs of this machine inside a guest, with this machine's libraries: in a root of their own,
//! `/host`, which the guest's `host PROGRAM ARGUMENT...` enters. What they load by themselves later, such
//! as libfabric and the driver of an RDMA device, is there as well.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::assets::{self, Assets};
use crate::process::run;
use crate::{Context, Result, bail, cpio, ensure};

const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
/// Where Debian has libraries.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
/// A library that goes before Debian's, seen from the folder of the program that loads it, and where it is in the root.
const OWN: (&str, &str) = ("../lib/hayate/libfabric.so.1", "lib/hayate/libfabric.so.1");
/// Where libibverbs looks for the libraries of devices, and which it should look for.
const DEVICES: &str = "/usr/lib/x86_64-linux-gnu/libibverbs";
const NAMES: &str = "/etc/libibverbs.d";
/// The part of their names before the version: soft-RoCE.
const DEVICE: &str = "librxe-";

/// What enters the root. What it needs of the guest is mounted when it is first run.
const ENTER: &str = "#!/bin/sh\n\
    for d in proc sys dev tmp run; do\n\
    [ -e /host/.$d ] && continue\n\
    mkdir -p /host/$d && mount -o rbind /$d /host/$d && >/host/.$d\n\
    done\n\
    exec chroot /host \"$@\"\n";

/// The initramfs with RDMA, and these programs in `/host/bin` by these names, as a file of this name.
///
/// # Errors
/// When a program or library is not there: `setup.sh` installs what is needed.
pub fn rdma_initrd(assets: &Assets, programs: &[(PathBuf, &str)], name: &str) -> Result<PathBuf> {
    let mut files = BTreeMap::new();
    let dir = tempfile::tempdir()?;
    let mut loaded = vec![Path::new(LIBRARIES).join("libfabric.so.1"), device()?];
    for (program, name) in programs {
        // Three quarters of them is for debuggers.
        let small = dir.path().join(name);
        run("strip", &["-g", "-o", &small.to_string_lossy(), &program.to_string_lossy()])?;
        files.insert(format!("bin/{name}"), (0o755, fs::read(&small)?));
        loaded.push(program.clone());
        if let Ok(own) = fs::read(program.with_file_name(OWN.0)) {
            files.insert(OWN.1.to_owned(), (0o644, own));
        }
    }
    for of in &loaded {
        ensure!(of.is_file(), "{}: no such file", of.display());
        let listed = run(LOADER, &["--list", &of.to_string_lossy()])?;
        let paths = listed.lines().filter_map(|line| line.split("=> ").nth(1)?.split(' ').next());
        for path in paths.map(Path::new).chain([of.as_path()]) {
            let name = path.file_name().context(|| format!("{}: no name", path.display()))?;
            let name = name.to_string_lossy();
            // Only what is a library; and that of a device is where it is looked for.
            if name.contains(".so.") {
                let to = format!("{}/{name}", &LIBRARIES[1..]);
                files.insert(to, (0o644, fs::read(path)?));
            }
        }
    }
    files.insert(LOADER[1..].to_owned(), (0o755, fs::read(LOADER)?));
    let device = device()?;
    files.insert(device.to_string_lossy()[1..].to_owned(), (0o644, fs::read(&device)?));
    let names = Path::new(NAMES).join("rxe.driver");
    files.insert(names.to_string_lossy()[1..].to_owned(), (0o644, fs::read(&names)?));

    let mut archive = Vec::new();
    let mut made = std::collections::BTreeSet::new();
    for (path, (mode, data)) in &files {
        let path = format!("host/{path}");
        for (at, _) in path.match_indices('/') {
            if made.insert(path[..at].to_owned()) {
                cpio::entry(&mut archive, &path[..at], 0o755, None);
            }
        }
        cpio::entry(&mut archive, &path, *mode, Some(data));
    }
    cpio::entry(&mut archive, "bin/host", 0o755, Some(ENTER.as_bytes()));
    let out = assets.build_dir.join(format!("guest/{name}.cpio"));
    assets::appended(&assets.rdma.1, archive, &out)
}

/// The library of soft-RoCE, whose name has the version of what libibverbs offers to it.
fn device() -> Result<PathBuf> {
    let all = fs::read_dir(DEVICES).context(|| DEVICES.into())?;
    let named = |name: &str| name.starts_with(DEVICE);
    for one in all.flatten() {
        if one.file_name().to_str().is_some_and(named) {
            return Ok(one.path());
        }
    }
    bail!("{DEVICES} has no {DEVICE}*: install ibverbs-providers")
}
