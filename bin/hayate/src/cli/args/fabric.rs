//! `hayate fabric`.

use clap::Subcommand;

use super::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum FabricCommand {
    /// List providers and where they can be used, or why they cannot
    #[command(after_long_help = "\
Two providers of libfabric are used:
  tcp    over TCP, on every interface
  verbs  InfiniBand, RoCE and iWARP: the network card moves the bytes. It needs a device
         (/sys/class/infiniband), the kernel module rdma_ucm, and an IP address on the device's interface

DOMAIN is the interface or device, ADDRESS the local address to use it by. No daemon is needed.

The first line says which libfabric is loaded: one in ../lib/hayate, seen from this program, goes before the
system's, and what LD_LIBRARY_PATH names before both.

A program that was built without libfabric says so. To have it: apt-get install libfabric-dev pkg-config,
and build again.")]
    List(Output),
}
