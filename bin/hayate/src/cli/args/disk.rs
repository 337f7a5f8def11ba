//! `hayate disk`.

use std::path::PathBuf;

use api::{DiskCache, ImageSource, MemorySize, Name, SocketMode, Transport};
use clap::{Args, Subcommand};

use super::image::TRANSPORTS;
use super::vm::QemuForm;
use super::{Output, words};

#[derive(Debug, Subcommand)]
pub(crate) enum DiskCommand {
    /// Make a disk from an image and serve it
    Add(Box<DiskAdd>),
    /// No longer serve a disk; its image stays
    Del {
        /// Its name
        name: Name,
    },
    /// List all disks with their state and counters
    List(Output),
    /// Show all of one disk: state, operations and how long they took, what was refused
    Show {
        /// Its name
        name: Name,
        #[command(flatten)]
        output: Output,
    },
    /// Set how much a disk may do, from now on; what is not said is not limited
    #[command(after_long_help = "\
Examples:
  hayate disk limit web --iops 1000 --bandwidth 100M
  hayate disk limit web --iops 500 --iops-burst 5000
  hayate disk limit web               (no limits)")]
    Limit {
        /// Its name
        name: Name,
        #[command(flatten)]
        limits: DiskLimit,
        #[command(flatten)]
        output: Output,
    },
    /// Print the arguments QEMU needs for a disk
    Qemu(DiskQemu),
    /// Print the XML libvirt needs for a disk
    #[command(after_long_help = "\
`virsh edit NAME` and put it into <devices>. The VM's memory must be shared; `hayate vm libvirt` prints
that too, with all disks that belong to a VM.")]
    Libvirt {
        /// Its name
        name: Name,
        /// Use packed rings instead of split ones
        #[arg(long)]
        packed: bool,
    },
}

#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  hayate disk add web --image web --vm web
  hayate disk add web --image web --socket /run/web-disk.sock
  hayate disk add tools --image tools --readonly
  hayate disk add db --image db --iops 5000 --bandwidth 200M
  hayate disk add far --image store://10.0.0.5:4420/far
  hayate disk add far --image store://10.0.0.5:4420,10.0.0.6:4420/far   (two stores, one backend)

One writer: an image that a disk writes is refused to every other one, and to QEMU.")]
pub(crate) struct DiskAdd {
    /// Its name: 1 to 63 letters, digits, '.', '_', '-'
    pub(crate) name: Name,
    /// The image its bytes are in; `hayate image list` shows them. Or store://HOST:PORT/IMAGE, one in a
    /// store on another host
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: ImageSource,
    /// The VM it belongs to
    #[arg(long, value_name = "VM")]
    pub(crate) vm: Option<Name>,
    /// Path of the vhost-user socket [default: RUN_DIR/disks/NAME.sock]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Who listens on the socket, the daemon (server) or QEMU (client) [default: server]
    #[arg(long, value_parser = words([SocketMode::Server, SocketMode::Client], SocketMode::as_str))]
    pub(crate) mode: Option<SocketMode>,
    /// Most queues the guest may use, 1 to 64 [default: 8]
    #[arg(long, value_name = "N")]
    pub(crate) queues: Option<u16>,
    /// The guest can read only; any number of such disks may have one image
    #[arg(long)]
    pub(crate) readonly: bool,
    /// Past the host's page cache (direct), or through it (host) [default: direct]
    #[arg(long, value_parser = words([DiskCache::Direct, DiskCache::Host], DiskCache::as_str))]
    pub(crate) cache: Option<DiskCache>,
    /// Worker that serves it, by number [default: the one with the most room]
    #[arg(long, value_name = "N")]
    pub(crate) worker: Option<u16>,
    /// How bytes come from a store and go there: shm (it is on this host, and has the guest's memory itself),
    /// libfabric (it reaches that memory over a fabric), tcp, or auto, the best there is [default: auto]
    #[arg(long, value_parser = words(TRANSPORTS, Transport::as_str))]
    pub(crate) transport: Option<Transport>,
    /// How long the guest waits for a store that is away before its requests fail, in seconds
    /// [default: until it is back]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) store_timeout: Option<u64>,
    #[command(flatten)]
    pub(crate) limits: DiskLimit,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct DiskLimit {
    /// Operations a second [default: any number]
    #[arg(long, value_name = "N")]
    pub(crate) iops: Option<u64>,
    /// Operations at once after a pause [default: those of a second]
    #[arg(long, value_name = "N", requires = "iops")]
    pub(crate) iops_burst: Option<u64>,
    /// Bytes read and written a second, like 100M [default: any number]
    #[arg(long, value_name = "SIZE")]
    pub(crate) bandwidth: Option<MemorySize>,
    /// Bytes at once after a pause [default: those of a second]
    #[arg(long, value_name = "SIZE", requires = "bandwidth")]
    pub(crate) bandwidth_burst: Option<MemorySize>,
}

#[derive(Debug, Args)]
#[command(after_long_help = "\
Example:
  qemu-system-x86_64 -object memory-backend-memfd,id=m,size=1G,share=on -m 1G \\
    -machine memory-backend=m $(hayate disk qemu web)

The VM's memory must be shared, as above. `hayate vm qemu` prints that too, with all cards and disks that
belong to a VM.")]
pub(crate) struct DiskQemu {
    /// Its name
    pub(crate) name: Name,
    #[command(flatten)]
    pub(crate) form: QemuForm,
}
