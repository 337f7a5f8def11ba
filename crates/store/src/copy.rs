//! Copies the content of a disk from one file to another, without its zeroes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use imago::FormatAccess;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::StoreError;
use crate::progress::Reporter;
use crate::qcow2::{Run, Storage, run};

/// Bytes read at once.
const CHUNK: usize = 1 << 20;

/// A disk to read.
pub(crate) enum Source {
    /// A file with the bytes as they are; what the disk has more than the file reads as zeroes.
    Raw {
        /// The file, whose position nobody else uses.
        file: File,
        /// Of the file in bytes.
        len: u64,
    },
    /// Clusters behind tables.
    Qcow2(FormatAccess<Storage>),
}

/// A disk to write, all zeroes so far.
pub(crate) enum Target {
    Raw(File),
    Qcow2(FormatAccess<Storage>),
}

impl Source {
    /// Whether there may be bytes at `offset` that are not zero, and how far that goes.
    fn run(&self, offset: u64, len: u64) -> io::Result<(Run, u64)> {
        let file = match self {
            Self::Qcow2(access) if offset >= access.size() => return Ok((Run::Zero, len)),
            Self::Qcow2(access) => return run(access, offset, len).map(|(run, _, len)| (run, len)),
            Self::Raw { file, .. } => file,
        };
        Ok(match seek(file, SeekFrom::Data(offset)) {
            Ok(data) if data > offset => (Run::Zero, len.min(data - offset)),
            Ok(_) => match seek(file, SeekFrom::Hole(offset)) {
                Ok(hole) if hole > offset => (Run::Data, len.min(hole - offset)),
                _ => (Run::Data, len),
            },
            Err(Errno::NXIO) => (Run::Zero, len),
            // A file system or device that does not know holes.
            Err(_) => (Run::Data, len),
        })
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Qcow2(access) => access.read(data, offset),
            Self::Raw { file, len } => {
                let there = len.saturating_sub(offset).min(data.len() as u64) as usize;
                let (there, behind) = data.split_at_mut(there);
                behind.fill(0);
                file.read_exact_at(there, offset)
            }
        }
    }
}

impl Target {
    /// Bytes that are written or left out together.
    fn granule(&self) -> usize {
        match self {
            Self::Raw(_) => 4 << 10,
            Self::Qcow2(_) => 64 << 10,
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.write_all_at(data, offset),
            Self::Qcow2(access) => access.write(data, offset),
        }
    }
}

/// Copies the `size` bytes of `source`; adds those of its file to `digest` (raw only).
pub(crate) fn copy(
    source: &Source,
    target: &Target,
    size: u64,
    mut digest: Option<&mut Sha256>,
    reporter: &mut Reporter<'_>,
) -> Result<(), StoreError> {
    let failed = |source| StoreError::Io { what: "cannot copy".into(), source };
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    while offset < size {
        let (run, len) = source.run(offset, size - offset).map_err(failed)?;
        let len = match (run, &digest) {
            (Run::Zero, None) => len,
            _ => len.min(CHUNK as u64),
        };
        if run == Run::Data || digest.is_some() {
            let chunk = &mut buffer[..len as usize];
            match run {
                Run::Data => source.read(offset, chunk).map_err(failed)?,
                Run::Zero => chunk.fill(0),
            }
            if let (Some(digest), Source::Raw { len, .. }) = (&mut digest, source) {
                let there = len.saturating_sub(offset).min(chunk.len() as u64);
                digest.update(&chunk[..there as usize]);
            }
            write_data(target, offset, chunk).map_err(failed)?;
        }
        offset += len;
        reporter.advance(len)?;
    }
    Ok(())
}

/// The SHA-256 of a whole file of `len` bytes.
pub(crate) fn digest(
    file: &File,
    len: u64,
    reporter: &mut Reporter<'_>,
) -> Result<Sha256, StoreError> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    while offset < len {
        let chunk = &mut buffer[..(len - offset).min(CHUNK as u64) as usize];
        file.read_exact_at(chunk, offset)
            .map_err(|source| StoreError::Io { what: "cannot read".into(), source })?;
        digest.update(&*chunk);
        offset += chunk.len() as u64;
        reporter.advance(chunk.len() as u64)?;
    }
    Ok(digest)
}

/// Writes what of `data` is not zero, in as few pieces as that takes.
fn write_data(target: &Target, offset: u64, data: &[u8]) -> io::Result<()> {
    let mut at = 0;
    let mut begin = None;
    for granule in data.chunks(target.granule()) {
        match (is_zero(granule), begin) {
            (false, None) => begin = Some(at),
            (true, Some(from)) => {
                target.write(offset + from as u64, &data[from..at])?;
                begin = None;
            }
            _ => {}
        }
        at += granule.len();
    }
    begin.map_or(Ok(()), |from| target.write(offset + from as u64, &data[from..]))
}

/// Compares each byte with the next, which the C library does many at a time.
fn is_zero(data: &[u8]) -> bool {
    match data {
        [] => true,
        [first, rest @ ..] => *first == 0 && rest == &data[..rest.len()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_are_seen() {
        assert!(is_zero(&[]) && is_zero(&[0]) && is_zero(&[0; 4096]));
        for at in [0, 1, 4095] {
            let mut data = [0; 4096];
            data[at] = 1;
            assert!(!is_zero(&data));
        }
    }
}
