//! Plugins that manage addresses, which are asked as a runtime would ask them ("Plugin Delegation").

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;

use crate::call::{Call, shortened};
use crate::conf::Conf;
use crate::error::{Code, Error};
use crate::result::Outcome;

/// Longest answer, bytes.
const ANSWER_MAX: u64 = 1 << 20;
/// A plugin that takes longer is ended. Leases of DHCP may take a minute.
const PATIENCE: Duration = Duration::from_secs(120);

/// Asks the plugin of the configuration, if it has one, the same that this one was asked, or what `command`
/// says instead.
///
/// # Errors
/// What the plugin says, with its code; or that it could not be asked.
pub fn ask(call: &Call, conf: &Conf, command: &str) -> Result<Option<Outcome>, Error> {
    let Some(kind) = &conf.ipam else { return Ok(None) };
    let program = find(kind, &call.path)?;
    let said = run(&program, call, conf, command)
        .map_err(|error| error.during(format!("IPAM plugin {kind}, {command}")))?;
    if command != "ADD" {
        return Ok(None);
    }
    Outcome::read(&format!("IPAM plugin {kind}"), &said).map(Some)
}

/// Could the plugin of the configuration be asked?
///
/// # Errors
/// When there is no such program.
pub fn there(call: &Call, conf: &Conf) -> Result<(), Error> {
    conf.ipam.as_ref().map_or(Ok(()), |kind| find(kind, &call.path).map(drop))
}

/// The program of this name in the directories of `CNI_PATH`.
fn find(kind: &str, path: &[PathBuf]) -> Result<PathBuf, Error> {
    let programs = path.iter().filter(|dir| dir.is_absolute()).map(|dir| dir.join(kind));
    let mut programs = programs.filter(|program| runnable(program));
    programs.next().ok_or_else(|| {
        Error::new(
            Code::Config,
            format!("ipam.type: {kind:?}: no such program in CNI_PATH {path:?}"),
        )
    })
}

fn runnable(program: &Path) -> bool {
    let kept = program.metadata();
    kept.is_ok_and(|kept| kept.is_file() && kept.permissions().mode() & 0o111 != 0)
}

/// Runs it. Input and output are files in memory: nobody waits for anybody, whatever is read or written when.
fn run(program: &Path, call: &Call, conf: &Conf, command: &str) -> Result<Value, Error> {
    let failed = |error: std::io::Error| Error::io(program.display(), &error);
    let memory = |name: &str| -> std::io::Result<File> {
        Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
    };
    let mut input = memory("configuration").map_err(failed)?;
    input.write_all(&conf.raw).and_then(|()| input.rewind()).map_err(failed)?;
    let mut output = memory("answer").map_err(failed)?;
    let mut child = Command::new(program)
        .envs(&call.variables)
        .env("CNI_COMMAND", command)
        .stdin(Stdio::from(input))
        .stdout(Stdio::from(output.try_clone().map_err(failed)?))
        .spawn()
        .map_err(failed)?;
    let ended = wait(child.id());
    if !matches!(ended, Ok(true)) {
        // If it ended just now there is nobody to kill; it is waited for below.
        let _ = child.kill();
    }
    let status = child.wait().map_err(failed)?;
    if !ended.map_err(failed)? {
        let seconds = PATIENCE.as_secs();
        return Err(Error::new(Code::Later, format!("no answer in {seconds} s")));
    }
    let mut said = Vec::new();
    let read = output.rewind().and_then(|()| output.take(ANSWER_MAX).read_to_end(&mut said));
    read.map_err(failed)?;
    let value: Result<Value, _> = serde_json::from_slice(&said);
    if status.success() {
        // Only ADD has to say something.
        return if command == "ADD" {
            value.map_err(|error| Error::decode("answer", &error))
        } else {
            Ok(Value::Null)
        };
    }
    let value = value.unwrap_or_default();
    let text = |key: &str| shortened(value[key].as_str().unwrap_or_default(), 2000).to_owned();
    let code = value["code"].as_u64().and_then(|code| u32::try_from(code).ok());
    let Some(code) = code.filter(|code| *code != 0) else {
        return Err(Error::new(Code::Other(999), format!("{status}, without saying why")));
    };
    Err(Error { code: Code::Other(code), message: text("msg"), details: text("details") })
}

/// Waits until a child has ended, or for too long: then false.
fn wait(id: u32) -> std::io::Result<bool> {
    let id = i32::try_from(id).ok().and_then(Pid::from_raw);
    let id = id.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidInput))?;
    let process = pidfd_open(id, PidfdFlags::empty())?;
    let end = Instant::now() + PATIENCE;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            done => return Ok(done? > 0),
        }
    }
}
