//! One vhost-user connection as a state machine: bytes and descriptors in, actions out.
//!
//! The host reads at most [`wanted`](Session::wanted) bytes from the socket, gives them to [`input`](Session::input) and
//! carries out what [`poll`](Session::poll) says, in order, until it says nothing more.  Some actions need an answer:
//! [`Action::Map`], [`Action::Stop`], [`Action::MakeInflight`], [`Action::ReadConfig`] and [`Action::WriteConfig`].  Never
//! more than one of them is outstanding, and nothing else happens before it is answered.
//!
//! **Rings.** A ring is *kicked* by SET_VRING_KICK and stays so until GET_VRING_BASE or a reset.  A kicked ring *runs*
//! (the device was told to start it) as soon as it is described in full and its memory is there; a change of the memory
//! table stops all running rings and starts those again that are still covered.
//!
//! **Memory.** A new table is mapped before anything is stopped: a table that is refused disturbs nothing, and the rings
//! stand still only for the exchange.
//!
//! **Requests in flight.** GET_INFLIGHT_FD gives the front end memory and changes nothing here; SET_INFLIGHT_FD brings
//! it, or what a predecessor gave, and each queue that starts from then on has its region.  Regions are of the size that
//! the front end allowed for: a driver may make its rings smaller than that.
//!
//! **Configuration space.** It is the device's: reads and writes go there.  A write that the device or the session
//! refuses is passed over if no acknowledgement was asked for, because front ends pass on what their guests write, and
//! a guest's mistake must not take its disk away.
//!
//! **Reset.** RESET_DEVICE and status 0 stop all rings and forget their description, and where their requests in flight
//! are written down: new rings need new regions.  Memory table, features and the call and error descriptors stay: QEMU
//! tells again only what has changed since.
//!
//! **Refusals.** A request that cannot be granted is answered with failure where the protocol has a way to say so, and
//! changes nothing.  Where it has none, the session ends: a front end must not go on believing it was obeyed.
//!
//! **Not offered, and where it would go:** dirty logging (LOG_SHMFD: SET_LOG_BASE maps the log as a region of its own
//! next to the memory table, `VHOST_VRING_F_LOG` becomes a field of the ring, and SET_FEATURES and SET_VRING_ADDR become legal on
//! running rings for those bits alone).

mod config;
mod handle;
mod inbox;
mod inflight;
mod ring;

use std::collections::VecDeque;
use std::mem;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use guestmem::{GuestMemory, MapError, RegionFile, RegionSpec};
use sys::EventFd;
use vhost::vhost_user::message::{
    FrontendReq, VhostUserProtocolFeatures as Protocol, VhostUserVirtioFeatures,
};
use virtio_bindings::virtio_config::VIRTIO_F_ACCESS_PLATFORM;

use crate::SessionFault;
use crate::device::{DeviceSpec, QueueSetup};
use crate::message::{Answer, ConfigRange, InflightArea, MAX_CONFIG, Message, answer, reply};
use inbox::{Frame, Inbox};
use inflight::Inflight;
use ring::{Kick, Ring};

/// Most regions of a memory table, as QEMU has it: the kernel's limit of 512 memory slots less its own.
pub const MAX_REGIONS: usize = 509;
/// Most rings a session can have: ring indices of SET_VRING_KICK have eight bits.
const MAX_RINGS: u16 = 256;
/// Failure in an answer that is sent always: an error code, and, where it applies, that no descriptor comes along.
const FAILED: u64 = 0x101;

/// What the host has to do next.
#[derive(Debug)]
pub enum Action {
    /// Send these bytes to the front end, the descriptor attached to the first of them.
    Send(Vec<u8>, Option<OwnedFd>),
    /// Map this memory, a memory table or where requests in flight are written down; answer with [`Session::mapped`].
    Map(Vec<(RegionSpec, RegionFile)>),
    /// Start a queue.  If that fails, say so with [`Session::not_started`], which ends the session.
    Start(QueueSetup),
    /// Stop a queue; answer with [`Session::stopped`].
    Stop {
        /// The ring.
        queue: u16,
    },
    /// The position of this stopped queue, or its ring, is of no more use to a later session.
    Forget {
        /// The ring.
        queue: u16,
    },
    /// Signal something else from now on.
    SetCall {
        /// The ring.
        queue: u16,
        /// `None`: signal nothing.
        call: Option<Arc<EventFd>>,
    },
    /// Enable or disable a running queue.
    SetEnabled {
        /// The ring.
        queue: u16,
        /// Whether it is enabled now.
        on: bool,
    },
    /// Make memory to share with the front end, all zero; answer with [`Session::inflight_made`].
    MakeInflight {
        /// Its length in bytes.
        size: u64,
    },
    /// Read the whole configuration space; answer with [`Session::config_read`].
    ReadConfig,
    /// Write to the configuration space; answer with [`Session::config_written`].
    WriteConfig {
        /// First byte.
        offset: u32,
        /// What to write, at least one byte.
        bytes: Vec<u8>,
    },
    /// Changes of the configuration space are told on this Unix stream socket from now on, and on no earlier one.
    Backend(UnixStream),
    /// These virtio features have been negotiated.
    Features(u64),
    /// The guest was told this MTU.
    Mtu(u16),
    /// Send a gratuitous RARP from this address.
    Rarp([u8; 6]),
    /// A request was refused, the front end has been told, and the session goes on: something to log.
    Refused(SessionFault),
    /// The session is over: stop what [`Session::running`] says and close the connection.  Nothing follows.
    Close(SessionFault),
}

/// A request whose acknowledgement is still to come.
#[derive(Clone, Copy, Debug)]
struct Pending {
    request: FrontendReq,
    need_reply: bool,
}

/// The memory table in force.
#[derive(Debug, Default)]
struct Memory {
    regions: Vec<(RegionSpec, RegionFile)>,
    /// `None` exactly if there are no regions.
    mapped: Option<Arc<GuestMemory>>,
}

/// What the session is waiting for.
#[derive(Debug, Default)]
enum Work {
    #[default]
    Idle,
    /// A new memory table to be mapped.  `covering`: it must cover every kicked ring.
    Mapping {
        pending: Pending,
        regions: Vec<(RegionSpec, RegionFile)>,
        covering: bool,
    },
    /// An area for requests in flight to be mapped.
    MappingInflight {
        pending: Pending,
        area: InflightArea,
    },
    /// An area for requests in flight to be made.
    MakingInflight {
        pending: Pending,
        area: InflightArea,
        padding: usize,
    },
    /// The configuration space to be read, or written.
    ReadingConfig {
        pending: Pending,
        range: ConfigRange,
    },
    WritingConfig {
        pending: Pending,
    },
    /// A ring to be stopped, then `rest`, then something to be done.
    Stopping {
        pending: Pending,
        current: u16,
        rest: Vec<u16>,
        then: Then,
    },
}

/// What follows when rings have been stopped.
#[derive(Debug)]
enum Then {
    /// Answer GET_VRING_BASE.
    Position(u16),
    /// Put a memory table in force and start what can be started.
    Use(Memory),
    /// Start again with another kick.
    Restart,
    /// Forget the rings' description.
    Reset,
}

/// One connection.
pub struct Session {
    spec: DeviceSpec,
    offered: u64,
    offered_protocol: u64,
    features: Option<u64>,
    /// The last SET_FEATURES was refused: the device status must not show FEATURES_OK.
    features_refused: bool,
    protocol: u64,
    status: u8,
    rings: Vec<Ring>,
    memory: Memory,
    inflight: Option<Inflight>,
    inbox: Inbox,
    out: VecDeque<Action>,
    work: Work,
    closed: bool,
}

impl Session {
    /// A connection that has just been made.
    #[must_use]
    pub fn new(mut spec: DeviceSpec) -> Session {
        spec.rings = spec.rings.clamp(1, MAX_RINGS);
        spec.config_size = spec.config_size.min(MAX_CONFIG as u16);
        let own = VhostUserVirtioFeatures::all().bits();
        let offered = spec.features & !own & !(1 << VIRTIO_F_ACCESS_PLATFORM)
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        let mut protocol = Protocol::MQ
            | Protocol::REPLY_ACK
            | Protocol::CONFIGURE_MEM_SLOTS
            | Protocol::RESET_DEVICE
            | Protocol::STATUS;
        if spec.net {
            protocol |= Protocol::MTU | Protocol::RARP;
        }
        if spec.config_size > 0 {
            protocol |= Protocol::CONFIG | Protocol::BACKEND_REQ;
        }
        if spec.inflight {
            protocol |= Protocol::INFLIGHT_SHMFD;
        }
        Session {
            rings: (0..spec.rings).map(|_| Ring::default()).collect(),
            spec,
            offered,
            offered_protocol: protocol.bits(),
            features: None,
            features_refused: false,
            protocol: 0,
            status: 0,
            memory: Memory::default(),
            inflight: None,
            inbox: Inbox::default(),
            out: VecDeque::new(),
            work: Work::Idle,
            closed: false,
        }
    }

    /// How many bytes to read next: what is missing of the header or of the message at hand.
    ///
    /// Reading no more keeps descriptors with the message they were sent with.  0 while an answer is outstanding, while
    /// [`poll`](Self::poll) has something to say, and when the session is over.
    #[must_use]
    pub fn wanted(&self) -> usize {
        let idle = matches!(self.work, Work::Idle) && self.out.is_empty() && !self.closed;
        if idle { self.inbox.missing() } else { 0 }
    }

    /// Takes bytes from the front end, with the descriptors that arrived together with the first of them.
    ///
    /// More than [`wanted`](Self::wanted) is kept for later, up to a bound far above what one message can be.
    pub fn input(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) {
        if !self.closed {
            self.inbox.put(bytes, fds);
        }
    }

    /// The kernel reported that descriptors were dropped on the way: ends the session.
    pub fn descriptors_lost(&mut self) {
        self.close(SessionFault::DescriptorsLost);
    }

    /// What to do next; `None`: answer what is outstanding, or read more.
    pub fn poll(&mut self) -> Option<Action> {
        loop {
            if let Some(action) = self.out.pop_front() {
                return Some(action);
            }
            if self.closed || !matches!(self.work, Work::Idle) {
                return None;
            }
            match self.inbox.next() {
                Ok(Some(frame)) => self.receive(frame),
                Ok(None) => return None,
                Err(fault) => self.close(fault),
            }
        }
    }

    /// Answers [`Action::Map`].  Ignored if none is outstanding.
    pub fn mapped(&mut self, result: Result<Arc<GuestMemory>, MapError>) {
        match mem::take(&mut self.work) {
            Work::Mapping { pending, regions, covering } => match result {
                Ok(mem) => self.exchange(pending, regions, mem, covering),
                Err(err) => self.conclude(pending, Err(err.into())),
            },
            Work::MappingInflight { pending, area } => self.use_inflight(pending, area, result),
            other => self.work = other,
        }
    }

    /// Answers [`Action::Stop`] with the ring's position, as in GET_VRING_BASE.  Ignored if it is not outstanding.
    pub fn stopped(&mut self, queue: u16, base: u32) {
        match mem::take(&mut self.work) {
            Work::Stopping { pending, current, rest, then } if current == queue => {
                if let Some(ring) = self.rings.get_mut(usize::from(queue)) {
                    ring.running = false;
                    ring.base = Some(base);
                }
                self.stop(pending, rest, then);
            }
            other => self.work = other,
        }
    }

    /// The device could not start this queue after [`Action::Start`]: ends the session.  Nothing follows, and queues that
    /// were about to be started are not.
    pub fn not_started(&mut self, queue: u16) {
        self.closed = true;
        let waiting = self.out.drain(..).filter_map(|action| match action {
            Action::Start(setup) => Some(setup.index),
            _ => None,
        });
        for queue in std::iter::once(queue).chain(waiting) {
            if let Some(ring) = self.rings.get_mut(usize::from(queue)) {
                ring.running = false;
            }
        }
    }

    /// The queues the device has been told to start and not to stop.
    pub fn running(&self) -> impl Iterator<Item = u16> {
        (0..self.spec.rings).zip(&self.rings).filter(|(_, ring)| ring.running).map(|(q, _)| q)
    }

    /// What to signal when something is wrong with this ring.
    #[must_use]
    pub fn error_fd(&self, queue: u16) -> Option<&Arc<EventFd>> {
        self.rings.get(usize::from(queue))?.err.as_ref()
    }

    /// Whether the connection would be cut in the middle of a message.
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        self.inbox.is_partial()
    }

    /// Handles one message.
    fn receive(&mut self, frame: Frame) {
        let Frame { header, body, fds } = frame;
        let need_reply = header.need_reply;
        let Ok(request) = FrontendReq::try_from(header.request) else {
            let fault = SessionFault::UnknownRequest { request: header.request };
            return self.refuse(header.request, Answer::Ack, need_reply, fault);
        };
        let pending = Pending { request, need_reply };
        match Message::parse(request, &body, fds) {
            Ok(message) => self.handle(pending, message),
            Err(fault) => self.conclude(pending, Err(fault)),
        }
    }

    /// Stops these rings one after the other, then does what follows.
    fn stop(&mut self, pending: Pending, mut rings: Vec<u16>, then: Then) {
        if let Some(current) = rings.pop() {
            self.out.push_back(Action::Stop { queue: current });
            self.work = Work::Stopping { pending, current, rest: rings, then };
            return;
        }
        match then {
            Then::Position(queue) => return self.answer_position(pending, queue),
            Then::Use(memory) => self.memory = memory,
            Then::Restart => {}
            Then::Reset => {
                self.rings.iter_mut().for_each(Ring::reset);
                self.inflight = None;
                self.out.extend((0..self.spec.rings).map(|queue| Action::Forget { queue }));
            }
        }
        let result = self.start_kicked();
        self.conclude(pending, result);
    }

    /// Running rings, in the order in which [`stop`](Self::stop) leaves them.
    fn running_reversed(&self) -> Vec<u16> {
        let mut rings: Vec<u16> = self.running().collect();
        rings.reverse();
        rings
    }

    /// Replaces the memory table by one that has been mapped.
    fn exchange(
        &mut self,
        pending: Pending,
        regions: Vec<(RegionSpec, RegionFile)>,
        mem: Arc<GuestMemory>,
        covering: bool,
    ) {
        if covering && let Err(fault) = self.check_rings(&mem) {
            return self.conclude(pending, Err(fault));
        }
        let memory = Memory { regions, mapped: Some(mem) };
        self.stop(pending, self.running_reversed(), Then::Use(memory));
    }

    /// Whether every kicked ring could run in this memory.
    fn check_rings(&self, mem: &GuestMemory) -> Result<(), SessionFault> {
        let features = self.features.unwrap_or(0);
        for (queue, ring) in (0..).zip(&self.rings) {
            if !matches!(ring.kick, Kick::Unset) {
                ring.config(queue, features, mem)?;
            }
        }
        Ok(())
    }

    /// Starts every kicked ring that can be started.  One that the memory table does not cover (any more) waits for the
    /// region to come back: a front end that regroups its regions takes some away before it adds others.
    fn start_kicked(&mut self) -> Result<(), SessionFault> {
        let mut result = Ok(());
        for queue in 0..self.spec.rings {
            match self.start(queue) {
                Ok(()) | Err(SessionFault::RingOutsideMemory { .. }) => {}
                Err(fault) => {
                    self.unkick(queue);
                    result = result.and(Err(fault));
                }
            }
        }
        result
    }

    /// A ring that is not to run.
    fn unkick(&mut self, queue: u16) {
        if let Some(ring) = self.rings.get_mut(usize::from(queue)) {
            ring.kick = Kick::Unset;
        }
    }

    /// Starts a ring if it is kicked, described in full and not running.
    fn start(&mut self, queue: u16) -> Result<(), SessionFault> {
        let features = self.features.unwrap_or(0);
        let Some(mem) = &self.memory.mapped else { return Ok(()) };
        let Some(ring) = self.rings.get_mut(usize::from(queue)) else { return Ok(()) };
        let kick = match &ring.kick {
            Kick::Unset => return Ok(()),
            Kick::Polled => None,
            Kick::Fd(fd) => Some(Arc::clone(fd)),
        };
        if ring.running {
            return Ok(());
        }
        let Some(config) = ring.config(queue, features, mem)? else { return Ok(()) };
        let inflight = self.inflight.as_ref().map(|all| all.region(queue, &config)).transpose()?;
        ring.running = true;
        self.out.push_back(Action::Start(QueueSetup {
            index: queue,
            mem: Arc::clone(mem),
            config,
            known_base: ring.known_position(features),
            features: guest_features(features),
            kick,
            call: ring.call.clone(),
            enabled: ring.enabled,
            inflight,
        }));
        Ok(())
    }

    /// Ends a request that has no answer of its own.
    fn conclude(&mut self, pending: Pending, result: Result<(), SessionFault>) {
        let Pending { request, need_reply } = pending;
        match result {
            Ok(()) if need_reply && self.negotiated(Protocol::REPLY_ACK) => {
                self.reply_number(request.into(), 0);
            }
            Ok(()) => {}
            Err(fault) => self.refuse(request.into(), answer(request), need_reply, fault),
        }
    }

    /// Says no, if there is a way to say it, else ends the session.
    fn refuse(&mut self, request: u32, answer: Answer, need_reply: bool, fault: SessionFault) {
        let ack = need_reply && self.negotiated(Protocol::REPLY_ACK);
        match answer {
            _ if fault.is_fatal() => return self.close(fault),
            Answer::Ack | Answer::AckOrSilence if ack => self.reply_number(request, 1),
            Answer::Result => self.reply_number(request, FAILED),
            Answer::BodyOrEmpty => self.send(reply(request, &[])),
            Answer::AckOrSilence => {}
            Answer::Ack | Answer::Body => return self.close(fault),
        }
        self.out.push_back(Action::Refused(fault));
    }

    fn reply_number(&mut self, request: u32, number: u64) {
        self.send(reply(request, &number.to_ne_bytes()));
    }

    fn send(&mut self, bytes: Vec<u8>) {
        self.out.push_back(Action::Send(bytes, None));
    }

    fn close(&mut self, fault: SessionFault) {
        if !self.closed {
            self.closed = true;
            self.out.push_back(Action::Close(fault));
        }
    }

    fn negotiated(&self, feature: Protocol) -> bool {
        self.protocol & feature.bits() != 0
    }
}

/// Features without the bits by which vhost-user says things of its own.
fn guest_features(features: u64) -> u64 {
    features & !VhostUserVirtioFeatures::all().bits()
}
