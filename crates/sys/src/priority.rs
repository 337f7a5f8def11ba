//! How urgent the calling thread is to the scheduler.

#![expect(unsafe_code)]
// UNSAFETY: sched_setscheduler(2) takes a pointer.

use std::io;

/// Puts the calling thread before every ordinary one (`SCHED_FIFO`, lowest priority), until
/// [`ordinary`].
///
/// It then gives its CPU to nobody: whoever calls this ends, blocks or calls [`ordinary`] within
/// milliseconds, whatever the rest of the process does.
///
/// # Errors
/// `PermissionDenied` without `CAP_SYS_NICE`.
pub fn realtime() -> io::Result<()> {
    set(libc::SCHED_FIFO, 1)
}

/// Makes the calling thread an ordinary one again.
///
/// # Errors
/// None is to be expected.
pub fn ordinary() -> io::Result<()> {
    set(libc::SCHED_OTHER, 0)
}

fn set(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: 0 is the calling thread, and the parameter lives through the call.
    let done = unsafe { libc::sched_setscheduler(0, policy, &raw const param) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests;
