//! Whether KVM can run a guest here. `/dev/kvm` alone says little: some virtual machines have it
//! and cannot boot a stock kernel with it. So a boot is tried once and the answer kept.

use std::fs;
use std::time::{Duration, Instant};

use crate::assets::Assets;
use crate::guest::Config;
use crate::{Result, guest::Guest};

/// How guests are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// Hardware virtualisation.
    Kvm,
    /// Emulation.
    Tcg,
}

impl Accel {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "KVM",
            Self::Tcg => "TCG",
        }
    }

    /// QEMU's arguments for it.
    pub(crate) fn args(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            // The kernel copies and clears with loops of words then: emulated, `rep movsb` goes byte by byte.
            Self::Tcg => ["-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm"],
        }
    }
}

/// A guest that does not answer within this time is taken not to boot; under KVM it takes one or
/// two seconds.
const LIMIT: Duration = Duration::from_secs(10);

/// The accelerator to use, tried once per machine, kernel and QEMU. `$E2E_ACCEL` (kvm, tcg) decides
/// instead when set.
///
/// # Errors
/// When the answer cannot be stored.
pub fn detect(assets: &Assets) -> Result<Accel> {
    match std::env::var("E2E_ACCEL").as_deref() {
        Ok("kvm") => return Ok(Accel::Kvm),
        Ok("tcg") => return Ok(Accel::Tcg),
        _ => {}
    }
    if fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok(Accel::Tcg);
    }
    let host = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let cpu = cpu.lines().find(|l| l.starts_with("model name")).unwrap_or_default();
    let key = format!("{}|{cpu}|{}|{}", host.trim(), assets.qemu_version, assets.kernel_version);
    let cache = assets.build_dir.join("guest/accel");
    if let Ok(text) = fs::read_to_string(&cache)
        && let Some((answer, of)) = text.split_once('|')
        && of == key
    {
        return Ok(if answer == "kvm" { Accel::Kvm } else { Accel::Tcg });
    }
    eprintln!("  setup trying whether KVM can boot a guest (at most {} s)", LIMIT.as_secs());
    let start = Instant::now();
    let dir = tempfile::tempdir()?;
    let config = Config { accel: Some(Accel::Kvm), boot_limit: LIMIT, ..Config::new("probe") };
    let usable = Guest::start(assets, dir.path(), config).and_then(|mut g| g.wait_ready()).is_ok();
    crate::process::pause(Duration::ZERO)?;
    eprintln!(
        "  setup KVM {} ({:.1} s)",
        if usable { "works" } else { "cannot boot a stock kernel here: guests will be emulated" },
        start.elapsed().as_secs_f64()
    );
    fs::write(cache, format!("{}|{key}", if usable { "kvm" } else { "tcg" }))?;
    Ok(if usable { Accel::Kvm } else { Accel::Tcg })
}
