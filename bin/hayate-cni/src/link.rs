//! What the kernel is asked to do with interfaces, by rtnetlink.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use ipnet::IpNet;
use netlink::{Message, Socket, attribute, attributes, malformed, number, text};
use packet::Mac;
use rustix::io::Errno;

use crate::netns::Netns;
use crate::result::Route;

// Numbers of Linux's headers (`include/uapi/linux`), under their names there.
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_PARENT_DEV_NAME: u16 = 56;
const RTEXT_FILTER_SKIP_STATS: u32 = 8;
const IFF_UP: u32 = 1;
const IFF_PROMISC: u32 = 0x100;
const IFF_ALLMULTI: u32 = 0x200;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_F_DADFAILED: u8 = 8;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_METRICS: u16 = 8;
const RTA_TABLE: u16 = 15;
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;
const RTNH_F_ONLINK: u32 = 4;
const RTN_UNICAST: u8 = 1;
const RTPROT_BOOT: u8 = 3;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RT_TABLE_MAIN: u32 = 254;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its address, if it is of Ethernet.
    pub mac: Option<Mac>,
    /// Its MTU.
    pub mtu: u32,
    /// Is it up?
    pub up: bool,
    /// Is it part of a bridge, a bond, or the like?
    pub enslaved: bool,
    /// What the kernel calls its device.
    pub parent: Option<String>,
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// With its prefix.
    pub net: IpNet,
    /// Somebody else has it too (IPv6).
    pub duplicate: bool,
}

/// Asks about interfaces of one network namespace.
#[derive(Debug)]
pub struct Links {
    socket: Socket,
}

impl Links {
    /// Those of the namespace this thread is in.
    ///
    /// # Errors
    /// When there can be no socket.
    pub fn here() -> io::Result<Self> {
        Socket::requests(None).map(|socket| Self { socket })
    }

    /// Those of this namespace.
    ///
    /// # Errors
    /// When it cannot be entered.
    pub fn of(netns: &Netns) -> io::Result<Self> {
        netns.enter(Self::here)
    }

    /// All of them.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn all(&mut self) -> io::Result<Vec<Link>> {
        let mut body = header(0, 0, 0);
        attribute(&mut body, IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        self.socket.dump_into(RTM_GETLINK, &body, |all: &mut Vec<Link>, message| {
            all.extend(link(message)?);
            Ok(())
        })
    }

    /// The one of this name.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn named(&mut self, name: &str) -> io::Result<Option<Link>> {
        let mut body = header(0, 0, 0);
        attribute(&mut body, IFLA_IFNAME, &zero_terminated(name));
        attribute(&mut body, IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        let mut found = None;
        let asked = self.socket.request(RTM_GETLINK, 0, &body, |message| {
            found = link(message)?;
            Ok(())
        });
        match asked {
            Ok(()) => Ok(found),
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Moves it into a namespace, where it has this name from the beginning.
    ///
    /// # Errors
    /// `EEXIST` when the name is taken there.
    pub fn send(&mut self, index: u32, to: &Netns, name: &str) -> io::Result<()> {
        let mut body = header(index, 0, 0);
        attribute(&mut body, IFLA_NET_NS_FD, &to.fd().as_raw_fd().to_ne_bytes());
        attribute(&mut body, IFLA_IFNAME, &zero_terminated(name));
        self.socket.request(RTM_NEWLINK, 0, &body, nothing)
    }

    /// Names it.
    ///
    /// # Errors
    /// `EEXIST` when the name is taken, `EBUSY` on old kernels when it is up.
    pub fn rename(&mut self, index: u32, name: &str) -> io::Result<()> {
        let mut body = header(index, 0, 0);
        attribute(&mut body, IFLA_IFNAME, &zero_terminated(name));
        self.socket.request(RTM_NEWLINK, 0, &body, nothing)
    }

    /// Gives it an address.
    ///
    /// # Errors
    /// When the driver refuses it.
    pub fn set_mac(&mut self, index: u32, mac: Mac) -> io::Result<()> {
        let mut body = header(index, 0, 0);
        attribute(&mut body, IFLA_ADDRESS, &mac.0);
        self.socket.request(RTM_NEWLINK, 0, &body, nothing)
    }

    /// Sets its MTU.
    ///
    /// # Errors
    /// When the driver refuses it.
    pub fn set_mtu(&mut self, index: u32, mtu: u32) -> io::Result<()> {
        let mut body = header(index, 0, 0);
        attribute(&mut body, IFLA_MTU, &mtu.to_ne_bytes());
        self.socket.request(RTM_NEWLINK, 0, &body, nothing)
    }

    /// Brings it up.
    ///
    /// # Errors
    /// When the driver refuses it.
    pub fn set_up(&mut self, index: u32) -> io::Result<()> {
        let body = header(index, IFF_UP, IFF_UP);
        self.socket.request(RTM_NEWLINK, 0, &body, nothing)
    }

    /// Takes it down, and takes back that it listens to what is for others.
    ///
    /// # Errors
    /// When the driver refuses it.
    pub fn calm(&mut self, index: u32) -> io::Result<()> {
        let body = header(index, 0, IFF_UP | IFF_PROMISC | IFF_ALLMULTI);
        self.socket.request(RTM_NEWLINK, 0, &body, nothing)
    }

    /// Gives it an IP address. One that it has is no error.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn add_address(&mut self, index: u32, net: IpNet) -> io::Result<()> {
        let mut body = vec![family(net.addr()), net.prefix_len(), 0, 0];
        body.extend(index.to_ne_bytes());
        let address = bytes(net.addr());
        attribute(&mut body, IFA_LOCAL, &address);
        attribute(&mut body, IFA_ADDRESS, &address);
        if let IpNet::V4(net) = net
            && net.prefix_len() < 31
        {
            attribute(&mut body, IFA_BROADCAST, &net.broadcast().octets());
        }
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        present_is_fine(self.socket.request(RTM_NEWADDR, flags, &body, nothing))
    }

    /// IP addresses it has.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn addresses(&mut self, index: u32) -> io::Result<Vec<Held>> {
        let body = [0; 8];
        self.socket.dump_into(RTM_GETADDR, &body, |all: &mut Vec<Held>, message| {
            if message.kind != RTM_NEWADDR || number(message.body, 4) != Some(index) {
                return Ok(());
            }
            let &[_, prefix, flags, ..] = message.body else { return Err(malformed()) };
            let (mut local, mut address) = (None, None);
            for one in attributes(message.body, 8) {
                match one? {
                    (IFA_LOCAL, value) => local = ip(value),
                    (IFA_ADDRESS, value) => address = ip(value),
                    _ => {}
                }
            }
            // `address` is the other end's where there is one.
            if let Some(address) = local.or(address) {
                let net = IpNet::new(address, prefix).map_err(|_| malformed())?;
                all.push(Held { net, duplicate: flags & IFA_F_DADFAILED != 0 });
            }
            Ok(())
        })
    }

    /// Adds a route by this interface. One that is there is no error. `onlink`: the router answers there though
    /// no address says so.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn add_route(&mut self, index: u32, route: &Route, onlink: bool) -> io::Result<()> {
        let table = route.table.unwrap_or(RT_TABLE_MAIN);
        let direct = route.gw.is_none() && matches!(route.dst, IpNet::V4(_));
        let scope = route.scope.unwrap_or(if direct { RT_SCOPE_LINK } else { RT_SCOPE_UNIVERSE });
        let mut body = vec![family(route.dst.addr()), route.dst.prefix_len(), 0, 0];
        body.extend([u8::try_from(table).unwrap_or(0), RTPROT_BOOT, scope, RTN_UNICAST]);
        body.extend(if onlink { RTNH_F_ONLINK } else { 0 }.to_ne_bytes());
        if route.dst.prefix_len() > 0 {
            attribute(&mut body, RTA_DST, &bytes(route.dst.trunc().addr()));
        }
        attribute(&mut body, RTA_OIF, &index.to_ne_bytes());
        if let Some(gateway) = route.gw {
            attribute(&mut body, RTA_GATEWAY, &bytes(gateway));
        }
        if let Some(priority) = route.priority {
            attribute(&mut body, RTA_PRIORITY, &priority.to_ne_bytes());
        }
        attribute(&mut body, RTA_TABLE, &table.to_ne_bytes());
        let mut metrics = Vec::new();
        for (kind, value) in [(RTAX_MTU, route.mtu), (RTAX_ADVMSS, route.advmss)] {
            if let Some(value) = value {
                attribute(&mut metrics, kind, &value.to_ne_bytes());
            }
        }
        if !metrics.is_empty() {
            attribute(&mut body, RTA_METRICS, &metrics);
        }
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        present_is_fine(self.socket.request(RTM_NEWROUTE, flags, &body, nothing))
    }

    /// Routes by this interface: where to and by whom.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn routes(&mut self, index: u32) -> io::Result<Vec<(IpNet, Option<IpAddr>)>> {
        let mut all = Vec::new();
        for (family, none) in [(AF_INET, "0.0.0.0"), (AF_INET6, "::")] {
            let mut body = [0; 12];
            body[0] = family;
            let none: IpAddr = none.parse().map_err(|_| malformed())?;
            all.extend(self.socket.dump_into(
                RTM_GETROUTE,
                &body,
                |some: &mut Vec<_>, message| {
                    let (mut to, mut by, mut out) = (none, None, None);
                    let prefix = *message.body.get(1).ok_or_else(malformed)?;
                    for one in attributes(message.body, 12) {
                        match one? {
                            (RTA_DST, value) => to = ip(value).ok_or_else(malformed)?,
                            (RTA_GATEWAY, value) => by = ip(value),
                            (RTA_OIF, value) => out = number(value, 0),
                            _ => {}
                        }
                    }
                    if out == Some(index) {
                        some.push((IpNet::new(to, prefix).map_err(|_| malformed())?, by));
                    }
                    Ok(())
                },
            )?);
        }
        Ok(all)
    }
}

fn nothing(_: &Message<'_>) -> io::Result<()> {
    Ok(())
}

/// `struct ifinfomsg`.
fn header(index: u32, flags: u32, change: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    for number in [index, flags, change] {
        body.extend(number.to_ne_bytes());
    }
    body
}

fn link(message: &Message<'_>) -> io::Result<Option<Link>> {
    if message.kind != RTM_NEWLINK {
        return Ok(None);
    }
    let index = number(message.body, 4).ok_or_else(malformed)?;
    let up = number(message.body, 8).ok_or_else(malformed)? & IFF_UP != 0;
    let mut link = Link { index, up, ..Link::default() };
    for one in attributes(message.body, 16) {
        match one? {
            (IFLA_IFNAME, value) => link.name = text(value),
            (IFLA_ADDRESS, value) => link.mac = value.try_into().ok().map(Mac),
            (IFLA_MTU, value) => link.mtu = number(value, 0).ok_or_else(malformed)?,
            (IFLA_MASTER, _) => link.enslaved = true,
            (IFLA_PARENT_DEV_NAME, value) => link.parent = Some(text(value)),
            _ => {}
        }
    }
    Ok(Some(link))
}

fn present_is_fine(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    four.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

fn zero_terminated(text: &str) -> Vec<u8> {
    text.bytes().chain([0]).collect()
}
