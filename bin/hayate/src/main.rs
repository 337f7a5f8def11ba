//! hayate: the I/O daemon for virtual machines, and its command, in one program.
//!
//! `hayate daemon` runs the daemon ([`daemon`]); every other subcommand is a client of its REST
//! interface ([`cli`]), but for `hayate store serve` ([`serve`]) and `hayate image mount` ([`mount`]),
//! which need no daemon. All share configuration, paths and the types of the interface.

mod cli;
mod config;
mod daemon;
mod mount;
mod paths;
mod plane;
mod render;
mod serve;
mod state;
mod tls;

fn main() -> std::process::ExitCode {
    cli::main()
}
