//! BPF programs that are attached to a network interface beside traffic control's filters (`tcx`).
//!
//! Netlink says nothing of them: only bpf(2) does.

#![expect(unsafe_code)]
// UNSAFETY: bpf(2) takes a pointer, and has no wrapper in libc or rustix.

use std::io;

const BPF_PROG_QUERY: libc::c_int = 16;
const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;

/// `union bpf_attr`, larger than what any of these commands reads or writes of it.
#[repr(C, align(8))]
struct Attr([u32; 32]);

/// Whether programs see the packets that an interface of this network namespace gets or sends,
/// by the number of the interface.
///
/// # Errors
/// `PermissionDenied` without `CAP_NET_ADMIN`; whatever else the kernel says. A kernel that has no
/// such programs (before Linux 6.6) is no error, nor is an interface that is gone.
pub fn tcx_attached(ifindex: u32) -> io::Result<bool> {
    for attach in [BPF_TCX_INGRESS, BPF_TCX_EGRESS] {
        let mut attr = Attr([0; 32]);
        // target_ifindex, attach_type
        (attr.0[0], attr.0[1]) = (ifindex, attach);
        match bpf(BPF_PROG_QUERY, &mut attr) {
            // prog_cnt
            Ok(_) if attr.0[6] > 0 => return Ok(true),
            Ok(_) => {}
            Err(error) => match error.raw_os_error() {
                Some(libc::EINVAL | libc::ENOENT | libc::ENODEV | libc::ENOSYS) => {}
                _ => return Err(error),
            },
        }
    }
    Ok(false)
}

fn bpf(command: libc::c_int, attr: &mut Attr) -> io::Result<libc::c_long> {
    // SAFETY: the kernel reads and writes at most the size that is given, and what the attributes
    // point to (nothing but in the test, where it lives through the call).
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<Attr>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

#[cfg(test)]
mod tests;
