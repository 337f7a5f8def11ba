//! Two honest VMs that exchange numbered frames in the background and must not miss one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::frames::{Mac, eth};
use super::vm::Vm;
use super::{PATIENCE, Rng};

/// First bytes of the payload of a numbered frame.
const TAG: &[u8; 4] = b"duo ";
/// Frames on the way one way, at most.
const WINDOW: u64 = 64;

/// The payload of frame `number` from `src`.
pub(crate) fn numbered(number: u64, src: Mac, len: usize) -> Vec<u8> {
    let mut payload = TAG.to_vec();
    payload.extend_from_slice(&number.to_be_bytes());
    let seed = number ^ u64::from(src[5]) << 56;
    payload.extend_from_slice(&Rng::new(seed).bytes(len.max(12) - 12));
    payload
}

/// The number of a numbered frame from `src`, whose every byte was checked; `None`: another frame.
pub(crate) fn number(frame: &[u8], dst: Mac, src: Mac) -> Option<u64> {
    let payload = frame.get(14..)?;
    let rest = payload.strip_prefix(TAG)?;
    if frame[6..12] != src {
        return None;
    }
    let number = u64::from_be_bytes(*rest.first_chunk()?);
    let expected = eth(dst, src, &numbered(number, src, payload.len()));
    assert!(frame == expected, "frame {number} of {src:x?} was changed on the way");
    Some(number)
}

/// One way of the exchange.
#[derive(Default)]
struct Way {
    sent: u64,
    received: u64,
}

/// The running exchange.
pub(crate) struct Duo {
    stop: Arc<AtomicBool>,
    exchanged: Arc<AtomicU64>,
    thread: JoinHandle<(Vm, Vm)>,
}

impl Duo {
    /// Starts it between two VMs with these addresses.
    pub(crate) fn start(mut a: Vm, mut b: Vm, macs: [Mac; 2]) -> Duo {
        let (stop, exchanged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&exchanged));
        let thread = thread::Builder::new().name("duo".into()).spawn(move || {
            let mut ways = [Way::default(), Way::default()];
            let mut rng = Rng::new(2);
            let mut silence = std::time::Instant::now();
            loop {
                let stopping = stopped.load(Ordering::Relaxed);
                let before = ways[0].received + ways[1].received;
                let [there, back] = &mut ways;
                step(&mut a, &mut b, macs, there, &mut rng, stopping);
                step(&mut b, &mut a, [macs[1], macs[0]], back, &mut rng, stopping);
                let after = ways[0].received + ways[1].received;
                count.store(after, Ordering::Relaxed);
                if ways.iter().all(|way| way.received == way.sent) {
                    if stopping {
                        return (a, b);
                    }
                    silence = std::time::Instant::now();
                } else if after != before {
                    silence = std::time::Instant::now();
                }
                let lost = ways.each_ref().map(|way| way.sent - way.received);
                assert!(silence.elapsed() < PATIENCE, "frames never arrived: {lost:?}");
                thread::sleep(Duration::from_micros(200));
            }
        });
        Duo { stop, exchanged, thread: thread.unwrap() }
    }

    /// Frames that have arrived so far.
    pub(crate) fn exchanged(&self) -> u64 {
        assert!(!self.thread.is_finished(), "the honest exchange failed");
        self.exchanged.load(Ordering::Relaxed)
    }

    /// Waits until so many more frames have arrived.
    pub(crate) fn wait_for_more(&self, frames: u64) {
        let goal = self.exchanged() + frames;
        super::wait(|| "honest frames".into(), || self.exchanged() >= goal);
    }

    /// Ends it: every frame sent has arrived, in order and unchanged.
    pub(crate) fn finish(self) -> (Vm, Vm, u64) {
        self.stop.store(true, Ordering::Relaxed);
        let (a, b) = self.thread.join().expect("the honest exchange");
        (a, b, self.exchanged.load(Ordering::Relaxed))
    }
}

/// Sends a few frames one way and looks at what arrived.
fn step(
    from: &mut Vm,
    to: &mut Vm,
    [src, dst]: [Mac; 2],
    way: &mut Way,
    rng: &mut Rng,
    stopping: bool,
) {
    if !stopping {
        for _ in 0..rng.below(8).min(WINDOW - (way.sent - way.received)) {
            let len = rng.range(46, 1500);
            from.send(&eth(dst, src, &numbered(way.sent, src, len)));
            way.sent += 1;
        }
    }
    from.poll();
    to.poll();
    for received in to.inbox.drain(..) {
        if let Some(number) = number(&received.frame, dst, src) {
            assert_eq!(number, way.received, "the next frame of {src:x?} to {dst:x?}");
            way.received += 1;
        }
    }
}
