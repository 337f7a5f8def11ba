//! Debian packages of the peers, installed when they are missing.

use std::path::Path;
use std::process::{Command, Stdio};

use super::SutError;
use super::process::run;

/// Whether a package is there.
fn installed(package: &str) -> bool {
    let status = run(&["dpkg-query", "-W", "-f", "${db:Status-Status} ", package], &[]);
    status.is_ok_and(|all| all.split_whitespace().any(|one| one == "installed"))
}

/// Installs what is missing of these packages.
///
/// Services that come with them are not started: measurements start their own.
///
/// # Errors
/// No apt-get, no rights, or no such package.
pub fn install(packages: &[&str], say: &mut dyn FnMut(&str)) -> Result<(), SutError> {
    let missing: Vec<&str> = packages.iter().copied().filter(|p| !installed(p)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    say(&format!("installing {}", missing.join(", ")));
    // invoke-rc.d starts nothing in runlevel 1.
    let env = [("DEBIAN_FRONTEND", Path::new("noninteractive")), ("RUNLEVEL", Path::new("1"))];
    let mut command = vec!["apt-get", "-qq", "-y", "install", "--no-install-recommends"];
    command.extend(&missing);
    // The lists may be older than what the archive still holds.
    run(&command, &env).or_else(|_| {
        run(&["apt-get", "-qq", "update"], &env)?;
        run(&command, &env)
    })?;
    Ok(())
}

/// Versions of packages, as dpkg knows them.
#[must_use]
pub fn version(packages: &[&str]) -> Option<String> {
    let output = Command::new("dpkg-query")
        .args(["-W", "-f", "${Package} ${Version} "])
        .args(packages)
        .stderr(Stdio::null())
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The libfabric that a hayate loads, major and minor: `LD_LIBRARY_PATH` may name another than the package's.
#[must_use]
pub fn libfabric(hayate: &str) -> Option<String> {
    let output = Command::new(hayate).args(["fabric", "list", "--json"]).output().ok()?;
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    Some(list.get("libfabric")?.as_str()?.to_owned())
}
