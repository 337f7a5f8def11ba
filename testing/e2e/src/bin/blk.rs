//! The test program that drives a disk inside a guest without a guest of its own: a front end of
//! vhost-user-blk (`blkclient`) that writes, reads and compares.
//!
//! ```text
//! blk verify SOCKET FILE             writes, flushes, reads and compares until SIGTERM; says `round N` after
//!                                    each round. FILE is what is on the disk at first, zeroes if there is none,
//!                                    and what has to be there at the end. Goes on when the daemon is killed and
//!                                    started again. The last 64 blocks of 4 KiB are left as they are
//! blk write SOCKET OFFSET COUNT SEED writes COUNT blocks of 4 KiB, all at once, four with each request
//! blk read SOCKET OFFSET COUNT SEED  reads and compares them, all at once; says `there, N answered` when the
//!                                    bytes are in its memory, however many reads have been answered by then
//! blk pattern COUNT SEED             prints the bytes of such blocks
//! blk limited BYTES PROGRAM...       becomes a program that may not pin more memory than that, as root
//! ```
#![expect(clippy::print_stdout, reason = "its result is what it prints")]

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use blkclient::{Answer, Client, Request, Shape, Wait};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

const BLOCK: usize = 4096;
/// Blocks of a request of those that are made all at once: too many to go with it.
const EACH: u16 = 4;
/// Requests at once, and bytes of each at most, while all is verified.
const SLOTS: u16 = 16;
const MOST: u32 = 256 << 10;
/// Blocks at the end that are not written.
const LEFT: usize = 64;
/// How long a disk may be silent: its store may be away so long.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long it may take to be there again.
const CONNECT: Duration = Duration::from_secs(60);
const NAP: Duration = Duration::from_millis(50);

type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["verify", socket, file] => verify(Path::new(socket), Path::new(file)),
        ["write", socket, offset, count, seed] => Some(())
            .and_then(|()| Some((offset.parse().ok()?, count.parse().ok()?, seed.parse().ok()?)))
            .map_or_else(|| Err("not a number".into()), |of| write(Path::new(socket), of)),
        ["read", socket, offset, count, seed] => Some(())
            .and_then(|()| Some((offset.parse().ok()?, count.parse().ok()?, seed.parse().ok()?)))
            .map_or_else(|| Err("not a number".into()), |of| read(Path::new(socket), of)),
        ["pattern", count, seed] => Some(())
            .and_then(|()| Some((count.parse().ok()?, seed.parse().ok()?)))
            .map_or_else(|| Err("not a number".into()), |(count, seed)| print(count, seed)),
        ["limited", bytes, program, args @ ..] => limited(bytes, program, args),
        _ => Err("usage: see the top of blk.rs".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("blk: {error}");
            ExitCode::FAILURE
        }
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// The bytes of a block, which follow from its place and the number of the write.
fn block(place: u64, write: u64) -> Vec<u8> {
    let mut state = (place << 32 | 1) ^ write.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let word = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..BLOCK / 8).flat_map(word).collect()
}

/// Offset in bytes, blocks, seed.
type Stretch = (u64, u16, u64);

fn all_at_once(socket: &Path, blocks: u16) -> Result<Client> {
    let buffer = u32::from(EACH) * BLOCK as u32;
    let shape = Shape { queues: 1, slots: blocks / EACH, buffer, wait: Wait::Event };
    Client::connect(socket, shape).map_err(text)
}

/// The bytes of one request of some, and where they are.
fn piece(slot: u16, offset: u64, seed: u64) -> (u64, Vec<u8>) {
    let first = u64::from(slot * EACH);
    let bytes = (first..first + u64::from(EACH)).flat_map(|n| block(n, seed));
    (offset + first * BLOCK as u64, bytes.collect())
}

fn answered(slot: u16, answer: Answer, bad: &mut Option<String>) {
    if answer != Answer::Done {
        bad.get_or_insert_with(|| format!("request {slot} was answered with {answer:?}"));
    }
}

/// Waits for what is in flight; how it went.
fn finish(client: &mut Client) -> Result<()> {
    let (mut bad, since) = (None, Instant::now());
    while client.in_flight(0) > 0 {
        if client.answers(0, |slot, answer| answered(slot, answer, &mut bad)) == 0 {
            client.sleep(NAP).map_err(text)?;
        }
        if since.elapsed() > PATIENCE {
            return Err(format!("{} requests were not answered", client.in_flight(0)));
        }
    }
    bad.map_or(Ok(()), Err)
}

fn write(socket: &Path, (offset, count, seed): Stretch) -> Result<()> {
    let mut client = all_at_once(socket, count)?;
    for slot in 0..count / EACH {
        let (offset, bytes) = piece(slot, offset, seed);
        client.put(0, slot, &bytes).map_err(text)?;
        let request = Request::Write { offset, len: bytes.len() as u32 };
        client.submit(0, slot, request).map_err(text)?;
    }
    client.kick(0).map_err(text)?;
    println!("asked");
    finish(&mut client)?;
    client.flush().map_err(text)?;
    println!("done");
    Ok(())
}

fn read(socket: &Path, (offset, count, seed): Stretch) -> Result<()> {
    let mut client = all_at_once(socket, count)?;
    for slot in 0..count / EACH {
        let (offset, bytes) = piece(slot, offset, seed);
        let request = Request::Read { offset, len: bytes.len() as u32 };
        client.submit(0, slot, request).map_err(text)?;
    }
    client.kick(0).map_err(text)?;
    println!("asked");
    let since = Instant::now();
    for slot in 0..count / EACH {
        let (_, wanted) = piece(slot, offset, seed);
        let mut got = vec![0; wanted.len()];
        loop {
            client.get(0, slot, &mut got).map_err(text)?;
            if got == wanted {
                break;
            }
            if since.elapsed() > PATIENCE {
                return Err(format!("request {slot} has other bytes"));
            }
            std::thread::sleep(NAP);
        }
    }
    let (mut bad, mut answers) = (None, 0);
    answers += client.answers(0, |slot, answer| answered(slot, answer, &mut bad));
    println!("there, {answers} answered");
    bad.map_or(Ok(()), Err)?;
    finish(&mut client)?;
    println!("done");
    Ok(())
}

fn print(count: u16, seed: u64) -> Result<()> {
    let bytes: Vec<u8> = (0..count).flat_map(|n| block(n.into(), seed)).collect();
    io::stdout().write_all(&bytes).map_err(text)
}

fn limited(bytes: &str, program: &str, args: &[&str]) -> Result<()> {
    let most = bytes.parse().map_err(text)?;
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(Resource::Memlock, limit).map_err(text)?;
    remove_capability_from_bounding_set(CapabilitySet::IPC_LOCK).map_err(text)?;
    Err(text(Command::new(program).args(args).exec()))
}

/// Why a round ended early.
enum Stop {
    /// The daemon is another one: everything that was in flight may have been done or not.
    Anew,
    Error(String),
}

impl From<String> for Stop {
    fn from(error: String) -> Stop {
        Stop::Error(error)
    }
}

/// A disk, and what has to be on it.
struct Model {
    /// What was there at first.
    before: Vec<u8>,
    /// The number of the last write of each block that was answered; 0: none was.
    blocks: Vec<u64>,
    /// Those that may be on it instead: in flight when the daemon was killed.
    maybe: Vec<Option<u64>>,
    writes: u64,
    random: u64,
}

impl Model {
    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % below
    }

    /// Stretches of blocks that do not meet.
    fn stretches(&mut self) -> Vec<(usize, usize)> {
        let (mut taken, mut all) = (BTreeSet::new(), Vec::new());
        let most = u64::from(MOST) / BLOCK as u64;
        for n in 0..SLOTS {
            // Small ones are more frequent, and one is as large as it may be.
            let bits = self.random(most.ilog2().into());
            let count = if n == 0 { most } else { 1 + self.random(1 << bits) } as usize;
            let first = self.random((self.blocks.len() - LEFT - count) as u64) as usize;
            if (first..first + count).all(|block| !taken.contains(&block)) {
                taken.extend(first..first + count);
                all.push((first, count));
            }
        }
        all
    }

    /// The bytes of a block after this write of it.
    fn bytes(&self, n: usize, write: u64) -> Vec<u8> {
        match write {
            0 => self.before[n * BLOCK..(n + 1) * BLOCK].to_vec(),
            _ => block(n as u64, write),
        }
    }

    /// Compares what was read; what may be either is what it is from now on.
    fn compare(&mut self, first: usize, bytes: &[u8]) -> Result<()> {
        for (got, n) in bytes.chunks(BLOCK).zip(first..) {
            let (one, other) = (self.blocks[n], self.maybe[n].take());
            if got == self.bytes(n, one) {
                continue;
            }
            match other {
                Some(other) if got == self.bytes(n, other) => self.blocks[n] = other,
                _ => return Err(format!("block {n} is neither write {one} nor {other:?}")),
            }
        }
        Ok(())
    }
}

fn inode(socket: &Path) -> Option<u64> {
    fs::metadata(socket).map(|file| file.ino()).ok()
}

/// A connection to the daemon that is there by now.
struct Connection {
    client: Client,
    socket: u64,
}

impl Connection {
    fn new(socket: &Path) -> Result<Connection> {
        let shape = Shape { queues: 1, slots: SLOTS, buffer: MOST, wait: Wait::Event };
        let since = Instant::now();
        loop {
            // One that was bound afterwards is found by the next look.
            let number = inode(socket).unwrap_or_default();
            match Client::connect(socket, shape) {
                Ok(client) => return Ok(Connection { client, socket: number }),
                Err(error) if since.elapsed() > CONNECT => return Err(text(error)),
                Err(_) => std::thread::sleep(NAP),
            }
        }
    }

    /// Has some requests done, one for each slot.
    fn all(&mut self, socket: &Path, requests: &[Request]) -> std::result::Result<(), Stop> {
        for (slot, request) in (0..).zip(requests) {
            self.client.submit(0, slot, *request).map_err(text)?;
        }
        self.client.kick(0).map_err(text)?;
        let (mut bad, since) = (None, Instant::now());
        while self.client.in_flight(0) > 0 {
            if self.client.answers(0, |slot, answer| answered(slot, answer, &mut bad)) == 0 {
                if inode(socket).is_some_and(|now| now != self.socket) {
                    return Err(Stop::Anew);
                }
                self.client.sleep(NAP).map_err(text)?;
            }
            if since.elapsed() > PATIENCE {
                return Err(Stop::Error(format!("no answer to one of {requests:?}")));
            }
        }
        bad.map_or(Ok(()), |bad| Err(bad.into()))
    }

    fn round(&mut self, socket: &Path, model: &mut Model) -> std::result::Result<(), Stop> {
        let stretches = model.stretches();
        let place = |first: usize| first as u64 * BLOCK as u64;
        let len = |count: usize| (count * BLOCK) as u32;
        let mut requests = Vec::new();
        for (slot, &(first, count)) in (0..).zip(&stretches) {
            model.writes += 1;
            let bytes = (first..first + count).flat_map(|n| block(n as u64, model.writes));
            self.client.put(0, slot, &bytes.collect::<Vec<u8>>()).map_err(text)?;
            model.maybe[first..first + count].fill(Some(model.writes));
            requests.push(Request::Write { offset: place(first), len: len(count) });
        }
        self.all(socket, &requests)?;
        for &(first, count) in &stretches {
            for n in first..first + count {
                model.blocks[n] = model.maybe[n].take().unwrap_or_default();
            }
        }
        self.all(socket, &[Request::Flush])?;
        let read = |&(first, count): &(usize, usize)| Request::Read {
            offset: place(first),
            len: len(count),
        };
        self.compare(socket, model, &stretches, read)
    }

    fn compare(
        &mut self,
        socket: &Path,
        model: &mut Model,
        stretches: &[(usize, usize)],
        read: impl Fn(&(usize, usize)) -> Request,
    ) -> std::result::Result<(), Stop> {
        let requests: Vec<Request> = stretches.iter().map(read).collect();
        // What an earlier read has left must not be taken for this one's.
        for slot in 0..requests.len() as u16 {
            self.client.put(0, slot, &vec![0xee; MOST as usize]).map_err(text)?;
        }
        self.all(socket, &requests)?;
        for (slot, &(first, count)) in (0..).zip(stretches) {
            let mut bytes = vec![0; count * BLOCK];
            self.client.get(0, slot, &mut bytes).map_err(text)?;
            model.compare(first, &bytes)?;
        }
        Ok(())
    }

    /// Compares the whole disk.
    fn whole(&mut self, socket: &Path, model: &mut Model) -> std::result::Result<(), Stop> {
        let each = MOST as usize / BLOCK;
        let all: Vec<(usize, usize)> = (0..model.blocks.len())
            .step_by(each)
            .map(|first| (first, each.min(model.blocks.len() - first)))
            .collect();
        let read = |&(first, count): &(usize, usize)| Request::Read {
            offset: (first * BLOCK) as u64,
            len: (count * BLOCK) as u32,
        };
        for some in all.chunks(SLOTS.into()) {
            self.compare(socket, model, some, read)?;
        }
        Ok(())
    }
}

fn verify(socket: &Path, file: &Path) -> Result<()> {
    let end = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&end)).map_err(text)?;
    let mut connection = Connection::new(socket)?;
    let blocks = connection.client.capacity() as usize / BLOCK;
    let before = match fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => vec![0; blocks * BLOCK],
        bytes => bytes.map_err(text)?,
    };
    if before.len() != blocks * BLOCK {
        return Err(format!("{} has {} bytes", file.display(), before.len()));
    }
    let random = before.iter().fold(1, |sum: u64, byte| sum.rotate_left(5) ^ u64::from(*byte));
    let (blocks, maybe) = (vec![0; blocks], vec![None; blocks]);
    let mut model = Model { before, blocks, maybe, writes: 0, random };
    let (mut rounds, mut connections) = (0u64, 1);
    connection.whole(socket, &mut model).map_err(|stop| match stop {
        Stop::Anew => "the daemon is another one already".to_owned(),
        Stop::Error(error) => error,
    })?;
    loop {
        let last = end.load(Ordering::Relaxed);
        let done = match last {
            false => connection.round(socket, &mut model),
            true => connection.whole(socket, &mut model),
        };
        match done {
            Ok(()) if last => break,
            Ok(()) => rounds += 1,
            Err(Stop::Error(error)) => return Err(error),
            Err(Stop::Anew) => {
                connection = loop {
                    let mut connection = Connection::new(socket)?;
                    connections += 1;
                    match connection.whole(socket, &mut model) {
                        Ok(()) => break connection,
                        Err(Stop::Error(error)) => return Err(error),
                        Err(Stop::Anew) => {}
                    }
                };
            }
        }
        println!("round {rounds}");
    }
    let all: Vec<u8> =
        model.blocks.iter().zip(0..).flat_map(|(write, n)| model.bytes(n, *write)).collect();
    fs::write(file, all).map_err(text)?;
    println!("{rounds} rounds, {} writes, {connections} connections", model.writes);
    Ok(())
}
