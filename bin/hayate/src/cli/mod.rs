//! The command: what was typed becomes requests to the daemon, answers become text.

mod args;
mod client;
mod disk;
mod fabric;
mod fail;
mod flow;
mod image;
mod local;
mod network;
mod out;
mod port;
mod router;
mod show;
mod stats;
mod vf;
mod vm;
mod worker;

use crate::daemon;
use crate::paths::Paths;
use crate::serve;
use args::{
    Cli, Command, DaemonArgs, FlowCommand, NetworkCommand, PortCommand, RouterCommand,
    StoreCommand, StoreServe, VmCommand, WorkerCommand,
};
use clap::{CommandFactory, Parser};
use client::Client;
use fail::Failure;
use std::path::Path;
use std::process::ExitCode;

/// Parses the command line and does what it says.
pub(crate) fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let run_dir = cli.run_dir.as_deref();
    match cli.command {
        Command::Daemon(args) => run_daemon(run_dir, args),
        Command::Store(StoreCommand::Serve(args)) => run_store(run_dir, args),
        Command::Store(StoreCommand::Cert(args)) => local::cert(&args),
        Command::Fabric(command) => fabric::command(&command),
        Command::Config(command) => local::config(&command),
        Command::Openapi => local::openapi(),
        Command::Completions { shell } => local::completions(shell),
        Command::Bench(options) => local::bench(&options),
        Command::Man { directory } => local::man(&directory),
        Command::Network(command) => network_command(&client(run_dir)?, command),
        Command::Port(command) => port_command(&client(run_dir)?, command),
        Command::Vm(command) => vm_command(&client(run_dir)?, command),
        Command::Vf(command) => vf::command(&client(run_dir)?, command),
        Command::Image(command) => image::command(&client(run_dir)?, *command),
        Command::Disk(command) => disk::command(&client(run_dir)?, command),
        Command::Flow(FlowCommand::Why(args)) => flow::why(&client(run_dir)?, &args),
        Command::Router(command) => router_command(&client(run_dir)?, command),
        Command::Show(output) => show::overview(&client(run_dir)?, output),
        Command::Stats(args) => stats::stats(&client(run_dir)?, &args),
        Command::Worker(command) => worker_command(&client(run_dir)?, command),
        Command::Fdb { network, output } => network::fdb(&client(run_dir)?, &network, output),
    }
}

fn network_command(client: &Client, command: NetworkCommand) -> Result<(), Failure> {
    match command {
        NetworkCommand::Add(args) => network::add(client, &args),
        NetworkCommand::Del { name } => client.delete(&format!("/v1/networks/{name}")),
        NetworkCommand::List(output) => network::list(client, output),
        NetworkCommand::Show { name, output } => network::show(client, &name, output),
    }
}

fn port_command(client: &Client, command: PortCommand) -> Result<(), Failure> {
    match command {
        PortCommand::Add(args) => port::add(client, *args),
        PortCommand::Del { name } => client.delete(&format!("/v1/ports/{name}")),
        PortCommand::Set(args) => port::set(client, *args),
        PortCommand::List(output) => port::list(client, output),
        PortCommand::Show { name, output } => port::show(client, &name, output),
    }
}

fn vm_command(client: &Client, command: VmCommand) -> Result<(), Failure> {
    match command {
        VmCommand::Add(args) => vm::add(client, &args),
        VmCommand::Del { name } => client.delete(&format!("/v1/vms/{name}")),
        VmCommand::List(output) => vm::list(client, output),
        VmCommand::Show { name, output } => vm::show(client, &name, output),
        VmCommand::Qemu(args) => vm::qemu(client, &args),
        VmCommand::Libvirt(args) => vm::libvirt(client, &args),
    }
}

fn router_command(client: &Client, command: RouterCommand) -> Result<(), Failure> {
    match command {
        RouterCommand::List(output) => router::list(client, output),
        RouterCommand::Show { name, routes: true, output, .. } => {
            router::routes(client, &name, output)
        }
        RouterCommand::Show { name, connections: true, output, .. } => {
            router::connections(client, &name, output)
        }
        RouterCommand::Show { name, output, .. } => router::show(client, &name, output),
        RouterCommand::Bypass { name, to, output } => router::bypass(client, &name, to, output),
    }
}

fn worker_command(client: &Client, command: WorkerCommand) -> Result<(), Failure> {
    match command {
        WorkerCommand::List(output) => worker::list(client, output),
        WorkerCommand::Show { id, output } => worker::show(client, id, output),
        WorkerCommand::Move { queue, to, output } => worker::place(client, &queue, to, output),
    }
}

fn client(run_dir: Option<&Path>) -> Result<Client, Failure> {
    Client::new(&paths(run_dir, None)?)
}

fn run_daemon(run_dir: Option<&Path>, args: DaemonArgs) -> Result<(), Failure> {
    let options = daemon::Options {
        paths: paths(run_dir, args.state_dir.as_deref())?,
        config: args.config,
        cpus: args.cpus,
        tls_dir: args.tls_dir,
        log: args.log,
    };
    daemon::run(&options).map_err(|error| Failure::daemon(&error))
}

fn run_store(run_dir: Option<&Path>, args: StoreServe) -> Result<(), Failure> {
    let StoreServe {
        dir,
        rbd,
        ceph_conf,
        ceph_user,
        gfarm,
        gfarm_conf,
        listen,
        cpus,
        cache,
        tls_dir,
        log,
    } = args;
    let place = match (dir, rbd, gfarm) {
        // Remote guests have caches of their own; what many read is best kept here.
        (Some(dir), ..) => {
            serve::Place::Directory { dir, cache: cache.unwrap_or(api::DiskCache::Host) }
        }
        (None, Some(pool), _) => serve::Place::Ceph {
            options: engines::ceph::Options {
                pool,
                conf: ceph_conf,
                user: ceph_user.unwrap_or_else(|| "admin".to_owned()),
                cache: cache == Some(api::DiskCache::Host),
            },
            run: paths(run_dir, None)?.run,
        },
        // One of the three was said.
        (None, None, dir) => serve::Place::Gfarm {
            options: engines::gfarm::Options { dir: dir.unwrap_or_default(), conf: gfarm_conf },
            run: paths(run_dir, None)?.run,
        },
    };
    let options = serve::Options { place, listen, cpus, tls_dir, log };
    serve::run(&options).map_err(|error| Failure::store(&error))
}

fn paths(run_dir: Option<&Path>, state_dir: Option<&Path>) -> Result<Paths, Failure> {
    Paths::new(run_dir, state_dir)
        .map_err(|error| Failure::usage(format!("the run directory cannot be used: {error}")))
}

/// The definitions of all commands, for help, man pages and completions.
fn definitions() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    #[test]
    fn definitions_are_consistent() {
        super::definitions().debug_assert();
    }
}
