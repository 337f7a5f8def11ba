//! Restartable sequences (rseq(2)), for which the kernel keeps in each thread's memory on which CPU it runs.

#![expect(unsafe_code)]
// UNSAFETY: reads a variable of the C library, and tells the kernel about memory of this thread.

/// Ends that for the calling thread, for which the C library began it: each time the thread goes on after another had
/// its CPU, the kernel writes to that memory, which takes a thread that yields for every request 2 % of its time
/// (docs/performance.md). `sched_getcpu(3)` asks the kernel from then on. Returns whether it was so and is no longer.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
pub fn leave() -> bool {
    /// What the C library gave with it, as `RSEQ_SIG` of <sys/rseq.h>, and the length of what it registers.
    const SIGNATURE: libc::c_uint = 0x5305_3053;
    const LENGTH: libc::c_uint = 32;
    const UNREGISTER: libc::c_int = 1;
    let Some(address) = address() else { return false };
    // SAFETY: the kernel looks whether this is what the thread is registered with, and refuses otherwise. Then it writes
    // to it once more, that it is not: it is as long as the thread.
    unsafe { libc::syscall(libc::SYS_rseq, address, LENGTH, UNREGISTER, SIGNATURE) == 0 }
}

/// Where the C library has the structure of the calling thread; `None`: it has none.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
fn address() -> Option<usize> {
    // SAFETY: the name ends with a zero.
    let offset = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) };
    if offset.is_null() {
        return None;
    }
    // SAFETY: glibc 2.35 and later have a `const ptrdiff_t` of that name.
    let offset = unsafe { *offset.cast::<isize>() };
    let thread: usize;
    // SAFETY: by the ABI, there is a word at the thread pointer, which points to itself.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) thread, options(nostack, readonly)) };
    Some(thread.wrapping_add_signed(offset))
}

/// Nothing is done on this kind of machine.
#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
pub fn leave() -> bool {
    false
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_thread_still_knows_its_cpu() {
        let thread = std::thread::spawn(|| {
            let cpu_id = registered();
            assert_eq!(super::leave(), cpu_id.is_some(), "{cpu_id:?}");
            assert_eq!(registered(), None);
            assert!(!super::leave(), "once is enough");
            let cpu = crate::affinity::allowed_cpus().unwrap()[0];
            crate::affinity::pin_current_thread(cpu).unwrap();
            // SAFETY: no argument.
            assert_eq!(unsafe { libc::sched_getcpu() }, cpu as i32);
        });
        thread.join().unwrap();
    }

    /// The CPU that the kernel keeps for this thread, if it does: by the C library or kernel it may not.
    fn registered() -> Option<u32> {
        #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
        {
            // `cpu_id` of `struct rseq`: not a CPU while nothing is registered.
            const CPU_ID: usize = 4;
            let address = super::address()?;
            // SAFETY: the C library has that structure for each thread, as long as the thread.
            let cpu = unsafe { std::ptr::read_volatile((address + CPU_ID) as *const u32) };
            (cpu < u32::MAX - 1).then_some(cpu)
        }
        #[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
        None
    }
}
