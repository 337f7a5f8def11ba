//! What the tests run: made by `setup.sh`, or built by cargo.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;

use crate::process::{run, run_for};
use crate::{Context, Result, bail, cpio, ensure};

/// Files everything else starts from.
#[derive(Debug, Clone)]
pub struct Assets {
    /// Folder of fetched and built things, `$BUILD_DIR` or `build/` at the top of the tree.
    pub build_dir: PathBuf,
    /// A QEMU of version 10.1 or later.
    pub qemu: PathBuf,
    /// Version of that QEMU, as it says it.
    pub qemu_version: String,
    /// The guests' kernel, uncompressed.
    pub kernel: PathBuf,
    /// Its version.
    pub kernel_version: String,
    /// The guests' initramfs; the test program `peer` is in it when cargo built it.
    pub initrd: PathBuf,
    /// A disk, raw, that a guest's firmware boots: the same programs, and fio.
    pub disk: PathBuf,
    /// A kernel with RDMA, and the initramfs for it.
    pub rdma: (PathBuf, PathBuf),
    /// The initramfs with veth, bridge and iptables.
    pub pods: PathBuf,
    /// The CNI project's `cnitool`, where Go could build it.
    pub cnitool: Option<PathBuf>,
}

/// The top of the source tree.
fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of fetched and built things.
///
/// # Errors
/// When it cannot be made.
pub fn build_dir() -> Result<PathBuf> {
    let dir = std::env::var_os("BUILD_DIR").map_or_else(|| tree().join("build"), PathBuf::from);
    fs::create_dir_all(&dir)?;
    Ok(dir.canonicalize()?)
}

/// Runs `setup.sh` (a few milliseconds when there is nothing to do) and says where things are.
///
/// # Errors
/// When `setup.sh` fails; it has said why.
pub fn get() -> Result<&'static Assets> {
    static ASSETS: OnceLock<Assets> = OnceLock::new();
    if let Some(a) = ASSETS.get() {
        return Ok(a);
    }
    let build_dir = build_dir()?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("setup.sh");
    let status = Command::new(&script).env("BUILD_DIR", &build_dir).status()?;
    ensure!(status.success(), "{}: {status}", script.display());
    let mut assets = made(&build_dir)?;
    assets.initrd = with_peer(&assets.initrd, &build_dir)?;
    Ok(ASSETS.get_or_init(|| assets))
}

/// What an earlier run of `setup.sh` made, without running it.
///
/// # Errors
/// When there is nothing in that folder, or it is incomplete.
pub fn made(build_dir: &Path) -> Result<Assets> {
    let text = fs::read_to_string(build_dir.join("guest/env"))?;
    let env: HashMap<&str, &str> = text.lines().filter_map(|l| l.split_once('=')).collect();
    let get = |k: &str| env.get(k).copied().context(|| format!("setup.sh did not name {k}"));
    let qemu = PathBuf::from(get("QEMU")?);
    let version = run(&qemu.to_string_lossy(), &["--version"])?;
    Ok(Assets {
        qemu_version: version.split_whitespace().nth(3).unwrap_or("?").into(),
        qemu,
        kernel: get("KERNEL")?.into(),
        kernel_version: get("KERNEL_VERSION")?.into(),
        initrd: get("INITRD")?.into(),
        disk: get("DISK")?.into(),
        rdma: (get("RDMA_KERNEL")?.into(), get("RDMA_INITRD")?.into()),
        pods: get("PODS_INITRD")?.into(),
        cnitool: env.get("CNITOOL").filter(|path| !path.is_empty()).map(PathBuf::from),
        build_dir: build_dir.into(),
    })
}

/// The hayate binary: `$HAYATE_BIN`, or the release build.
///
/// # Errors
/// When there is none.
pub fn hayate() -> Result<PathBuf> {
    binary("hayate", "HAYATE_BIN")
}

/// The agent: `$HAYATE_AGENT_BIN`, or the release build.
///
/// # Errors
/// When there is none.
pub fn agent() -> Result<PathBuf> {
    binary("hayate-agent", "HAYATE_AGENT_BIN")
}

fn binary(name: &str, variable: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        let path = PathBuf::from(path);
        ensure!(path.is_file(), "{variable}={}: no such file", path.display());
        return Ok(path.canonicalize()?);
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let dirs = [target.unwrap_or_else(|| tree().join("target")), tree().join("target")];
    for path in dirs.iter().map(|d| d.join("release").join(name)) {
        if path.is_file() {
            return Ok(path.canonicalize()?);
        }
    }
    bail!(
        "no {name} binary in {}; build it with `make build` or set {variable}",
        dirs[0].join("release").display()
    )
}

/// Folder of the programs cargo built next to this one.
fn programs() -> Result<PathBuf> {
    let me = std::env::current_exe()?;
    let dir = me.parent().context(|| "no folder of this program".into())?;
    Ok(if dir.ends_with("deps") { dir.join("..") } else { dir.into() })
}

/// The test program `peer`, for use outside of guests.
///
/// # Errors
/// When cargo did not build it.
pub fn peer() -> Result<PathBuf> {
    program("peer")
}

/// The test program `blk`, a guest's driver of disks without a guest.
///
/// # Errors
/// When cargo did not build it.
pub fn blk() -> Result<PathBuf> {
    program("blk")
}

/// The program `pump`, which makes datagrams and counts them.
///
/// # Errors
/// When cargo did not build it.
pub fn pump() -> Result<PathBuf> {
    program("pump")
}

fn program(name: &str) -> Result<PathBuf> {
    let program = programs()?.join(name);
    ensure!(program.is_file(), "{}: no such program", program.display());
    Ok(program.canonicalize()?)
}

/// The program of a package's integration test, which cargo builds if it is not there as when all is
/// tested.
///
/// # Errors
/// When it cannot be built.
pub fn integration_test(name: &str) -> Result<PathBuf> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let manifest = tree().join("Cargo.toml").display().to_string();
    let args = ["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
    let args: Vec<&str> =
        args.into_iter().chain(["--manifest-path", &manifest, "--test", name]).collect();
    let said = run_for(Duration::from_secs(900), &cargo, &args)?;
    let artifacts = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of = |one: &Value| one["target"]["name"] == name;
    let program = artifacts.filter(of).find_map(|one| Some(one["executable"].as_str()?.to_owned()));
    Ok(program.context(|| format!("cargo names no program of the test {name}"))?.into())
}

/// The initramfs with the test program `peer` (`src/bin/peer.rs`) and the machine's own libraries
/// for it appended: built by cargo here, it must not depend on what the guest has.
fn with_peer(base: &Path, build_dir: &Path) -> Result<PathBuf> {
    // The demo alone is built without it.
    let Ok(peer) = peer() else { return Ok(base.into()) };
    let mut archive = Vec::new();
    cpio::entry(&mut archive, "opt", 0o755, None);
    with_libraries(&mut archive, "peer", &peer)?;
    appended(base, archive, &build_dir.join("guest/initrd-peer.cpio"))
}

/// A program and this machine's libraries for it in `/opt/NAME`, and what starts it in `/bin`.
fn with_libraries(archive: &mut Vec<u8>, name: &str, program: &Path) -> Result<()> {
    let dir = format!("opt/{name}");
    cpio::entry(archive, &dir, 0o755, None);
    cpio::entry(archive, &format!("{dir}/{name}"), 0o755, Some(&fs::read(program)?));
    libraries(archive, &program.to_string_lossy(), &dir)?;
    let start = format!("exec /{dir}/ld.so --library-path /{dir} /{dir}/{name} \"$@\"");
    let script = format!("#!/bin/sh\n{start}\n");
    cpio::entry(archive, &format!("bin/{name}"), 0o755, Some(script.as_bytes()));
    Ok(())
}

/// This machine's loader, as `ld.so`, and the libraries of a program.
fn libraries(archive: &mut Vec<u8>, program: &str, dir: &str) -> Result<()> {
    let loader = "/lib64/ld-linux-x86-64.so.2";
    cpio::entry(archive, &format!("{dir}/ld.so"), 0o755, Some(&fs::read(loader)?));
    for line in run(loader, &["--list", program])?.lines() {
        let Some(path) = line.split("=> ").nth(1).and_then(|p| p.split_whitespace().next()) else {
            continue;
        };
        let name = Path::new(path).file_name().context(|| format!("library {path}"))?;
        let name = format!("{dir}/{}", name.to_string_lossy());
        cpio::entry(archive, &name, 0o644, Some(&fs::read(path)?));
    }
    Ok(())
}

/// The initramfs with the agent as guests get it: linked so that it needs nothing of theirs.
///
/// # Errors
/// When there is none.
pub fn with_agent(assets: &Assets) -> Result<PathBuf> {
    let agent = alone(agent()?)?;
    let mut archive = Vec::new();
    cpio::entry(&mut archive, "bin/hayate-agent", 0o755, Some(&fs::read(agent)?));
    appended(&assets.initrd, archive, &assets.build_dir.join("guest/initrd-agent.cpio"))
}

/// A file of a guest.
#[derive(Debug, Clone, Copy)]
pub struct Extra<'a> {
    /// Where, from the root, in a folder that is there.
    pub path: &'a str,
    /// Its permissions.
    pub mode: u32,
    /// What it is.
    pub data: &'a [u8],
}

/// The initramfs for containers, as a file of this name: with `pump`, the agent, and these files. Debugging
/// information stays outside, it costs an emulated guest seconds of its boot.
///
/// # Errors
/// When a program is not there.
pub fn with_pods(assets: &Assets, extras: &[Extra<'_>], out: &Path) -> Result<PathBuf> {
    let small = out.with_extension("pump");
    run("strip", &["-g", "-o", &small.to_string_lossy(), &pump()?.to_string_lossy()])?;
    let mut archive = Vec::new();
    cpio::entry(&mut archive, "opt", 0o755, None);
    with_libraries(&mut archive, "pump", &small)?;
    let agent = fs::read(alone(agent_here()?)?)?;
    cpio::entry(&mut archive, "bin/hayate-agent", 0o755, Some(&agent));
    for extra in extras {
        cpio::entry(&mut archive, extra.path, extra.mode, Some(extra.data));
    }
    appended(&assets.pods, archive, out)
}

/// The agent: `$HAYATE_AGENT_BIN`, or the one beside this program.
fn agent_here() -> Result<PathBuf> {
    match std::env::var_os("HAYATE_AGENT_BIN") {
        Some(_) => agent(),
        None => program("hayate-agent").or_else(|_| agent()),
    }
}

/// The initramfs with the agent and the CNI plugin as guests get them (`$HAYATE_CNI_BIN`, or the release build), this
/// machine's `host-local` and `tuning`, in `/opt/cni/bin`, and `cnitool`.
///
/// # Errors
/// When a program is not there.
pub fn with_cni(assets: &Assets) -> Result<PathBuf> {
    let plugin = alone(binary("hayate-cni", "HAYATE_CNI_BIN")?)?;
    let mut archive = Vec::new();
    for dir in ["opt", "opt/cni", "opt/cni/bin", "opt/cni/lib"] {
        cpio::entry(&mut archive, dir, 0o755, None);
    }
    cpio::entry(&mut archive, "opt/cni/bin/hayate-cni", 0o755, Some(&fs::read(plugin)?));
    for name in ["host-local", "tuning"] {
        let program = format!("/usr/lib/cni/{name}");
        let to = format!("opt/cni/lib/{name}");
        cpio::entry(&mut archive, &to, 0o755, Some(&fs::read(&program)?));
        libraries(&mut archive, &program, "opt/cni/lib")?;
        let script =
            format!("#!/bin/sh\nexec /opt/cni/lib/ld.so --library-path /opt/cni/lib /{to}\n");
        let to = format!("opt/cni/bin/{name}");
        cpio::entry(&mut archive, &to, 0o755, Some(script.as_bytes()));
    }
    if let Some(cnitool) = &assets.cnitool {
        cpio::entry(&mut archive, "bin/cnitool", 0o755, Some(&fs::read(cnitool)?));
    }
    appended(&with_agent(assets)?, archive, &assets.build_dir.join("guest/initrd-cni.cpio"))
}

/// A program that needs nothing of a guest.
fn alone(program: PathBuf) -> Result<PathBuf> {
    let needs = run("ldd", &[&program.to_string_lossy()])?;
    ensure!(
        needs.contains("statically linked"),
        "{} needs libraries, which guests do not have; `make build` makes one that does not:\n{needs}",
        program.display()
    );
    Ok(program)
}

/// An archive with what is appended to it, as a file.
pub(crate) fn appended(base: &Path, mut archive: Vec<u8>, out: &Path) -> Result<PathBuf> {
    cpio::finish(&mut archive);
    let mut whole = fs::read(base)?;
    whole.extend_from_slice(&archive);
    if fs::read(out).is_ok_and(|old| old == whole) {
        return Ok(out.into());
    }
    // A guest of another run may be reading the old one.
    let new = out.with_extension(std::process::id().to_string());
    fs::write(&new, &whole)?;
    fs::rename(&new, out)?;
    Ok(out.into())
}

/// Waits until no other test program or demo of this build folder runs; they would disturb each
/// other's measurements. Released when the value is dropped.
///
/// # Errors
/// When the lock file cannot be made.
pub fn only_one() -> Result<File> {
    let lock = File::create(build_dir()?.join(".e2e.lock"))?;
    lock.lock()?;
    Ok(lock)
}
