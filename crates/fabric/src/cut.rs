//! Cuts what is to be moved into what a provider takes at once: so many pieces here, so many there, so
//! many bytes.

use sys::uring::IoVec;

use crate::ffi::RmaIoVec;
use crate::memory::Remote;

/// What a provider takes at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Pieces of local memory, at least 1.
    pub(crate) local: usize,
    /// Pieces of the peer's memory, at least 1.
    pub(crate) remote: usize,
    /// Bytes, at least 1.
    pub(crate) bytes: u64,
    /// Bytes of a message that it copies at once.
    pub(crate) inject: u64,
}

/// How far a transfer has been cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    local: (usize, u64),
    remote: (usize, u64),
}

/// One part: pieces of both sides, of as many bytes.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) local: Vec<IoVec>,
    /// Which of the local pieces the first is.
    pub(crate) first: usize,
    pub(crate) remote: Vec<RmaIoVec>,
}

impl Part {
    /// The first bytes of these pieces: of one side only.
    pub(crate) fn take(&mut self, pieces: &[IoVec], bytes: u64) {
        let mut left = bytes as usize;
        self.local.clear();
        for &IoVec { base, len } in pieces {
            if left == 0 {
                break;
            }
            self.local.push(IoVec { base, len: len.min(left) });
            left -= len.min(left);
        }
    }
}

impl Cursor {
    /// Whether everything has been cut.
    pub(crate) fn is_behind(&self, local: &[IoVec]) -> bool {
        self.local.0 >= local.len()
    }

    /// The next part, and where it ends; `None`: everything has been cut. Neither side has empty
    /// pieces.
    pub(crate) fn next(
        self,
        local: &[IoVec],
        remote: &[Remote],
        limits: Limits,
        part: &mut Part,
    ) -> Option<Cursor> {
        // Mostly there is one piece here and one there.
        if let ([one], [other]) = (local, remote)
            && self == Cursor::default()
            && one.len as u64 == other.length
            && (1..=limits.bytes).contains(&other.length)
        {
            let Remote { address, key, .. } = *other;
            part.local.clear();
            part.local.push(*one);
            part.remote.clear();
            part.remote.push(RmaIoVec { address, length: one.len, key });
            part.first = 0;
            return Some(Cursor { local: (1, 0), remote: (1, 0) });
        }
        let here = local.iter().skip(self.local.0).take(limits.local);
        let here = here.map(|piece| piece.len as u64).sum::<u64>().saturating_sub(self.local.1);
        let there = remote.iter().skip(self.remote.0).take(limits.remote);
        let there = there.map(|piece| piece.length).fold(0, u64::saturating_add);
        let bytes = here.min(there.saturating_sub(self.remote.1)).min(limits.bytes);
        if bytes == 0 {
            return None;
        }
        part.local.clear();
        part.remote.clear();
        part.first = self.local.0;
        let (mut to, mut left) = (self, bytes);
        while left > 0 {
            let piece = local.get(to.local.0)?;
            let some = left.min(piece.len as u64 - to.local.1);
            // Less than the piece has.
            let base = piece.base.wrapping_add(to.local.1 as usize);
            part.local.push(IoVec { base, len: some as usize });
            to.local = step(to.local, some, piece.len as u64);
            left -= some;
        }
        left = bytes;
        while left > 0 {
            let piece = remote.get(to.remote.0)?;
            let some = left.min(piece.length - to.remote.1);
            let address = piece.address.wrapping_add(to.remote.1);
            part.remote.push(RmaIoVec { address, length: some as usize, key: piece.key });
            to.remote = step(to.remote, some, piece.length);
            left -= some;
        }
        Some(to)
    }
}

fn step((index, offset): (usize, u64), some: u64, length: u64) -> (usize, u64) {
    if offset + some == length { (index + 1, 0) } else { (index, offset + some) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte goes from where it is to where it belongs, in order, and no part is too large.
    fn check(here: &[usize], there: &[u64], limits: Limits) -> usize {
        let mut base = 0x1000;
        let local: Vec<IoVec> = here
            .iter()
            .map(|&len| {
                base += 1 << 20;
                IoVec { base: std::ptr::without_provenance_mut(base), len }
            })
            .collect();
        let remote: Vec<Remote> = there
            .iter()
            .enumerate()
            .map(|(n, &length)| Remote { address: (n as u64) << 32, key: n as u64, length })
            .collect();
        let bytes = |piece: &IoVec| (piece.base.addr()..piece.base.addr() + piece.len).collect();
        let wanted_local: Vec<usize> = local.iter().flat_map::<Vec<usize>, _>(bytes).collect();
        let wanted_remote: Vec<(u64, u64)> = remote
            .iter()
            .flat_map(|one| (one.address..one.address + one.length).map(|at| (one.key, at)))
            .collect();
        let (mut cursor, mut part, mut parts) = (Cursor::default(), Part::default(), 0);
        let (mut got_local, mut got_remote) = (Vec::new(), Vec::new());
        while let Some(next) = cursor.next(&local, &remote, limits, &mut part) {
            assert!(part.local.len() <= limits.local && part.remote.len() <= limits.remote);
            let n: usize = part.local.iter().map(|piece| piece.len).sum();
            assert_eq!(n, part.remote.iter().map(|piece| piece.length).sum::<usize>());
            assert!(n as u64 <= limits.bytes && n > 0);
            let first = local[part.first];
            assert!(
                (first.base.addr()..first.base.addr() + first.len)
                    .contains(&part.local[0].base.addr())
            );
            got_local.extend(part.local.iter().flat_map::<Vec<usize>, _>(bytes));
            for one in &part.remote {
                got_remote
                    .extend((one.address..one.address + one.length as u64).map(|at| (one.key, at)));
            }
            (cursor, parts) = (next, parts + 1);
        }
        assert_eq!(got_local, wanted_local);
        assert_eq!(got_remote, wanted_remote);
        parts
    }

    #[test]
    fn everything_is_moved_once() {
        let limits = |local, remote, bytes| Limits { local, remote, bytes, inject: 0 };
        assert_eq!(check(&[4096], &[4096], limits(1, 1, 1 << 20)), 1);
        assert_eq!(check(&[4096, 512], &[512, 4096], limits(1, 1, 1 << 20)), 3);
        assert_eq!(check(&[4096, 512], &[512, 4096], limits(4, 4, 1 << 20)), 1);
        assert_eq!(check(&[1000; 9], &[3000; 3], limits(4, 1, 1 << 20)), 3);
        assert_eq!(check(&[1000; 9], &[9000], limits(4, 1, 1024)), 9);
        assert_eq!(check(&[1, 2, 3], &[3, 2, 1], limits(2, 2, 2)), 3);
        assert_eq!(check(&[], &[], limits(1, 1, 1)), 0);
    }
}
