//! Our own guest's driver on a vhost port: sends any frame and takes what comes.
//!
//! It can also send numbered frames with a pattern and check every byte of what comes back, for the
//! other end being a program that returns frames with their MAC addresses exchanged (dpdk-testpmd in
//! `macswap` mode).

use std::path::Path;
use std::time::{Duration, Instant};

use testkit::driver::{Buffer, DriverQueue, RingSpec, Shape, read, write};
use testkit::frontend::{Frontend, Pages, QueueFds, SharedMemory, feature, protocol};

use crate::process::interrupted;
use crate::{Context, Result, bail, ensure};

/// Descriptors per queue.
const SIZE: u16 = 256;
/// Room of a receive buffer, header and frame.
const ROOM: u32 = 16 << 10;
/// The virtio-net header of a device with `VIRTIO_F_VERSION_1`.
const HEADER: usize = 12;
const RX_RING: u64 = 0x10_0000;
const TX_RING: u64 = 0x20_0000;
const RX_BUFFERS: u64 = 0x100_0000;
const TX_BUFFERS: u64 = 0x200_0000;
const MEMORY: u64 = 0x300_0000;
/// Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 14 + 20 + 8;
/// Ethernet and IP addresses of the two ends.
const OUR_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0xe0];
/// MAC address the other end is expected at.
pub const PEER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0xaa];
/// Longest silence while frames are on their way.
const PATIENCE: Duration = Duration::from_secs(10);

/// One queue and the buffers it works with: each is either free or known by its token.
struct Ring {
    queue: DriverQueue,
    fds: QueueFds,
    free: Vec<u64>,
    by_token: Vec<u64>,
}

impl Ring {
    fn start(
        vm: &mut Frontend,
        memory: &SharedMemory,
        index: u16,
        ring: u64,
        buffers: u64,
    ) -> Result<Self> {
        let queue = DriverQueue::new(memory.guest(), &RingSpec::new(false, SIZE, ring))?;
        let fds = vm.start_queue(index, memory, &queue)?;
        let free = (0..SIZE).map(|i| buffers + u64::from(i) * u64::from(ROOM)).collect();
        Ok(Self { queue, fds, free, by_token: vec![0; usize::from(SIZE)] })
    }

    /// Gives a buffer to the device.
    fn add(&mut self, gpa: u64, len: u32, writable: bool) -> Result<()> {
        let buffer = [Buffer { gpa, len }];
        let (readable, writable): (&[_], &[_]) =
            if writable { (&[], &buffer) } else { (&buffer, &[]) };
        let token = self.queue.add(readable, writable, Shape::Direct);
        let token = token.context(|| "no room in a ring".into())?;
        self.by_token[usize::from(token)] = gpa;
        Ok(())
    }

    fn publish(&mut self) -> Result<()> {
        self.queue.expose();
        if self.queue.kick_needed() {
            self.fds.kick.signal()?;
        }
        Ok(())
    }

    /// Takes a used buffer back: its address and the length written.
    fn collect(&mut self) -> Result<Option<(u64, u32)>> {
        let done = self.queue.collect()?;
        Ok(done.map(|c| (self.by_token[usize::from(c.token)], c.len)))
    }
}

/// Every checksum and TSO feature: CSUM, GUEST_CSUM, GUEST_TSO4 and TSO6, HOST_TSO4 and TSO6.
pub const OFFLOADS: u64 = 0b11 | 0b11 << 7 | 0b11 << 11;

/// A front end with one queue pair, split rings.
pub struct Endpoint {
    memory: SharedMemory,
    rx: Ring,
    tx: Ring,
    next: u32,
    /// Longest time in which nothing came back while frames were on their way.
    pub longest_silence: Duration,
    // Held: closing it would end the session.
    _vm: Frontend,
}

impl Endpoint {
    /// Connects to a port's socket and starts both queues, with these features besides
    /// `VIRTIO_F_VERSION_1`.
    ///
    /// # Errors
    /// What the back end refuses.
    pub fn connect(socket: &Path, features: u64) -> Result<Self> {
        let mut vm = Frontend::connect(socket)?;
        vm.negotiate(feature::VERSION_1 | features, protocol::REPLY_ACK)?;
        let memory = SharedMemory::new(&[(0, MEMORY)], Pages::Small)?;
        vm.set_mem_table(&memory)?;
        let mut rx = Ring::start(&mut vm, &memory, 0, RX_RING, RX_BUFFERS)?;
        let tx = Ring::start(&mut vm, &memory, 1, TX_RING, TX_BUFFERS)?;
        while let Some(gpa) = rx.free.pop() {
            rx.add(gpa, ROOM, true)?;
        }
        rx.publish()?;
        Ok(Self { memory, rx, tx, next: 0, longest_silence: Duration::ZERO, _vm: vm })
    }

    /// Sends `count` frames of `size` bytes (64 to 9014, Ethernet header included), at most
    /// `window` on their way at a time, and waits until each came back once, unchanged but for the
    /// MAC addresses.
    ///
    /// # Errors
    /// When one comes back changed, twice or not within ten seconds.
    pub fn round(&mut self, count: u32, size: usize, window: u32) -> Result<()> {
        let (first, end) = (self.next, self.next + count);
        self.next = end;
        let mut came = vec![false; count as usize];
        let (mut sent, mut back) = (first, 0);
        let mut heard = Instant::now();
        while back < count {
            while sent < end && sent - first - back < window {
                if !self.send(sent, size)? {
                    break;
                }
                sent += 1;
            }
            self.tx.publish()?;
            let mut got = 0;
            while let Some(n) = self.receive(first, end, size)? {
                let seen = &mut came[(n - first) as usize];
                ensure!(!*seen, "frame {n} of {size} bytes came back twice");
                *seen = true;
                got += 1;
            }
            self.rx.publish()?;
            back += got;
            if got > 0 {
                self.longest_silence = self.longest_silence.max(heard.elapsed());
                heard = Instant::now();
            } else if heard.elapsed() > PATIENCE {
                let missing = came.iter().filter(|&&c| !c).count();
                bail!("{missing} of {count} frames of {size} bytes did not come back");
            } else if interrupted() {
                bail!("interrupted");
            } else {
                // The other two parties want the CPUs.
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        Ok(())
    }

    fn send(&mut self, n: u32, size: usize) -> Result<bool> {
        self.put(&[0; HEADER], &frame(n, size))
    }

    /// Puts a frame with its virtio-net header, both together at most 16 KiB, into the ring; false
    /// if that is full. [`Endpoint::flush`] follows.
    ///
    /// # Errors
    /// What the device did wrong.
    pub fn put(&mut self, header: &[u8; HEADER], frame: &[u8]) -> Result<bool> {
        while let Some((gpa, _)) = self.tx.collect()? {
            self.tx.free.push(gpa);
        }
        let Some(gpa) = self.tx.free.pop() else { return Ok(false) };
        let mut bytes = header.to_vec();
        bytes.extend_from_slice(frame);
        ensure!(bytes.len() <= ROOM as usize, "a frame of {} bytes", frame.len());
        ensure!(write(self.memory.guest(), gpa, &bytes), "no memory at {gpa:#x}");
        self.tx.add(gpa, u32::try_from(bytes.len())?, false)?;
        Ok(true)
    }

    /// Shows the device what was put, and gives it buffers to receive.
    ///
    /// # Errors
    /// When it cannot be kicked.
    pub fn flush(&mut self) -> Result<()> {
        self.tx.publish()?;
        self.rx.publish()
    }

    /// The next frame that came, with its virtio-net header.
    ///
    /// # Errors
    /// What the device did wrong.
    pub fn take(&mut self) -> Result<Option<([u8; HEADER], Vec<u8>)>> {
        let Some((gpa, len)) = self.rx.collect()? else { return Ok(None) };
        let bytes = read(self.memory.guest(), gpa, len).context(|| format!("length {len}"))?;
        self.rx.add(gpa, ROOM, true)?;
        let header = bytes.first_chunk().context(|| format!("a frame of {len} bytes"))?;
        Ok(Some((*header, bytes[HEADER..].to_vec())))
    }

    /// The number of the next frame that came back, checked. Frames that are not for us (floods
    /// while addresses are being learned) are passed over.
    fn receive(&mut self, first: u32, end: u32, size: usize) -> Result<Option<u32>> {
        while let Some((_, got)) = self.take()? {
            if got.get(..6) != Some(&OUR_MAC) {
                continue;
            }
            let number = got.get(HEADERS..HEADERS + 4).and_then(|b| b.first_chunk::<4>());
            let n = u32::from_be_bytes(*number.context(|| format!("short frame {got:02x?}"))?);
            ensure!((first..end).contains(&n), "frame {n} came back, {first} to {end} were sent");
            let mut want = frame(n, size);
            let (to, from) = want.split_at_mut(6);
            to.swap_with_slice(&mut from[..6]);
            if got != want {
                let at = got.iter().zip(&want).position(|(a, b)| a != b);
                bail!(
                    "frame {n} came back changed: {} bytes of {size}, first difference at {at:?}",
                    got.len()
                );
            }
            return Ok(Some(n));
        }
        Ok(None)
    }
}

/// Frame `n`: UDP in IPv4 (so that the switch sees flows: the source port changes), its number, then
/// bytes that follow from the number.
fn frame(n: u32, size: usize) -> Vec<u8> {
    let mut f = Vec::with_capacity(size);
    f.extend_from_slice(&PEER_MAC);
    f.extend_from_slice(&OUR_MAC);
    f.extend_from_slice(&[0x08, 0x00]);
    let total = u16::try_from(size - 14).unwrap_or(u16::MAX);
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let sum: u32 = ip.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(0);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    f.extend_from_slice(&ip);
    let port = 10_000 + u16::try_from(n % 64).unwrap_or(0);
    for field in [port, 9, total - 20, 0] {
        f.extend_from_slice(&field.to_be_bytes());
    }
    f.extend_from_slice(&n.to_be_bytes());
    let mut state = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while f.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        f.extend_from_slice(&state.to_be_bytes());
    }
    f.truncate(size);
    f
}
