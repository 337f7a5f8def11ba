//! Real workers, mailboxes and places, played by hand: every order of a worker's looks into its
//! mailbox, with queues that start, stop, change and move meanwhile.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::time::Duration;

use guestmem::GuestMemory;
use packet::Offloads;
use proptest::collection::vec;
use proptest::prelude::*;
use switch::{PortId, Switch};
use sys::EventFd;
use testkit::frontend::{Pages, SharedMemory};
use tokio::sync::{mpsc, oneshot};
use virtqueue::{Journal, Queue, QueueConfig};

use super::{TxCommand, TxId, TxQueue};
use crate::clock::Clock;
use crate::homes::{Homes, Workers};
use crate::port::vhost::VhostPort;
use crate::port::vhost::tx::LiveTx;
use crate::port::{Kind, Port};
use crate::worker::sleep::Token;
use crate::worker::{Shared, Worker};

const WORKERS: u16 = 3;
const QUEUES: u16 = 2;

/// What happens next.
#[derive(Debug, Clone)]
enum Event {
    /// A worker looks into its mailbox.
    Look(u16),
    Start(u16),
    Stop(u16),
    Move(u16, u16),
    /// The operator's choice.
    Pin(u16, Option<u16>),
    SetEnabled(u16, bool),
    SetCall(u16),
}

fn event() -> impl Strategy<Value = Event> {
    let (worker, queue) = (0..WORKERS, 0..QUEUES);
    prop_oneof![
        6 => worker.clone().prop_map(Event::Look),
        2 => queue.clone().prop_map(Event::Start),
        2 => queue.clone().prop_map(Event::Stop),
        5 => (queue.clone(), worker.clone()).prop_map(|(queue, to)| Event::Move(queue, to)),
        1 => (queue.clone(), proptest::option::of(worker)).prop_map(|(queue, to)| Event::Pin(queue, to)),
        2 => (queue.clone(), any::<bool>()).prop_map(|(queue, on)| Event::SetEnabled(queue, on)),
        2 => queue.prop_map(Event::SetCall),
    ]
}

/// What a queue must look like when it stops.
#[derive(Debug, Clone)]
struct Expected {
    /// Which start it was.
    number: usize,
    enabled: bool,
    call: Arc<EventFd>,
}

/// A stop and what has to come of it.
type Stopping = (oneshot::Receiver<Option<TxQueue>>, Option<Expected>);

struct Table {
    workers: Vec<Worker>,
    shared: Arc<Workers>,
    port: Arc<Port>,
    mem: Arc<GuestMemory>,
    running: [Option<Expected>; QUEUES as usize],
    stopping: Vec<Stopping>,
    settling: Vec<oneshot::Receiver<()>>,
    starts: usize,
}

/// For disks, of which there are none here.
fn runtime() -> tokio::runtime::Handle {
    static RUNTIME: std::sync::OnceLock<tokio::runtime::Runtime> = std::sync::OnceLock::new();
    let build = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    RUNTIME.get_or_init(build).handle().clone()
}

impl Table {
    fn new() -> Table {
        let (switch, clock) = (Switch::new(), Clock::start());
        let shared: Vec<_> =
            (0..WORKERS).map(|id| Arc::new(Shared::new(id, None, None).unwrap())).collect();
        let worker = |shared: &Arc<Shared>| {
            let polling = pace::Profile::default();
            Worker::new(Arc::clone(shared), &switch, polling, clock, runtime()).unwrap()
        };
        let workers = shared.iter().map(worker).collect();
        let shared = Arc::new(Workers::new(shared));
        let homes = Homes::new(&shared, QUEUES.into(), None);
        let kind =
            Kind::Vhost(VhostPort::new(QUEUES, pace::Moderation::Off, mpsc::unbounded_channel().0));
        let port = Port::new(PortId(3), "port".into(), homes, QUEUES.into(), kind);
        let mem = SharedMemory::new(&[(0, 4 * 4096)], Pages::Small).unwrap();
        let (port, mem) = (Arc::new(port), Arc::clone(mem.guest()));
        let (running, stopping, settling) = ([None, None], Vec::new(), Vec::new());
        Table { workers, shared, port, mem, running, stopping, settling, starts: 0 }
    }

    fn id(&self, index: u16) -> TxId {
        TxId { port: self.port.id, index }
    }

    fn happen(&mut self, event: &Event) {
        let (homes, shared) = (&self.port.homes, &self.shared);
        match *event {
            Event::Look(worker) => self.workers[usize::from(worker)].obey(),
            Event::Start(index) if self.running[usize::from(index)].is_none() => self.start(index),
            // As a session does, one starts after the other has stopped.
            Event::Start(_) => {}
            Event::Stop(index) => {
                let stopped = homes.stop(shared, self.id(index));
                let expected = self.running[usize::from(index)].take();
                self.stopping.push((stopped, expected));
            }
            Event::Move(index, to) => {
                homes.move_to(shared, self.id(index), to);
            }
            Event::Pin(index, to) => self.settling.push(homes.pin(shared, self.id(index), to)),
            Event::SetEnabled(index, on) => {
                homes.post(shared, self.id(index), TxCommand::SetEnabled(on));
                if let Some(queue) = &mut self.running[usize::from(index)] {
                    queue.enabled = on;
                }
            }
            Event::SetCall(index) => {
                let call = Arc::new(EventFd::new().unwrap());
                let new = TxCommand::SetCall(Some(Arc::clone(&call)));
                homes.post(shared, self.id(index), new);
                if let Some(queue) = &mut self.running[usize::from(index)] {
                    queue.call = call;
                }
            }
        }
        self.check_holders();
    }

    fn start(&mut self, index: u16) {
        let config = QueueConfig {
            size: 16,
            packed: false,
            event_idx: false,
            indirect: false,
            in_order: false,
            desc: 0,
            avail: 4096,
            used: 8192,
            base: 0,
        };
        let queue = Queue::resume(&self.mem, &config, Journal::private(), 0).unwrap();
        let call = Arc::new(EventFd::new().unwrap());
        self.starts += 1;
        let live = LiveTx {
            port: Arc::clone(&self.port),
            index,
            queue,
            mem: Arc::clone(&self.mem),
            // Stands for the queue's identity: no frame is sent here.
            vnet_len: self.starts,
            offloads: Offloads::NONE,
            kick: Some(Arc::new(EventFd::new().unwrap())),
            call: Some(Arc::clone(&call)),
            enabled: false,
            armed: true,
            faulted: false,
            toward: None,
        };
        let expected = Expected { number: self.starts, enabled: false, call };
        self.running[usize::from(index)] = Some(expected);
        let queue = TxQueue::Vhost(Box::new(live));
        self.port.homes.start(&self.shared, self.id(index), queue, None);
    }

    /// No queue is at two workers, and none that has stopped is anywhere.
    fn check_holders(&self) {
        for index in 0..QUEUES {
            let held: Vec<_> = self.held(index).map(|(_, queue)| queue.vnet_len).collect();
            assert!(held.len() <= 1, "queue {index} is at {} workers", held.len());
        }
    }

    fn held(&self, index: u16) -> impl Iterator<Item = (u16, &LiveTx)> {
        let queues = (0u16..).zip(&self.workers);
        queues
            .flat_map(|(at, worker)| worker.tx.iter().map(move |queue| (at, queue)))
            .filter(move |(_, queue)| queue.index == index)
    }

    /// Lets everything come to rest.
    fn settle(&mut self) {
        while self.shared.iter().any(|worker| worker.mailbox.pending()) {
            self.workers.iter_mut().for_each(Worker::obey);
        }
    }

    /// Everything that was asked has been done, once and in order.
    fn check(&mut self) {
        for (mut stopped, expected) in self.stopping.drain(..) {
            let queue = stopped.try_recv().expect("every stop is answered");
            let got = queue.map(|queue| match queue {
                TxQueue::Vhost(live) => *live,
                TxQueue::Tap(_) => panic!("a TAP queue"),
            });
            same(got.as_ref(), expected.as_ref());
        }
        assert!(self.settling.drain(..).all(|mut settled| settled.try_recv().is_ok()));
        for index in 0..QUEUES {
            let home = self.port.homes.get(index).unwrap();
            let expected = self.running[usize::from(index)].as_ref();
            let held: Vec<_> = self.held(index).collect();
            same(held.first().map(|(_, queue)| *queue), expected);
            assert!(held.iter().all(|(at, _)| *at == home.worker), "it is where control says");
            assert_eq!(home.running, expected.is_some());
        }
        for worker in self.shared.iter() {
            let places = (0..QUEUES).filter_map(|index| self.port.homes.get(index));
            let mine = places.filter(|home| home.running && home.worker == worker.id).count();
            assert_eq!(worker.assigned.load(super::super::Relaxed) as usize, mine);
            assert_eq!(worker.queues.lock().len(), mine, "what is shown");
        }
        self.check_kicks();
    }

    /// A kick wakes the worker that holds the queue, and nobody else.
    fn check_kicks(&mut self) {
        let heard = |worker: &mut Worker| -> Vec<Token> {
            worker.bed.wait(Some(Duration::ZERO)).filter(|token| *token != Token::Mailbox).collect()
        };
        self.workers.iter_mut().for_each(|worker| drop(heard(worker)));
        for index in 0..QUEUES {
            let Some((at, queue)) = self.held(index).next() else { continue };
            queue.kick.as_ref().unwrap().signal().unwrap();
            let token = Token::Kick(self.port.id, index);
            for (worker, id) in self.workers.iter_mut().zip(0u16..) {
                let expected = if id == at { vec![token] } else { vec![] };
                assert_eq!(heard(worker), expected, "worker {id}");
            }
        }
    }
}

fn same(got: Option<&LiveTx>, expected: Option<&Expected>) {
    match (got, expected) {
        (None, None) => {}
        (Some(got), Some(expected)) => {
            assert_eq!(got.vnet_len, expected.number, "which start");
            assert_eq!(got.enabled, expected.enabled);
            assert!(Arc::ptr_eq(got.call.as_ref().unwrap(), &expected.call), "the last descriptor");
        }
        (got, expected) => panic!("{got:?} instead of {expected:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever the order: each command reaches the queue it is for, once and in its turn, and a
    /// queue is never at two workers.
    #[test]
    fn a_move_loses_no_command(events in vec(event(), 1..120)) {
        let mut table = Table::new();
        for event in &events {
            table.happen(event);
        }
        table.settle();
        table.check();
        // The port goes.
        table.port.homes.close();
        for index in 0..QUEUES {
            prop_assert!(!table.port.homes.move_to(&table.shared, table.id(index), 0));
            table.happen(&Event::Stop(index));
        }
        table.settle();
        table.check();
        prop_assert!(table.workers.iter().all(|worker| worker.arrivals.0.is_empty()));
    }
}
