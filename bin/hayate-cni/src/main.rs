//! `hayate-cni`: what a runtime runs, and what a person who runs it by hand is told.

mod cli;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::process::ExitCode;

use hayate_cni::conf::CONF_MAX;
use hayate_cni::error::{Code, Error};
use hayate_cni::{Machine, run};
use serde_json::Value;

fn main() -> ExitCode {
    let asked = std::env::var_os("CNI_COMMAND").is_some_and(|command| !command.is_empty());
    if !asked || std::env::args_os().len() > 1 {
        return cli::main();
    }
    let mut input = Vec::new();
    let answer = variables().and_then(|variables| {
        let most = CONF_MAX as u64 + 1;
        let read = io::stdin().lock().take(most).read_to_end(&mut input);
        read.map_err(|error| Error::io("standard input", &error))?;
        run(&Machine::default(), &variables, &input)
    });
    let (answer, exit) = match answer {
        Ok(answer) => (answer, ExitCode::SUCCESS),
        Err(error) => {
            let conf: Value = serde_json::from_slice(&input).unwrap_or_default();
            (Some(error.answer(conf["cniVersion"].as_str())), ExitCode::FAILURE)
        }
    };
    let Some(answer) = answer else { return exit };
    match writeln!(io::stdout(), "{answer:#}") {
        Ok(()) => exit,
        // Whoever does not hear that a container was added has to delete it.
        Err(_) => ExitCode::FAILURE,
    }
}

/// The variables of the environment that are for a plugin.
fn variables() -> Result<BTreeMap<String, String>, Error> {
    let all = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| name.starts_with("CNI_"))?;
        let value = value.into_string();
        Some(match value {
            Ok(value) => Ok((name, value)),
            Err(_) => Err(Error::new(Code::Environment, format!("{name}: no text of UTF-8"))),
        })
    });
    all.collect()
}
