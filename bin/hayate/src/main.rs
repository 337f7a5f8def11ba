//! hayate: the I/O daemon for virtual machines, and its command, in one program.
//!
//! `hayate daemon` runs the daemon ([`daemon`]); every other subcommand is a client of its REST
//! interface ([`cli`]). Both share configuration, paths and the types of the interface.

mod cli;
mod config;
mod daemon;
mod paths;
mod plane;
mod render;
mod state;

fn main() -> std::process::ExitCode {
    cli::main()
}
