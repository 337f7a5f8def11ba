//! `hayate store`.

use super::words;
use api::{CpuList, DiskCache, Name};
use clap::{ArgGroup, Args, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Serve images to disks on other hosts, in the foreground until SIGTERM
    Serve(StoreServe),
    /// Make certificates for a store or a host that uses it, and an authority that signs them
    #[command(after_long_help = "\
Examples:
  hayate store cert --dir pki big1 --address 10.0.0.5        (the store)
  hayate store cert --dir pki vm1                            (a host with VMs)
  hayate store serve --dir /srv/images --listen 10.0.0.5:4420 --tls-dir pki/big1
  hayate daemon --tls-dir pki/vm1                            (there, with pki/vm1 copied to it)

The authority is in DIR: keep DIR/ca.key.pem where nobody else is. Certificates by another authority do as
well: --tls-dir wants ca.pem, cert.pem and key.pem.")]
    Cert(StoreCert),
}

#[derive(Debug, Args)]
pub(crate) struct StoreCert {
    /// Name of the host, by which rules know it
    pub(crate) name: Name,
    /// Directory of the authority, and of what is made: DIR/NAME
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Address or DNS name by which a store is reached; may be said more than once
    #[arg(long, value_name = "ADDR")]
    pub(crate) address: Vec<String>,
    /// Days until it is no longer valid
    #[arg(long, value_name = "N", default_value_t = 365)]
    pub(crate) days: u16,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("place").required(true).args(["dir", "rbd", "gfarm"]))]
#[command(after_long_help = "\
Examples:
  hayate store serve --dir /srv/images --listen 10.0.0.5:4420
  hayate store serve --rbd vms --listen 10.0.0.5:4420         (a pool of a Ceph cluster)
  hayate store serve --gfarm /vm --listen 10.0.0.5:4420        (a directory in Gfarm)
  hayate disk add web --image store://10.0.0.5:4420/web       (on another host)

The directory may be that of a daemon of this host, by whose command images are made (`hayate image`). Images of a
Ceph cluster are made by `rbd create`, files in Gfarm by its tools. One disk writes an image at a time, here or elsewhere.

With --tls-dir both sides have to be known by certificates, and everything is encrypted; DIR/clients.toml
says who may have what. Without, listen on a network that only your hosts are on.")]
pub(crate) struct StoreServe {
    /// Directory of the images; it is made if need be
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Pool of a Ceph cluster: its RBD images
    #[arg(long, value_name = "POOL")]
    pub(crate) rbd: Option<String>,
    /// rbd: the cluster's configuration [default: where Ceph looks, /etc/ceph/ceph.conf first]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dir", "gfarm"])]
    pub(crate) ceph_conf: Option<PathBuf>,
    /// rbd: who the store is for the cluster, without `client.` [default: admin]
    #[arg(long, value_name = "ID", conflicts_with_all = ["dir", "gfarm"])]
    pub(crate) ceph_user: Option<String>,
    /// Directory of a Gfarm file system: its files
    #[arg(long, value_name = "PATH", conflicts_with = "cache")]
    pub(crate) gfarm: Option<String>,
    /// gfarm: the configuration [default: where Gfarm looks, ~/.gfarm2rc and /etc/gfarm2.conf]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dir", "rbd"])]
    pub(crate) gfarm_conf: Option<PathBuf>,
    /// Where to listen, like 10.0.0.5:4420 or [::]:4420
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: SocketAddr,
    /// CPUs of the workers, one pinned worker for each, like 2-3 or 0,4
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<CpuList>,
    /// Whether what was read is kept in this host's memory (host) or not (direct) [default: dir: host; rbd: direct]
    #[arg(long, value_parser = words([DiskCache::Direct, DiskCache::Host], DiskCache::as_str))]
    pub(crate) cache: Option<DiskCache>,
    /// Directory of ca.pem, cert.pem and key.pem: clients have to be known [default: they need not]
    #[arg(long, value_name = "DIR")]
    pub(crate) tls_dir: Option<PathBuf>,
    /// What is logged to standard error: error, warn, info, debug, trace, off, or PART=LEVEL
    /// [default: info]
    #[arg(long, value_name = "LEVEL", env = "HAYATE_LOG", hide_env_values = true)]
    pub(crate) log: Option<String>,
}
