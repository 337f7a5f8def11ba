//! Why a frame was not delivered. One name, one counter, everywhere.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $help:literal;)*) => {
        /// Why a frame was not delivered: by the switch, or by a port. The number is stable within
        /// one build only; the name is stable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum DropReason {
            $(#[doc = $help] $variant,)*
        }

        impl DropReason {
            /// Every reason, in the order of the numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Stable kebab-case name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// One sentence on what it means.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)* }
            }
        }
    };
}

reasons! {
    Runt, "runt",
        "The frame is shorter than its Ethernet header.";
    FrameTooBig, "frame-too-big",
        "The frame is longer than 65535 bytes and its headers.";
    MtuExceeded, "mtu-exceeded",
        "The frame is longer than the MTU of the port it goes to allows and is not to be segmented.";
    BadOffload, "bad-offload",
        "The offload header does not agree with the frame or with what was negotiated.";
    GuestFault, "guest-fault",
        "The guest's ring or descriptors were invalid, so the queue was stopped with frames in it.";
    SrcMacInvalid, "src-mac-invalid",
        "The source address is zero, multicast or broadcast.";
    ReservedMulticast, "reserved-multicast",
        "The destination is a link-local protocol address (01:80:c2:00:00:0x), which a bridge keeps.";
    SpoofedMac, "spoofed-mac",
        "The port may send from its own address only (spoofchk), and the frame names another as its sender's.";
    SpoofedIp, "spoofed-ip",
        "The port may send from certain IP addresses only, and the frame claims another, or hides whose it is.";
    RateExceeded, "rate-exceeded",
        "The port sent more than its max_tx_rate.";
    RuleDrop, "rule-drop",
        "A flow rule says so, or none lets the frame pass.";
    RuleRate, "rule-rate",
        "The frame is over the rate of a flow rule.";
    RuleRewrite, "rule-rewrite",
        "The frame cannot be changed as a flow rule says.";
    ConnectionsFull, "connections-full",
        "A flow rule lets the frame begin a connection, and the port has too many.";
    VlanNotAllowed, "vlan-not-allowed",
        "The frame's VLAN tag, or its absence, is not allowed on the port.";
    SamePort, "same-port",
        "The destination is behind the port the frame came from.";
    NoDestination, "no-destination",
        "The destination is unknown or a group, and the VLAN has no other port that is up.";
    PortDown, "port-down",
        "The port has no session, is not running, or was set down.";
    QueueDisabled, "queue-disabled",
        "The guest has not enabled a receive queue on the port.";
    RxRingEmpty, "rx-ring-empty",
        "The receiving guest gave no buffers: its interface is down, or it is too slow.";
    RxBufferTooSmall, "rx-buffer-too-small",
        "The receiving guest's buffers cannot hold the frame.";
    TapFull, "tap-full",
        "The host's TAP device took no more frames.";
    TapError, "tap-error",
        "The host refused the frame on the TAP device.";
    Internal, "internal",
        "The daemon could not handle the frame; this is a bug.";
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl serde::Serialize for DropReason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// One counter per reason, for one owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    /// All zero.
    pub const fn new() -> Self {
        Self([0; DropReason::ALL.len()])
    }

    /// Counts frames under a reason.
    #[inline]
    pub fn add(&mut self, reason: DropReason, frames: u64) {
        if let Some(counter) = self.0.get_mut(reason as usize) {
            *counter = counter.wrapping_add(frames);
        }
    }

    /// Frames counted under a reason.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0.get(reason as usize).copied().unwrap_or(0)
    }

    /// Adds another's counters.
    pub fn merge(&mut self, other: &Self) {
        for (counter, more) in self.0.iter_mut().zip(other.0) {
            *counter = counter.wrapping_add(more);
        }
    }

    /// Frames under any reason.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, counter| sum.wrapping_add(*counter))
    }

    /// The reasons that occurred.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL.iter().copied().zip(self.0).filter(|(_, frames)| *frames != 0)
    }
}

#[cfg(test)]
mod tests;
