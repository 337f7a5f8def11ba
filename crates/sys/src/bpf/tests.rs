use std::os::fd::{FromRawFd, OwnedFd};

use super::*;

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;

fn descriptor(number: libc::c_long) -> OwnedFd {
    // SAFETY: the kernel has just made it for us.
    unsafe { OwnedFd::from_raw_fd(number.try_into().unwrap()) }
}

/// A program that lets every packet pass, on the loopback interface of a namespace of its own.
#[test]
fn programs_are_seen_while_they_are_attached() {
    std::thread::spawn(|| {
        // SAFETY: a namespace for this thread alone.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "this test needs root");
        let lo = 1;
        assert!(!tcx_attached(lo).unwrap());
        assert!(!tcx_attached(12345).unwrap());

        // r0 = TCX_PASS; exit
        let code: [u64; 2] = [0x0000_0000_0000_00b7, 0x0000_0000_0000_0095];
        let license = c"Apache-2.0";
        let mut load = Attr([0; 32]);
        (load.0[0], load.0[1]) = (BPF_PROG_TYPE_SCHED_CLS, code.len() as u32);
        for (at, address) in [(2, code.as_ptr().addr()), (4, license.as_ptr().addr())] {
            load.0[at] = address as u32;
            load.0[at + 1] = (address as u64 >> 32) as u32;
        }
        let program = match bpf(BPF_PROG_LOAD, &mut load) {
            Ok(number) => descriptor(number),
            // A kernel without BPF, or one that gives it to nobody: then nobody attaches any.
            Err(error) => return println!("no BPF here: {error}"),
        };
        for attach in [BPF_TCX_INGRESS, BPF_TCX_EGRESS] {
            let mut link = Attr([0; 32]);
            let number = std::os::fd::AsRawFd::as_raw_fd(&program) as u32;
            (link.0[0], link.0[1], link.0[2]) = (number, lo, attach);
            let link = match bpf(BPF_LINK_CREATE, &mut link) {
                Ok(number) => descriptor(number),
                Err(error) => return println!("no tcx here: {error}"),
            };
            assert!(tcx_attached(lo).unwrap());
            drop(link);
            assert!(!tcx_attached(lo).unwrap());
        }
    })
    .join()
    .unwrap();
}
