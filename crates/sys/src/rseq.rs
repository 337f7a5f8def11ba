//! Restartable sequences (rseq(2)), for which the kernel keeps in each thread's memory on which CPU it runs.

#![expect(unsafe_code)]
// UNSAFETY: reads two variables of the C library, and tells the kernel about memory of this thread.

/// Ends that for the calling thread, for which the C library began it: each time the thread goes on after another had
/// its CPU, the kernel writes to that memory, which takes a thread that yields for every request 2 % of its time
/// (docs/performance.md). `sched_getcpu(3)` asks the kernel from then on. Returns whether it was so and is no longer.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
pub fn leave() -> bool {
    /// What the C library gave with it, as `RSEQ_SIG` of <sys/rseq.h>, and the length of what it registers.
    const SIGNATURE: libc::c_uint = 0x5305_3053;
    const LENGTH: libc::c_uint = 32;
    const UNREGISTER: libc::c_int = 1;
    // SAFETY: the name ends with a zero.
    let offset = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) };
    if offset.is_null() {
        // A C library that has none.
        return false;
    }
    // SAFETY: glibc 2.35 and later have a `const ptrdiff_t` of that name.
    let offset = unsafe { *offset.cast::<isize>() };
    let thread: usize;
    // SAFETY: by the ABI, there is a word at the thread pointer, which points to itself.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) thread, options(nostack, readonly)) };
    let address = thread.wrapping_add_signed(offset);
    // SAFETY: the kernel looks whether this is what the thread is registered with, and refuses otherwise. Then it writes
    // to it once more, that it is not: it is as long as the thread.
    unsafe { libc::syscall(libc::SYS_rseq, address, LENGTH, UNREGISTER, SIGNATURE) == 0 }
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
            let left = super::leave();
            assert!(!super::leave(), "once is enough");
            let cpu = crate::affinity::allowed_cpus().unwrap()[0];
            crate::affinity::pin_current_thread(cpu).unwrap();
            // SAFETY: no argument.
            assert_eq!(unsafe { libc::sched_getcpu() }, cpu as i32);
            left
        });
        // Whether there was something to leave is the C library's and the kernel's.
        let _ = thread.join().unwrap();
    }
}
