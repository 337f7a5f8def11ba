//! Commands that need no daemon.

use super::args::{ConfigCommand, StoreCert};
use super::fail::Failure;
use super::{definitions, out};
use crate::{config, daemon, tls};
use std::fs;
use std::path::Path;

pub(super) fn config(command: &ConfigCommand) -> Result<(), Failure> {
    match command {
        ConfigCommand::Example => out::text(config::EXAMPLE),
        ConfigCommand::Doc => out::text(&config::reference()),
        ConfigCommand::Check { file } => {
            let config = config::load(file).map_err(|error| Failure::usage(error.to_string()))?;
            let (networks, vms, ports) =
                (config.networks.len(), config.vms.len(), config.ports.len());
            let shown = file.display();
            out::text(&format!("{shown}: good ({networks} networks, {vms} VMs, {ports} ports)"))
        }
    }
}

pub(super) fn openapi() -> Result<(), Failure> {
    out::json(&daemon::openapi())
}

pub(super) fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut definitions(), "hayate", &mut script);
    out::text(&String::from_utf8_lossy(&script))
}

pub(super) fn cert(args: &StoreCert) -> Result<(), Failure> {
    let made = tls::make(&args.dir, args.name.as_str(), &args.address, args.days);
    let made = made.map_err(|error| Failure::host(error.to_string()))?;
    out::text(&made.display().to_string())
}

pub(super) fn man(directory: &Path) -> Result<(), Failure> {
    let made = fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(definitions(), directory));
    made.map_err(|error| Failure::host(format!("{}: {error}", directory.display())))
}

pub(super) fn bench(options: &bench::Options) -> Result<(), Failure> {
    let command: Vec<String> = std::env::args().skip(1).collect();
    let files = bench::run(options, &format!("hayate {}", command.join(" ")))
        .map_err(|error| Failure::host(error.to_string()))?;
    for file in files {
        out::text(&file.display().to_string())?;
    }
    Ok(())
}
