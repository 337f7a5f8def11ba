//! A Linux bridge between TAP interfaces, in a network namespace of its own.

use std::path::Path;

use sys::tap::{Tap, TapConfig, TapQueue};

use super::SutError;
use super::process::run;

/// Of each interface, and so of the bridge: room for the largest frames it is measured with.
const MTU: &str = "9216";

/// A bridge and its interfaces; all of it goes with the namespace when dropped.
pub struct Bridge {
    namespace: String,
    /// One for each port.
    pub taps: Vec<TapQueue>,
}

impl Bridge {
    /// Makes one with so many ports.
    ///
    /// # Errors
    /// No rights, or no such things in this kernel.
    pub fn new(ports: u16) -> Result<Bridge, SutError> {
        let namespace = format!("hayate-bench-{}", std::process::id());
        let ip = |words: &[&str]| run(&[["ip"].as_slice(), words].concat(), &[]);
        let inside = |words: &[&str]| ip(&[["-n", &namespace].as_slice(), words].concat());
        if Path::new("/run/netns").join(&namespace).exists() {
            ip(&["netns", "del", &namespace])?;
        }
        ip(&["netns", "add", &namespace])?;
        let mut bridge = Bridge { namespace: namespace.clone(), taps: Vec::new() };
        // Nothing but the frames of the guests.
        let off = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6";
        ip(&["netns", "exec", &namespace, "sh", "-c", off])?;
        let kind = ["type", "bridge", "forward_delay", "0", "mcast_snooping", "0"];
        inside(&[["link", "add", "br0"].as_slice(), &kind].concat())?;
        inside(&["link", "set", "br0", "up"])?;
        for port in 0..ports {
            let ifname = format!("tap{port}");
            let config = TapConfig { ifname: &ifname, netns: Some(&namespace), queues: 1 };
            let made = Tap::create(&config).map_err(SutError::io("a TAP interface cannot be made"));
            bridge.taps.extend(made?);
            // 1518 bytes without FCS are more than an interface takes by itself.
            inside(&["link", "set", &ifname, "mtu", MTU, "master", "br0"])?;
        }
        Ok(bridge)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.taps.clear();
        // One that cannot be removed is replaced by the next.
        let _ = run(&["ip", "netns", "del", &self.namespace], &[]);
    }
}
