//! The client of a back end's first disk: for a job, and to see that a disk keeps what it is given.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use blkclient::{Client, Shape, Wait};

use super::cell::Job;
use super::load::{LoadError, Random};
use super::sut::Backend;

/// Bytes of the data that is written and read back before anything is measured, and of a piece.
pub(super) const CHECKED: u64 = 16 << 20;
const PIECE: usize = 256 << 10;

/// A client of a back end's first disk, for a job on its first `size` bytes.
pub(super) fn at_work(
    backend: &Backend,
    job: &Job,
    size: u64,
    wait: Wait,
) -> Result<Client, LoadError> {
    let Job { block, depth, jobs, .. } = *job;
    let client = first(backend, Shape { queues: jobs, slots: depth, buffer: block, wait })?;
    if client.capacity() < size {
        return Err(LoadError::Size(client.capacity()));
    }
    Ok(client)
}

fn first(backend: &Backend, shape: Shape) -> Result<Client, LoadError> {
    let none =
        LoadError::Io { what: "the disk's socket", source: std::io::ErrorKind::NotFound.into() };
    Ok(Client::connect(backend.sockets.first().ok_or(none)?, shape)?)
}

/// For what is written and read back.
const WHOLE: Shape = Shape { queues: 1, slots: 1, buffer: PIECE as u32, wait: Wait::Event };

/// Writes to the beginning of a disk, reads it back, and compares with the raw file behind it.
///
/// # Errors
/// What is read there is not what was written.
pub fn check(backend: &Backend, size: u64) -> Result<(), LoadError> {
    let mut client = first(backend, WHOLE)?;
    check_with(&mut client, backend.behind().as_deref(), size.min(CHECKED))
}

fn check_with(client: &mut Client, file: Option<&Path>, size: u64) -> Result<(), LoadError> {
    let data = |offset: u64| {
        let mut data = vec![0; PIECE.min((size - offset) as usize)];
        Random::new(!offset).fill(&mut data);
        data
    };
    let offsets: Vec<u64> = (0..size).step_by(PIECE).collect();
    // Not in their order: a piece that went elsewhere is not written over.
    for &offset in offsets.iter().rev() {
        client.write(offset, &data(offset))?;
    }
    client.flush()?;
    let mut read = vec![0; PIECE];
    let compare = |what, offset: u64, read: &[u8]| match read == data(offset) {
        true => Ok(()),
        false => Err(LoadError::Data { what, offset }),
    };
    for &offset in &offsets {
        read.resize(data(offset).len(), 0);
        client.read(offset, &mut read)?;
        compare("disk", offset, &read)?;
    }
    let io = |source| LoadError::Io { what: "the raw file of the disk", source };
    let file = file.ok_or_else(|| io(std::io::ErrorKind::NotFound.into()))?;
    let file = File::open(file).map_err(io)?;
    for &offset in &offsets {
        read.resize(data(offset).len(), 0);
        file.read_exact_at(&mut read, offset).map_err(io)?;
        compare("file", offset, &read)?;
    }
    Ok(())
}
