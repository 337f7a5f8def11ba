//! Files that hold the bytes of disks, and how each is best read and written.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fstatfs, statx};

/// How a file is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It is in memory and nothing is ever waited for: at once, by the worker. A ring would give
    /// it to a kernel thread.
    Inline,
    /// By the ring, through the page cache. What is cached is read at once.
    Cached,
    /// By the ring, past the page cache: `O_DIRECT`.
    Direct {
        /// What addresses in memory must be multiples of, in bytes.
        memory: usize,
        /// What offsets and lengths must be multiples of, in bytes.
        offset: u64,
    },
}

/// What is asked of memory and offsets where a file system does not say: enough for any.
const SAFE_ALIGN: u32 = 4096;

impl Manner {
    /// What is best for a file as it was opened.
    ///
    /// # Errors
    /// What the kernel reports of it.
    pub(crate) fn of(file: &File) -> io::Result<Manner> {
        const TMPFS: u64 = 0x0102_1994;
        const RAMFS: u64 = 0x8584_58f6;
        // The magic numbers are 32 bits wide, whatever the width of the field.
        if matches!(fstatfs(file)?.f_type as u64 & 0xffff_ffff, TMPFS | RAMFS) {
            return Ok(Manner::Inline);
        }
        if !fcntl_getfl(file)?.contains(OFlags::DIRECT) {
            return Ok(Manner::Cached);
        }
        let stat = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
        let known = |align: u32| if align.is_power_of_two() { align } else { SAFE_ALIGN };
        let told = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
        let (memory, offset) = match told {
            true => (known(stat.stx_dio_mem_align), known(stat.stx_dio_offset_align)),
            false => (SAFE_ALIGN, SAFE_ALIGN),
        };
        Ok(Manner::Direct { memory: memory as usize, offset: offset.into() })
    }

    /// What requests to it must be multiples of, in bytes.
    pub(crate) fn block_size(self) -> u32 {
        match self {
            Manner::Direct { offset, .. } => offset.clamp(512, 65536) as u32,
            _ => 512,
        }
    }
}

/// The files of a disk and their manners: of an image with backing files there are several.
#[derive(Debug, Default)]
pub(crate) struct Manners(Vec<(Arc<File>, Manner)>);

impl Manners {
    /// The manner of a file, found out once.
    pub(crate) fn of(&mut self, file: &Arc<File>) -> Manner {
        if let Some((_, manner)) = self.0.iter().find(|(known, _)| Arc::ptr_eq(known, file)) {
            return *manner;
        }
        // What cannot be examined can be read through the cache, or says then why not.
        let manner = Manner::of(file).unwrap_or(Manner::Cached);
        self.0.push((Arc::clone(file), manner));
        manner
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::OpenOptionsExt;

    #[test]
    fn files_in_memory_are_known_and_so_are_those_past_the_cache() {
        let memory = rustix::fs::memfd_create("m", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(Manner::of(&File::from(memory)).unwrap(), Manner::Inline);
        // The build folder, unlike the temporary one, is seldom in memory.
        let program = std::env::current_exe().unwrap();
        let directory = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let path = directory.path().join("image");
        let cached = Arc::new(File::create(&path).unwrap());
        if Manner::of(&cached).unwrap() == Manner::Inline {
            return;
        }
        let flags = OFlags::DIRECT.bits() as i32;
        let direct = Arc::new(File::options().read(true).custom_flags(flags).open(&path).unwrap());
        let mut manners = Manners::default();
        assert_eq!(manners.of(&cached), Manner::Cached);
        let Manner::Direct { memory, offset } = manners.of(&direct) else { panic!() };
        assert!(memory.is_power_of_two() && (512..=65536).contains(&offset));
        assert_eq!(manners.of(&cached), Manner::Cached);
        assert_eq!(manners.0.len(), 2);
    }
}
