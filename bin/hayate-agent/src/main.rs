//! hayate-agent: runs inside a router and tells the daemon of the hypervisor what it routes.
//!
//! What the kernel routes ([`kernel`]) becomes plain data ([`state`]), from which follows what is
//! delegated ([`plan`]); that goes over the guest channel ([`channel`]) to the switch, which from
//! then on forwards packets as the kernel would have, past the router. [`agent`] runs it all in one
//! thread.

mod agent;
mod channel;
mod cli;
mod desk;
mod flow;
mod kernel;
mod plan;
mod state;
mod status;
mod vf;

fn main() -> std::process::ExitCode {
    cli::main()
}
