//! `hayate image`.

use std::path::PathBuf;

use api::{ImageFormat, ImageName, MemorySize, Name, StoreAddress, Transport};
use clap::{Args, Subcommand};

use super::{Output, words};

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

/// How a store's bytes may come.
pub(super) const TRANSPORTS: [Transport; 4] =
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
