//! Where the agent is asked: a Unix socket, one question and its answer for each connection.
//!
//! A question is a line of JSON ([`Question`]). What the agent knows is answered at once; what the
//! daemon knows is passed on over the channel, and the answer comes when the daemon's does. Only
//! whoever may write to the socket, by default root, can ask. Nothing here waits: streams do not block,
//! and whoever does not say what he wants is hung up on.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::channel::Method;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::status::Report;

/// So many may be asking at a time.
const CLIENTS_MAX: usize = 16;
/// Longest question, bytes with its newline: with what the channel puts around it, it fits a line there.
const QUESTION_MAX: usize = 32 << 10;
/// Longest answer that is believed, bytes.
const ANSWER_MAX: u64 = 1 << 20;
/// A question is asked within this time.
const PATIENCE: Duration = Duration::from_secs(2);
/// An answer comes within this time: longer than the daemon may take.
const ANSWER: Duration = Duration::from_secs(10);
/// What the daemon may be asked by others. What is delegated is the agent's business alone.
const PASSED_ON: [&str; 2] = ["vf.", "flow."];

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
enum Question {
    /// What the agent does: a [`Report`].
    Status,
    /// Something of the daemon.
    Daemon { method: String, params: Value },
}

/// What is answered.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Said {
    /// This is it.
    Result(Value),
    /// Why not, for people.
    Error(String),
}

/// A question for the daemon, under a number of ours.
#[derive(Debug)]
pub(crate) struct PassOn {
    pub(crate) token: u64,
    pub(crate) method: String,
    pub(crate) params: Value,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    token: u64,
    since: Instant,
    /// What was said so far; `None`: all was, and the answer is awaited.
    said: Option<Vec<u8>>,
}

/// The socket, which goes with this value.
#[derive(Debug)]
pub(crate) struct Desk {
    listener: UnixListener,
    path: PathBuf,
    clients: Vec<Client>,
    next: u64,
}

impl Desk {
    /// Listens; what is left of an agent that died is removed.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        if UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(ErrorKind::AddrInUse, "another agent listens there"));
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path: path.to_owned(), clients: Vec::new(), next: 0 })
    }

    /// Where something may have been said.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let asking = self.clients.iter().filter(|client| client.said.is_some());
        [self.listener.as_fd()].into_iter().chain(asking.map(|client| client.stream.as_fd()))
    }

    /// When [`Desk::serve`] has to be called at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let asking = self.clients.iter().filter(|client| client.said.is_some());
        asking.map(|client| client.since + PATIENCE).min()
    }

    /// Hears everybody and answers what it can; the rest is for the daemon.
    pub(crate) fn serve(&mut self, now: Instant, report: impl Fn() -> Report) -> Vec<PassOn> {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.clients.len() < CLIENTS_MAX && stream.set_nonblocking(true).is_ok() {
                let (token, said) = (self.next, Some(Vec::new()));
                self.next += 1;
                self.clients.push(Client { stream, token, since: now, said });
            }
        }
        let mut questions = Vec::new();
        self.clients.retain_mut(|client| match client.hear(now) {
            Heard::Nothing => true,
            Heard::Gone => false,
            Heard::Question(Question::Status) => {
                client.answer(&report());
                false
            }
            Heard::Question(Question::Daemon { method, .. })
                if !PASSED_ON.iter().any(|prefix| method.starts_with(prefix)) =>
            {
                client.answer(&Said::Error(format!("{method} is not for you to ask")));
                false
            }
            Heard::Question(Question::Daemon { method, params }) => {
                questions.push(PassOn { token: client.token, method, params });
                true
            }
        });
        questions
    }

    /// The daemon's answer.
    pub(crate) fn answer(&mut self, token: u64, said: &Said) {
        self.clients.retain_mut(|client| {
            let answered = client.token == token && client.said.is_none();
            if answered {
                client.answer(said);
            }
            !answered
        });
    }

    /// There is no daemon to answer.
    pub(crate) fn nobody_answers(&mut self) {
        let said = Said::Error("the agent is not connected to a daemon".to_owned());
        self.clients.retain_mut(|client| {
            if client.said.is_none() {
                client.answer(&said);
            }
            client.said.is_some()
        });
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        // If somebody else removed it, all the better.
        let _ = std::fs::remove_file(&self.path);
    }
}

enum Heard {
    Nothing,
    Gone,
    Question(Question),
}

impl Client {
    fn hear(&mut self, now: Instant) -> Heard {
        let Some(said) = &mut self.said else { return Heard::Nothing };
        let (mut piece, mut ended) = ([0; 4096], false);
        while !ended {
            match self.stream.read(&mut piece) {
                Ok(0) => ended = true,
                Ok(n) => said.extend_from_slice(piece.get(..n).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return Heard::Gone,
            }
            if said.len() > QUESTION_MAX {
                return Heard::Gone;
            }
        }
        match said.iter().position(|byte| *byte == b'\n') {
            None if ended || now >= self.since + PATIENCE => Heard::Gone,
            None => Heard::Nothing,
            Some(end) => match serde_json::from_slice(said.get(..end).unwrap_or_default()) {
                Ok(question) => {
                    self.said = None;
                    Heard::Question(question)
                }
                Err(error) => {
                    self.answer(&Said::Error(format!("not a question: {error}")));
                    Heard::Gone
                }
            },
        }
    }

    fn answer(&mut self, answer: &impl Serialize) {
        // It fits into the socket's buffer; whoever has a smaller one gets less.
        let json = serde_json::to_vec(answer).map_err(io::Error::from);
        if let Err(error) = json.and_then(|json| self.stream.write_all(&json)) {
            tracing::debug!("an answer: {error}");
        }
    }
}

/// Asks the agent that listens there, and waits for its answer.
fn ask(path: &Path, question: &Question) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    let mut line = serde_json::to_vec(question)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut json = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut json)?;
    Ok(json)
}

/// The report of the agent that listens there.
///
/// # Errors
/// There is none, or it says something else.
pub(crate) fn report(path: &Path) -> io::Result<Report> {
    Ok(serde_json::from_slice(&ask(path, &Question::Status)?)?)
}

/// Asks the daemon, by the agent that listens there. The inner error is the daemon's, for people.
///
/// # Errors
/// No agent answers, or it says something else.
pub(crate) fn daemon<M: Method>(path: &Path, params: &M) -> io::Result<Result<M::Result, String>> {
    let (method, params) = (M::NAME.to_owned(), serde_json::to_value(params)?);
    Ok(match serde_json::from_slice(&ask(path, &Question::Daemon { method, params })?)? {
        Said::Result(result) => Ok(serde_json::from_value(result)?),
        Said::Error(why) => Err(why),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::channel::ListFunctions;
    use std::thread;

    fn no_report() -> Report {
        panic!("nobody asked for it")
    }

    /// Serves until something is to be passed on.
    fn passed_on(desk: &mut Desk) -> PassOn {
        loop {
            if let Some(question) = desk.serve(Instant::now(), no_report).pop() {
                return question;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn questions_are_passed_on_and_answers_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let mut desk = Desk::new(&path).unwrap();
        assert_eq!(Desk::new(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        let asks = |path: &Path| {
            let path = path.to_owned();
            thread::spawn(move || daemon(&path, &ListFunctions::default()).unwrap())
        };
        let (one, first) = (asks(&path), passed_on(&mut desk));
        assert_eq!((first.method.as_str(), &first.params), ("vf.list", &serde_json::json!({})));
        let (two, second) = (asks(&path), passed_on(&mut desk));
        // The answer to somebody who is gone, and answers in another order.
        desk.answer(99, &Said::Error("nobody".to_owned()));
        desk.answer(second.token, &Said::Error("no such thing".to_owned()));
        assert_eq!(two.join().unwrap(), Err("no such thing".to_owned()));
        desk.answer(first.token, &Said::Result(serde_json::json!({"functions": []})));
        assert_eq!(one.join().unwrap(), Ok(Default::default()));
        let (three, _) = (asks(&path), passed_on(&mut desk));
        desk.nobody_answers();
        assert!(three.join().unwrap().unwrap_err().contains("not connected"));
        assert!(desk.clients.is_empty());
    }

    #[test]
    fn whoever_asks_badly_gets_no_further() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let mut desk = Desk::new(&path).unwrap();
        let ask = |desk: &mut Desk, text: &str| {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            assert!(desk.serve(Instant::now(), no_report).is_empty());
            stream
        };
        let answered = |mut stream: UnixStream| {
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer).map_err(|error| error.kind())
        };
        assert!(answered(ask(&mut desk, "what?\n")).unwrap().contains("not a question"));
        let withdraw = "{\"ask\":\"daemon\",\"method\":\"router.withdraw\",\"params\":{}}\n";
        assert!(answered(ask(&mut desk, withdraw)).unwrap().contains("not for you"));
        // Half a question, and gone.
        let half = ask(&mut desk, "{\"ask\":");
        assert_eq!(desk.clients.len(), 1);
        half.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(desk.serve(Instant::now(), no_report).is_empty());
        assert!(desk.clients.is_empty(), "it hung up");
        let long = "x".repeat(QUESTION_MAX + 1);
        // Closed with bytes unread: a reset, or an end.
        let end = answered(ask(&mut desk, &long));
        assert!(matches!(end.as_deref(), Ok("") | Err(ErrorKind::ConnectionReset)), "{end:?}");
        // Those who say nothing hold a place for a time.
        let silent: Vec<UnixStream> =
            (0..CLIENTS_MAX + 4).map(|_| UnixStream::connect(&path).unwrap()).collect();
        let now = Instant::now();
        desk.serve(now, no_report);
        assert_eq!(desk.clients.len(), CLIENTS_MAX);
        desk.serve(desk.deadline().unwrap(), no_report);
        assert!(desk.clients.is_empty() && desk.deadline().is_none());
        drop(silent);
    }
}
