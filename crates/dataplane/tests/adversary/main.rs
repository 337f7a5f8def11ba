//! Guests and front ends that mean harm, while honest ones exchange numbered frames.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod attacks;
#[path = "../common/mod.rs"]
mod common;
mod liar;
mod lies;

use attacks::{ATTACKS, Attack, End};
use common::duo::Duo;
use common::frames::{BROADCAST, Mac, eth, mac};
use common::plane::{Plane, panics};
use common::process::{Holdings, alone};
use common::vm::{Guest, Vm};
use common::wait;
use dataplane::{PortId, PortState, PortStatus, VlanMode};
use liar::{Liar, Options};
use lies::{By, Fate, Lie, On};
use virtqueue::GuestFault;

/// Rounds of the whole test.
const ROUNDS: usize = 1000;
/// Ports that liars come to, by turns: each takes only so many sessions a second.
const LIARS: usize = 8;
/// The VLANs of the honest and of the others.
const HONEST: u16 = 10;
const LYING: u16 = 20;

/// One case: a lie told in one way, or an attack.
#[derive(Clone, Copy)]
enum Case {
    Lie { lie: &'static Lie, packed: bool, rx: bool },
    Attack { attack: &'static Attack, packed: bool },
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Case::Lie { lie, packed, rx } => {
                let ring = if *packed { "packed" } else { "split" };
                write!(f, "{} ({ring} {})", lie.name, if *rx { "RX" } else { "TX" })
            }
            Case::Attack { attack, packed } => write!(f, "{} ({packed})", attack.name),
        }
    }
}

/// Every lie on every ring and queue that can tell it, and every attack.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for packed in [false, true] {
        for lie in lies::all() {
            if lie.on == if packed { On::Split } else { On::Packed } {
                continue;
            }
            for rx in [false, true] {
                if lie.by != if rx { By::Tx } else { By::Rx } {
                    cases.push(Case::Lie { lie, packed, rx });
                }
            }
        }
        cases.extend(ATTACKS.iter().map(|attack| Case::Attack { attack, packed }));
    }
    cases
}

/// The data plane with its honest and its dishonest ports.
struct Scene {
    plane: Plane,
    /// Sends what liars are to receive, and hears what they send.
    feeder: Vm,
    liars: Vec<(String, PortId)>,
}

impl Scene {
    /// One network, one MAC table, one worker; but what liars broadcast fills no honest ring.
    fn new(guest: &Guest) -> Scene {
        let plane = Plane::new();
        port(&plane, "feeder", LYING);
        let feeder = plane.connect("feeder", guest);
        let names = (0..LIARS).map(|n| format!("liar{n}"));
        let liars = names.map(|name| (name.clone(), port(&plane, &name, LYING))).collect();
        Scene { plane, feeder, liars }
    }

    fn play(&mut self, round: usize, case: Case) {
        let (name, port) = self.liars[round % LIARS].clone();
        let before = self.plane.status(port).sessions;
        match case {
            Case::Lie { lie, packed, rx } => self.lie(&name, port, lie, packed, rx),
            Case::Attack { attack, packed } => self.attack(&name, port, attack, packed),
        }
        let over = || {
            let status = self.plane.status(port);
            status.sessions == before + 1
                && matches!(status.state, PortState::Waiting | PortState::Faulted { .. })
        };
        wait(|| format!("{case:?} is over: {:#?}", self.plane.status(port)), over);
    }

    fn connect(&self, name: &str, port: PortId, lie: &Lie, packed: bool) -> Liar {
        let mut options = Options { packed, indirect: true, event_idx: false, mergeable: true };
        (lie.with)(&mut options);
        Liar::connect(&self.plane.socket(name), options, liar_mac(port))
    }

    fn lie(&mut self, name: &str, port: PortId, lie: &'static Lie, packed: bool, rx: bool) {
        let case = Case::Lie { lie, packed, rx };
        let mut liar = self.connect(name, port, lie, packed);
        let told = usize::from(!rx);
        if lie.early {
            (lie.tell)(&liar.rings[told]);
        }
        // The session may end before the last queue has been started.
        if let Err(error) = liar.start() {
            assert!(lie.early, "{case:?}: {error}");
        }
        // From here on the worker has both queues and the switch the link: one kick and one frame
        // are enough.
        self.plane.barrier();
        if !lie.early {
            (lie.tell)(&liar.rings[told]);
        }
        liar.rings[told].kick();
        self.feed();
        match lie.fate {
            Fate::Ends(fault) => self.ends(liar, port, fault, case),
            Fate::Lives => {
                self.plane.barrier();
                let Scene { feeder, .. } = self;
                liar.repent(|| feed(feeder)).unwrap_or_else(|error| {
                    panic!("{case:?}: {error}: {:#?}", self.plane.status(port));
                });
                assert_eq!(self.plane.status(port).state, PortState::Running, "{case:?}");
            }
            Fate::Either => {
                let Scene { feeder, .. } = self;
                if liar.repent(|| feed(feeder)).is_err() {
                    let known = |name: &str| GuestFault::NAMES.contains(&name);
                    self.expect_fault(port, known, case);
                }
            }
        }
    }

    /// The session ends without anything more.
    fn ends(&self, mut liar: Liar, port: PortId, fault: &str, case: Case) {
        liar.frontend.wait_closed().unwrap_or_else(|error| {
            panic!("{case:?}: {error}: {:#?}", self.plane.status(port));
        });
        self.expect_fault(port, |name| name == fault, case);
    }

    fn attack(&mut self, name: &str, port: PortId, attack: &'static Attack, packed: bool) {
        let options = Options { packed, indirect: true, event_idx: false, mergeable: true };
        let socket = self.plane.socket(name);
        let Scene { feeder, .. } = self;
        let end = (attack.run)(&socket, options, liar_mac(port), &mut || feed(feeder));
        let case = Case::Attack { attack, packed };
        match end {
            End::Left => {}
            End::Fault(fault) => self.expect_fault(port, |name| name == fault, case),
            End::Device(fault) => self.expect_fault(port, |name| name == fault, case),
        }
    }

    /// The session has ended under a name.
    fn expect_fault(&self, port: PortId, is: impl Fn(&str) -> bool, case: Case) {
        let faulted = || matches!(self.plane.status(port).state, PortState::Faulted { .. });
        wait(|| format!("{case:?} ends: {:#?}", self.plane.status(port)), faulted);
        let PortStatus { state: PortState::Faulted { reason }, last_fault: Some(last), .. } =
            self.plane.status(port)
        else {
            panic!("{case:?}: {:#?}", self.plane.status(port))
        };
        let (kind, rest) = last.split_once(": ").unwrap();
        assert_eq!(rest, reason, "{case:?}");
        // What the guest did is named in front of its sentence, what the front end did is the kind.
        let name = match kind {
            "device-fault" => rest.split_once(": ").unwrap().0,
            kind => kind,
        };
        assert!(is(name), "{case:?} ended as {last:?}");
    }

    /// Something for everybody.
    fn feed(&mut self) {
        feed(&mut self.feeder);
    }
}

fn feed(feeder: &mut Vm) {
    feeder.send(&eth(BROADCAST, mac(2), &[0x22; 46]));
    feeder.poll();
    feeder.inbox.clear();
}

fn liar_mac(port: PortId) -> Mac {
    mac(1000 + u32::from(port.0))
}

/// A port in a VLAN.
fn port(plane: &Plane, name: &str, vlan: u16) -> PortId {
    plane.port_with(name, |spec, _| spec.vlan = VlanMode::Access(vlan))
}

/// A thousand rounds of lies and attacks: each ends as the tables say, the honest miss nothing,
/// and nothing is left of any of them.
#[test]
fn a_thousand_rounds_of_lies_cost_nobody_else_a_frame() {
    let _alone = alone();
    let names: std::collections::HashSet<&str> = lies::all().map(|lie| lie.name).collect();
    assert!(names.len() >= 40 && names.len() == lies::all().count(), "{} lies", names.len());

    let guest = Guest { rx_buffers: 512, ring: 512, ..Guest::plain() };
    let mut scene = Scene::new(&guest);
    let honest = |name: &str, guest: &Guest| {
        port(&scene.plane, name, HONEST);
        scene.plane.connect(name, guest)
    };
    let a = honest("a", &guest);
    let b = honest("b", &Guest { packed: true, event_idx: true, ..guest.clone() });
    let duo = Duo::start(a, b, [mac(0), mac(1)]);
    duo.wait_for_more(100);

    let (cases, fresh) = (cases(), Holdings::now());
    let all_closed = || {
        let open = || Holdings::now().descriptors;
        wait(|| format!("{} descriptors, not {fresh:?}", open()), || open() == fresh.descriptors);
        Holdings::now()
    };
    // The first time round memory is set up that stays.
    let mut start = None;
    for round in 0..ROUNDS.max(2 * cases.len()) {
        scene.play(round, cases[round % cases.len()]);
        assert!(duo.exchanged() > 0);
        if round + 1 == cases.len() {
            start = Some(all_closed());
        }
    }
    let (start, end) = (start.unwrap(), all_closed());
    assert_eq!(end.threads, fresh.threads);
    assert!(end.mappings <= start.mappings + 4, "{start:?}, then {end:?}");
    assert!(end.resident <= start.resident + (8 << 10), "{start:?}, then {end:?}");
    duo.wait_for_more(100);
    let (_a, _b, exchanged) = duo.finish();
    println!("{} cases, {exchanged} honest frames, {end:?}", cases.len());

    // The data plane still forwards, and to the last liar's port too.
    let mut vm = scene.plane.connect("liar0", &Guest::plain());
    let frame = eth(mac(2), mac(50), b"nothing happened");
    scene.feeder.poll();
    vm.send(&frame);
    scene.feeder.hear(&frame);
    assert_eq!(panics(), 0);
    scene.plane.end();
}

/// Lies told to a worker that sleeps, and that nobody else wakes: by one kick, or one frame for the
/// liar, the device looks and finds out.
#[test]
fn one_kick_wakes_a_worker_to_a_lie() {
    let _alone = alone();
    let mut scene = Scene::new(&Guest::plain());
    for (round, case) in cases().into_iter().enumerate() {
        let Case::Lie { lie, packed, rx } = case else { continue };
        let Fate::Ends(fault) = lie.fate else { continue };
        if lie.early {
            continue;
        }
        let (name, port) = scene.liars[round % LIARS].clone();
        let mut liar = scene.connect(&name, port, lie, packed);
        liar.start().unwrap();
        scene.plane.barrier();
        scene.plane.wait_asleep();
        let ring = &liar.rings[usize::from(!rx)];
        (lie.tell)(ring);
        if rx {
            scene.feed();
        } else {
            ring.kick();
        }
        scene.ends(liar, port, fault, case);
    }
    scene.plane.end();
}
