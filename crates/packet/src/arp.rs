//! Announcing where a MAC address lives now.

use crate::eth::{ETH_P_IP, ETH_P_RARP, Mac};
use crate::put_be16;

/// Length of an announcement: the least an Ethernet frame may be, without its check sequence.
pub const ANNOUNCEMENT_LEN: usize = 60;

/// The RARP "request reverse" (RFC 903) a hypervisor broadcasts for a guest that moved and cannot
/// announce itself: switches learn `mac` from it. The same bytes as QEMU's `announce_self`; asked
/// for by the vhost-user message `SEND_RARP`.
pub fn announcement(mac: Mac) -> [u8; ANNOUNCEMENT_LEN] {
    let mut frame = [0; ANNOUNCEMENT_LEN];
    let mut place = |at: usize, address: Mac| {
        if let Some(to) = frame.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            *to = address.0;
        }
    };
    place(0, Mac::BROADCAST);
    place(6, mac);
    place(22, mac); // sender hardware address
    place(32, mac); // target hardware address
    put_be16(&mut frame, 12, ETH_P_RARP);
    put_be16(&mut frame, 14, 1); // hardware type: Ethernet
    put_be16(&mut frame, 16, ETH_P_IP); // protocol type
    put_be16(&mut frame, 18, 0x0604); // lengths of the two kinds of address
    put_be16(&mut frame, 20, 3); // operation: request reverse
    frame
}

#[cfg(test)]
mod tests;
