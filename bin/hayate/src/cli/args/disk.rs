//! What can be typed about images and disks.

use super::{Output, words};
use api::{
    DiskCache, ImageFormat, ImageName, ImageSource, MemorySize, Name, SocketMode, StoreAddress,
    Transport,
};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Make an empty image
    Create {
        /// Its name: 1 to 63 letters, digits, '.', '_', '-'
        name: ImageName,
        /// Size of the disk, like 512M or 20G
        #[arg(long, value_name = "SIZE")]
        size: MemorySize,
        /// raw or qcow2; either takes space only for what is written [default: raw]
        #[arg(long, value_parser = words(FORMATS, ImageFormat::as_str))]
        format: Option<ImageFormat>,
        #[command(flatten)]
        output: Output,
    },
    /// Make an image from a file
    Import(ImageImport),
    /// Make a file from an image or a snapshot
    #[command(after_long_help = "\
Examples:
  hayate image export web web.raw
  hayate image export web@before-upgrade old.qcow2 --format qcow2

The file stands for itself, whatever the image stands on. Zeroes take no space in it.")]
    Export {
        /// The image, or NAME@SNAPSHOT
        name: ImageName,
        /// The file to be made
        file: PathBuf,
        /// raw or qcow2 [default: raw]
        #[arg(long, value_parser = words(FORMATS, ImageFormat::as_str))]
        format: Option<ImageFormat>,
        /// Replace a file that is there
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Make a thin clone: it takes only the space of what is written to it
    #[command(after_long_help = "\
Examples:
  hayate image clone debian web1
  hayate image clone web1@before-upgrade web2

While an image has clones it can neither be written nor removed.")]
    Clone {
        /// The image or snapshot to begin with
        base: ImageName,
        /// Name of the clone
        name: ImageName,
        #[command(flatten)]
        output: Output,
    },
    /// Keep what an image is now, as NAME@SNAPSHOT
    #[command(after_long_help = "\
Examples:
  hayate image snapshot web before-upgrade     (makes web@before-upgrade)
  hayate image clone web@before-upgrade web2   (goes on from there)

A disk may use the image: its guest waits for a moment, and what it has not flushed is in the
snapshot as after a power cut. A raw image is a qcow2 one afterwards, which stands on its snapshot.")]
    Snapshot {
        /// The image
        name: ImageName,
        /// Name of the snapshot
        snapshot: Name,
        #[command(flatten)]
        output: Output,
    },
    /// Give an image another size; the guest of a disk that uses it is told
    Resize {
        /// The image
        name: ImageName,
        /// The size, like 40G
        #[arg(value_name = "SIZE")]
        size: MemorySize,
        /// It may be smaller than now: what is behind the new end is lost
        #[arg(long)]
        shrink: bool,
        #[command(flatten)]
        output: Output,
    },
    /// List all images and snapshots
    List(Output),
    /// Show all of one image: what it stands on, what needs it, who uses it
    Show {
        /// The image, or NAME@SNAPSHOT
        name: ImageName,
        #[command(flatten)]
        output: Output,
    },
    /// Remove an image that no disk uses and no other image stands on
    #[command(visible_alias = "delete")]
    Del {
        /// The image, or NAME@SNAPSHOT
        name: ImageName,
    },
    /// Show the images of a store as files in a directory, in the foreground until SIGTERM
    Mount(ImageMount),
    /// Look whether an image is whole; no disk may write it meanwhile
    Check {
        /// The image, or NAME@SNAPSHOT
        name: ImageName,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  hayate image mount store://10.0.0.5:4420/ /mnt/images
  cp /mnt/images/web web.raw                              (a copy of an image)
  dd if=web.raw of=/mnt/images/web bs=1M conv=notrunc     (and back)
  hayate image mount store://10.0.0.5:4420/ /mnt/images --readonly --cache
  hayate image mount store://10.0.0.5:4420/ /mnt/images --tls-dir pki/vm1
  hayate image mount store://127.0.0.1:4420/ /mnt/images --transport shm

Each image is a file of its size. While a file is open, so is the image: as for disks, one writes it
or many read it, and everybody else is told that it is busy. Images are not made, removed or resized
here; one that is emptied, as `cp` does before it writes, reads as zeroes and keeps its size.

Whoever may be root mounts; others need fusermount3 (Debian: fuse3). `umount DIR` ends it as well. If
it was killed, `umount DIR` cleans up.")]
pub(crate) struct ImageMount {
    /// The store: store://ADDR:PORT/, or several addresses of it with commas between
    #[arg(value_name = "STORE")]
    pub(crate) store: StoreAddress,
    /// The directory to mount at
    pub(crate) dir: PathBuf,
    /// Nothing can be written: a snapshot never can
    #[arg(long)]
    pub(crate) readonly: bool,
    /// Let the kernel cache what is read while files are open; without it every read is one of the
    /// store, and files cannot be mapped into memory for writing
    #[arg(long)]
    pub(crate) cache: bool,
    /// How bytes come from the store and go there: shm (it is on this host, and moves them in memory that it
    /// shares with this program), libfabric (the same over a fabric), tcp, or auto, the best there is
    /// [default: auto]
    #[arg(long, value_parser = words(TRANSPORTS, Transport::as_str))]
    pub(crate) transport: Option<Transport>,
    /// Certificates for the store to know this host by, and to know the store by: ca.pem, cert.pem and
    /// key.pem, as `hayate store cert` makes them [default: neither is asked for, nothing is encrypted]
    #[arg(long, value_name = "DIR")]
    pub(crate) tls_dir: Option<PathBuf>,
    /// How long a program waits for a store that is away before it gets errors, in seconds
    /// [default: until it is back]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) store_timeout: Option<u64>,
    /// What is logged to standard error: error, warn, info, debug, trace, off, or PART=LEVEL
    /// [default: info]
    #[arg(long, value_name = "LEVEL", env = "HAYATE_LOG", hide_env_values = true)]
    pub(crate) log: Option<String>,
}

const TRANSPORTS: [Transport; 4] =
    [Transport::Auto, Transport::Shm, Transport::Libfabric, Transport::Tcp];
const FORMATS: [ImageFormat; 2] = [ImageFormat::Raw, ImageFormat::Qcow2];

#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  hayate image import debian.qcow2 debian --format qcow2
  hayate image import disk.img data --format raw --sha256 5d41...

The format is never guessed: a guest may write whatever it likes to the beginning of its disk. A
qcow2 file that stands on another file is refused: `qemu-img convert` makes one that does not.")]
pub(crate) struct ImageImport {
    /// The file
    pub(crate) file: PathBuf,
    /// Name of the image
    pub(crate) name: ImageName,
    /// Format of the file: raw or qcow2
    #[arg(long, value_parser = words(FORMATS, ImageFormat::as_str))]
    pub(crate) format: ImageFormat,
    /// Format of the image [default: that of the file]
    #[arg(long, value_name = "FORMAT", value_parser = words(FORMATS, ImageFormat::as_str))]
    pub(crate) to: Option<ImageFormat>,
    /// What the SHA-256 of the file has to be, in hexadecimal
    #[arg(long, value_name = "SUM")]
    pub(crate) sha256: Option<String>,
    /// Work out the SHA-256 of the file; `image show` shows it
    #[arg(long)]
    pub(crate) checksum: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

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
    /// Version of QEMU the arguments are for, like 9.2 [default: that of the installed one, else
    /// the newest known]
    #[arg(long, value_name = "VERSION")]
    pub(crate) qemu_version: Option<crate::render::qemu::Version>,
    /// Use packed rings instead of split ones
    #[arg(long)]
    pub(crate) packed: bool,
    /// Quote the arguments and end lines with backslashes, to paste into a shell
    #[arg(long, conflicts_with = "json")]
    pub(crate) shell: bool,
    /// Print a JSON array of arguments
    #[arg(long)]
    pub(crate) json: bool,
}
