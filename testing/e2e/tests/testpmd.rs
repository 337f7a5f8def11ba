//! Proves interoperability with dpdk-testpmd as a guest (virtio-user): split and packed rings,
//! mergeable receive buffers or not, in order or not, 1, 2 and 4 queue pairs, frames of 64 to 9000
//! bytes. A front end of ours sends numbered frames with a pattern through hayate to testpmd, which
//! sends them back; every byte is compared, and every frame is accounted for by the counters.

use std::process::ExitCode;
use std::time::Duration;

use api::PortState;
use e2e::endpoint::Endpoint;
use e2e::hayate::Hayate;
use e2e::suite::{Case, case, main as run};
use e2e::testpmd::{Testpmd, VirtioUser};
use e2e::{Result, bail, cpu, ensure};

/// Frame sizes in bytes with the Ethernet header: the smallest, around the usual limits, jumbo.
const SIZES: [usize; 13] = [64, 65, 127, 128, 129, 256, 512, 1024, 1514, 1518, 2048, 4096, 9000];
/// Frames of each size. With 64 flows each queue gets some.
const COUNT: u32 = 256;
/// Bytes on their way at a time. No queue of testpmd overflows: 256 buffers of 2 KiB hold them
/// twice, so no frame may be lost.
const WINDOW: usize = 256 << 10;

#[derive(Clone, Copy)]
struct Combination {
    packed: bool,
    mergeable: bool,
    in_order: bool,
    queues: u16,
}

impl Combination {
    fn all() -> impl Iterator<Item = Self> {
        [false, true].into_iter().flat_map(|packed| {
            [true, false].into_iter().flat_map(move |mergeable| {
                [false, true].into_iter().flat_map(move |in_order| {
                    [1, 2, 4].map(|queues| Self { packed, mergeable, in_order, queues })
                })
            })
        })
    }

    fn name(self) -> String {
        format!(
            "{}::mergeable_{}::in_order_{}::queues_{}",
            if self.packed { "packed" } else { "split" },
            if self.mergeable { "on" } else { "off" },
            if self.in_order { "on" } else { "off" },
            self.queues
        )
    }

    fn run(self, hayate: &mut Hayate) -> Result<String> {
        let network = "interop";
        hayate.network(network)?;
        let ours = hayate.vhost("endpoint", network, "")?;
        let socket = hayate.vhost("testpmd", network, "")?;
        let result = self.exchange(hayate, network, &ours, socket);
        // The next combination starts from nothing, whatever happened to this one.
        for port in ["endpoint", "testpmd"] {
            hayate.cli(&format!("port del {port}"))?;
        }
        hayate.cli(&format!("network del {network}"))?;
        result
    }

    fn exchange(
        self,
        hayate: &Hayate,
        network: &str,
        ours: &std::path::Path,
        socket: std::path::PathBuf,
    ) -> Result<String> {
        let mut testpmd = Testpmd::reflector(&VirtioUser {
            socket,
            mac: "02:00:00:00:00:aa".into(),
            queues: self.queues,
            packed: self.packed,
            mergeable: self.mergeable,
            in_order: self.in_order,
            size: 256,
        })?;
        let mut endpoint = Endpoint::connect(ours, 0)?;
        let port = hayate.wait_state("testpmd", PortState::Running)?;
        let has = |f: &str| port.features.iter().any(|n| n == f);
        ensure!(has("ring_packed") == self.packed, "negotiated {:?}", port.features);
        ensure!(has("mrg_rxbuf") == self.mergeable, "negotiated {:?}", port.features);
        ensure!(has("in_order") == self.in_order, "negotiated {:?}", port.features);
        // Both addresses are learned: from here on nothing is flooded.
        endpoint.round(1, 64, 1)?;
        let before = [cpu::waited(testpmd.pid())?, cpu::waited(hayate.pid()?)?];
        for size in SIZES {
            let window = u32::try_from((WINDOW / size.next_multiple_of(2048)).min(48))?;
            if let Err(e) = endpoint.round(COUNT, size, window) {
                let counters = hayate.counters(network)?;
                let workers = hayate.cli("worker list")?;
                let ports = hayate.ports()?;
                let queues: Vec<_> = ports.iter().flat_map(|p| &p.queues).collect();
                bail!(
                    "{e}\n{counters}{workers}{queues:?}\ntestpmd: {}\nwaited for a CPU: testpmd {:?}, hayate {:?}",
                    testpmd.statistics()?,
                    cpu::waited(testpmd.pid())? - before[0],
                    cpu::waited(hayate.pid()?)? - before[1]
                );
            }
        }
        let b = hayate.conserved(network)?;
        let port = hayate.port("testpmd")?;
        let used = |dir: &str| port.queues.iter().filter(|q| q.dir == dir && q.frames > 0).count();
        if self.queues > 1 {
            ensure!(used("rx") > 1, "64 flows went to one receive queue: {:?}", port.queues);
        }
        ensure!(b.dropped == 0, "frames were dropped:\n{}", hayate.counters(network)?);
        // A stall may be the machine's fault: then one of the two waited for a CPU meanwhile.
        let mut stalled = String::new();
        let silence = endpoint.longest_silence;
        if silence > Duration::from_secs(1) {
            let waited = [cpu::waited(testpmd.pid())?, cpu::waited(hayate.pid()?)?];
            stalled = format!(
                "; nothing came for {:.1} s (CPU waited for: testpmd {:.1} s, hayate {:.1} s)",
                silence.as_secs_f64(),
                (waited[0] - before[0]).as_secs_f64(),
                (waited[1] - before[1]).as_secs_f64()
            );
        }
        drop(testpmd);
        Ok(format!(
            "{} sizes x {COUNT} frames intact; in {} + copies {} = out {} + drops {}; queues used rx {} tx {}{stalled}",
            SIZES.len(),
            b.entered,
            b.copies,
            b.left,
            b.dropped,
            used("rx"),
            used("tx")
        ))
    }
}

fn main() -> ExitCode {
    run(|suite| {
        let cases: Vec<Case<Hayate>> = Combination::all()
            .map(|c| case(c.name(), move |hayate: &mut Hayate| c.run(hayate)))
            .collect();
        suite.group(
            "testpmd",
            || Hayate::start(&[]),
            cases,
            |hayate| {
                hayate.stop()?;
                Ok("24 sessions of a front end we did not write, no panic".into())
            },
        );
    })
}
