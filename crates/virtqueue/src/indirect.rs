//! The checks of an indirect table that both ring formats share.

use guestmem::{GuestMemory, GuestSlice};

use crate::GuestFault;
use crate::desc::{DESC_SIZE, Descriptor, NEXT};

/// The table `parent` refers to and the number of its entries, at least 1.
pub(crate) fn table<'m>(
    mem: &'m GuestMemory,
    parent: &Descriptor,
    negotiated: bool,
) -> Result<(GuestSlice<'m>, u32), GuestFault> {
    if !negotiated {
        return Err(GuestFault::IndirectNotNegotiated);
    }
    if parent.has(NEXT) {
        return Err(GuestFault::IndirectWithNext);
    }
    let entry = DESC_SIZE as u32;
    let len = parent.len;
    if len == 0 || !len.is_multiple_of(entry) {
        return Err(GuestFault::IndirectLength { len });
    }
    let table = mem
        .slice(parent.addr, len)
        .ok_or(GuestFault::IndirectOutside { addr: parent.addr, len })?;
    Ok((table, len / entry))
}
