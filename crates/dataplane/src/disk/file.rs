//! Files that hold the bytes of disks, and how each is best read and written.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fstatfs, statx};

use super::mapped::Mapped;

/// How a file is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It is in memory and nothing is ever waited for: at once, by the worker, where it is
    /// [mapped](Mapped) without the kernel. A ring would give it to a kernel thread.
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

/// Requests that are under way at a time at most if the device does not say how many it takes: Linux's usual
/// number.
const DEPTH: usize = 256;

/// Requests that the device of a file should have at a time, if there is one that says what it takes: an eighth
/// less than its tags (`nr_tags`) or than what its scheduler holds (`nr_requests` of
/// Documentation/ABI/stable/sysfs-block), beyond which the kernel has threads of its own wait. The eighth waits in
/// the guest's ring, to be begun at once when others end: measured in docs/performance.md.
fn depth(file: &File) -> Option<usize> {
    let stat = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE).ok()?;
    let device = format!("/sys/dev/block/{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
    let number = |name: &str| -> Option<usize> {
        // A partition has no queues of its own, the disk above it has.
        let read = |above| std::fs::read_to_string(format!("{device}{above}/{name}")).ok();
        read("").or_else(|| read("/.."))?.trim().parse().ok()
    };
    let takes =
        [number("mq/0/nr_tags"), number("queue/nr_requests")].into_iter().flatten().min()?;
    Some(takes - takes / 8)
}

/// The files of a disk and their manners: of an image with backing files there are several.
#[derive(Debug, Default)]
pub(crate) struct Manners {
    files: Vec<Known>,
    /// The least of what is said of their devices.
    depth: Option<usize>,
}

#[derive(Debug)]
struct Known {
    file: Arc<File>,
    manner: Manner,
    /// If it is in memory.
    mapped: Option<Mapped>,
}

impl Manners {
    /// Requests that are in the ring at a time at most.
    pub(crate) fn depth(&self) -> usize {
        self.depth.unwrap_or(DEPTH).max(1)
    }

    /// The manner of a file, found out once.
    pub(crate) fn of(&mut self, file: &Arc<File>) -> Manner {
        if let Some(known) = self.files.iter().find(|known| Arc::ptr_eq(&known.file, file)) {
            return known.manner;
        }
        // What cannot be examined can be read through the cache, or says then why not.
        let manner = Manner::of(file).unwrap_or(Manner::Cached);
        if manner != Manner::Inline
            && let Some(depth) = depth(file)
        {
            self.depth = Some(self.depth.map_or(depth, |least| least.min(depth)));
        }
        let mapped = if manner == Manner::Inline { Mapped::of(file) } else { None };
        self.files.push(Known { file: Arc::clone(file), manner, mapped });
        manner
    }

    /// What a file is mapped by, if it is known to be in memory.
    pub(crate) fn in_memory(&self, file: &Arc<File>) -> Option<Option<&Mapped>> {
        let known = self.files.iter().find(|known| Arc::ptr_eq(&known.file, file))?;
        (known.manner == Manner::Inline).then_some(known.mapped.as_ref())
    }

    /// A file that is mapped.
    pub(crate) fn mapped(&self, file: &Arc<File>) -> Option<&Mapped> {
        let known = self.files.iter().find(|known| Arc::ptr_eq(&known.file, file));
        known.and_then(|known| known.mapped.as_ref())
    }

    /// Something was cleared: `None`, it is not known where.
    pub(crate) fn cleared(&self, file: Option<&Arc<File>>, bytes: Range<u64>) {
        for known in &self.files {
            if file.is_none_or(|file| Arc::ptr_eq(&known.file, file))
                && let Some(mapped) = &known.mapped
            {
                mapped.forget(bytes.clone());
            }
        }
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
        assert_eq!(manners.files.len(), 2);
        assert!(manners.depth() > 0);
    }
}
