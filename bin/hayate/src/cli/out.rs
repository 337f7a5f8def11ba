//! Standard output.

use super::args::QemuForm;
use super::fail::Failure;
use crate::render::qemu;
use serde::Serialize;
use std::io::{self, ErrorKind, Write};

/// Prints a text, with a newline at its end.
pub(super) fn text(text: &str) -> Result<(), Failure> {
    let mut to = io::stdout().lock();
    let newline = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
    let written = write!(to, "{text}{newline}").and_then(|()| to.flush());
    match written {
        // `hayate port list | head -1` has what it wanted.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::host(format!("standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Says something beside the output, on standard error.
pub(super) fn note(text: &str) {
    // Whoever closed standard error does not want to know.
    let _ = writeln!(io::stderr(), "note: {text}");
}

/// Prints a value as JSON for people and programs.
pub(super) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(value);
    text(&json.map_err(|error| Failure::host(error.to_string()))?)
}

/// Prints a value as one line of JSON.
pub(super) fn json_line(value: &impl Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string(value);
    text(&json.map_err(|error| Failure::host(error.to_string()))?)
}

/// Prints arguments for QEMU.
pub(super) fn arguments(arguments: &[qemu::Argument], form: &QemuForm) -> Result<(), Failure> {
    if form.json {
        return json(&arguments.as_flattened());
    }
    let written = if form.shell { qemu::for_shell } else { qemu::plain };
    text(&written(arguments))
}
