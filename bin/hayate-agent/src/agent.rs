//! The agent: one thread that waits for the kernel, the daemon, signals, and who asks for its status.
//!
//! **Failure.** A connection that ends is opened again, for ever. Without the kernel, or without its
//! status socket, the agent ends with an error.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::channel::Limits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::channel::{Connection, End, Session};
use crate::desk::{Desk, PassOn, Said};
use crate::kernel::Kernel;
use crate::plan::Plan;
use crate::state::{Kind, State};
use crate::status::{Connected, Report, ReportInterface};

/// The daemon has so long to answer that all is withdrawn.
const FAREWELL: Duration = Duration::from_secs(1);
/// Until the daemon says its own. Connections are left alone.
const NO_LIMITS: Limits =
    Limits { interfaces: u32::MAX, nexthops: u32::MAX, prefixes: u32::MAX, connections: u32::MAX };

/// What the agent is told when it is started.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) channel: PathBuf,
    pub(crate) status: PathBuf,
    pub(crate) lease_ms: Option<u32>,
}

#[derive(Debug)]
struct Agent {
    options: Options,
    kernel: Kernel,
    state: State,
    plan: Plan,
    connection: Connection,
    session: Option<Session>,
    next_id: u64,
}

/// What the kernel calls this boot of the machine.
fn boot() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// The kernel cannot be read, or the status socket cannot be had.
pub(crate) fn run(options: Options) -> io::Result<()> {
    let (mut signal, wake) = UnixStream::pair()?;
    for number in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(number, wake.try_clone()?)?;
    }
    let mut desk = Desk::new(&options.status).map_err(|error| {
        io::Error::new(error.kind(), format!("{}: {error}", options.status.display()))
    })?;
    let mut state = State::default();
    let mut kernel = Kernel::open()?;
    kernel.settle(&mut state)?;
    let connection = Connection::new(options.channel.clone(), Instant::now());
    // Numbers that no agent before us had.
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let plan = Plan::new(NO_LIMITS, &state);
    let next_id = seconds << 20;
    let mut agent = Agent { options, kernel, state, plan, connection, session: None, next_id };

    let mut until: Option<Instant> = None;
    loop {
        let now = Instant::now();
        let stopped = agent.step(now, until.is_some())?;
        for (token, said) in agent.said() {
            desk.answer(token, &said);
        }
        if !agent.is_connected() {
            desk.nobody_answers();
        }
        if stopped || until.is_some_and(|until| now >= until) {
            return Ok(());
        }
        let signalled = agent.wait(&signal, &desk, until)?;
        if signalled {
            // One byte for each signal.
            let _ = signal.read(&mut [0; 64])?;
            until.get_or_insert(Instant::now() + FAREWELL);
        }
        for question in desk.serve(Instant::now(), || agent.report()) {
            agent.pass_on(question);
        }
    }
}

impl Agent {
    /// Does all there is to do; returns whether all is withdrawn that was to be.
    fn step(&mut self, now: Instant, stopping: bool) -> io::Result<bool> {
        self.kernel.settle(&mut self.state)?;
        self.plan.update(&mut self.state);
        if stopping {
            match &mut self.session {
                Some(session) => session.stop(),
                None => return Ok(true),
            }
        } else if self.connection.open(now) {
            self.next_id += 1 << 20;
            let (lease_ms, boot) = (self.options.lease_ms, boot());
            self.session = Some(Session::new(lease_ms, boot, self.next_id, now));
        }
        match self.talk(now) {
            Ok(()) => Ok(false),
            Err(End::Stopped) => Ok(true),
            Err(End::Failed(why)) => {
                self.session = None;
                self.connection.close(now, why);
                Ok(stopping)
            }
        }
    }

    /// Reads answers and asks on, until an answer is awaited.
    fn talk(&mut self, now: Instant) -> Result<(), End> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let failed = |error: io::Error| End::Failed(error.to_string());
        self.connection.flush().map_err(failed)?;
        loop {
            while let Some(line) = self.connection.receive().map_err(failed)? {
                let used = session.answer(&mut self.plan, &self.state, &line)?;
                for (index, address) in used.neighbours {
                    self.kernel.use_neighbour(index, address);
                }
                self.kernel.begun_connections(&used.begun);
                let (state, all) = (&mut self.state, used.all_connections);
                self.kernel.used_connections(state, &used.connections, all);
                self.plan.update(state);
                if session.peer().is_some() {
                    self.connection.welcomed();
                }
            }
            if session.overdue(now) {
                return Err(End::Failed("the daemon does not answer".to_owned()));
            }
            let Some(line) = session.next(&mut self.plan, &self.state, now) else { return Ok(()) };
            self.connection.send(&line?).map_err(failed)?;
        }
    }

    /// Whether a daemon has answered.
    fn is_connected(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.peer().is_some())
    }

    /// A question of somebody else's; without a daemon nobody answers it.
    fn pass_on(&mut self, question: PassOn) {
        if let Some(session) = self.session.as_mut().filter(|session| session.peer().is_some()) {
            session.pass_on(question);
        }
    }

    fn said(&mut self) -> Vec<(u64, Said)> {
        self.session.as_mut().map(Session::said).unwrap_or_default()
    }

    /// Waits until there is something to do; returns whether a signal came.
    fn wait(&self, signal: &UnixStream, desk: &Desk, until: Option<Instant>) -> io::Result<bool> {
        let mut fds = vec![PollFd::from_borrowed_fd(signal.as_fd(), PollFlags::IN)];
        fds.extend(desk.fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        fds.extend(self.kernel.fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let channel = self.connection.poll().filter(|_| self.session.is_some());
        fds.extend(channel.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)));
        let session =
            self.session.as_ref().and_then(|session| session.deadline(&self.plan, &self.state));
        let connection = self.connection.deadline();
        let deadlines = [Some(self.kernel.deadline()), connection, session, until, desk.deadline()];
        let deadline = deadlines.into_iter().flatten().min();
        let timeout = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(fds.first().is_some_and(|fd| !fd.revents().is_empty()))
    }

    fn report(&self) -> Report {
        let peer = self.session.as_ref().and_then(Session::peer);
        let (status, sizes) = (self.plan.policy(), self.plan.sizes());
        let links = self.state.links.iter().filter(|(_, link)| link.kind != Kind::Other);
        let interfaces = links.map(|(index, link)| {
            let place = self.plan.place(*index).filter(|_| peer.is_some());
            ReportInterface {
                name: link.name.clone(),
                mac: link.mac,
                vlan: if let Kind::Vlan { vid, .. } = link.kind { Some(vid) } else { None },
                port: place.and_then(|place| place.clone().ok()),
                refused: place.and_then(|place| place.clone().err().flatten()),
                why: self.state.link_refusal(*index).map(|why| format!("it {why}")),
            }
        });
        Report {
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            daemon: peer.map(|peer| Connected {
                version: peer.daemon.clone(),
                vm: peer.vm.clone(),
                lease_ms: peer.lease.as_millis() as u64,
            }),
            disconnected: self.connection.why().map(str::to_owned).filter(|_| peer.is_none()),
            policy: status.policy,
            reasons: status.reasons,
            interfaces: interfaces.collect(),
            routes: self.state.local.len() + self.state.main.len(),
            neighbours: self.state.neighbour_count(),
            nexthops: sizes.nexthops,
            prefixes: sizes.prefixes,
            connections: sizes.connections,
            pending: sizes.pending,
            bypassed: sizes.passed,
        }
    }
}
