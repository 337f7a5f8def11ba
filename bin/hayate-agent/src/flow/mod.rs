//! `hayate-agent flow`: flow rules of this VM's virtual functions, in the switch of the host.

mod batch;
mod list;

use std::io::Read;
use std::path::{Path, PathBuf};

use api::Mac;
use api::channel::{FlowPart, Flows, ListFlows, Method, SetFlows};
use api::rule::{FlowLine, FlowPort};
use clap::{Args, Subcommand};

use crate::cli::Socket;
use crate::{desk, vf};

use batch::Batch;

/// Longest file of rules, bytes.
const FILE_MAX: u64 = 16 << 20;
/// So often a change is begun again that somebody else's came between.
const ATTEMPTS: u32 = 5;

/// What was asked for cannot be had: exit status, and why.
type Failure = (u8, String);

const HELP: &str = "\
Examples (eth0 is the PF, its VFs are vf0, vf1, ...):
  hayate-agent flow add eth0 vf0 to priority 100 proto tcp dst-port 80 state new accept
  hayate-agent flow add eth0 vf0 to priority 100 state established accept
  hayate-agent flow default eth0 vf0 to drop
  hayate-agent flow list eth0
  hayate-agent flow del eth0 1 2
  hayate-agent flow replace eth0 rules.txt";

const RULE_HELP: &str = "\
A rule: FUNCTION from|to [id N] [priority N] [MATCH ...] [CHANGE ...] ACTION
  FUNCTION   pf, the interface itself, or vf0, vf1, ..., its VFs
  from       frames that come from the function; to: frames that are about to be delivered to it
  id         its number [default: the next one]
  priority   of the rules that match the one with the highest counts [default: 0]; of those with the
             same, the one with the lowest number

MATCH, all of what is said:
  src-mac, dst-mac MAC[/MASK]       vlan 1-4094|untagged        ethertype ipv4|ipv6|arp|0xNNNN
  src, dst ADDRESS[/LENGTH]         proto tcp|udp|sctp|icmp|icmpv6|gre|esp|ah|NUMBER
  src-port, dst-port PORT[-PORT]    icmp-type NUMBER            tcp-flags SET[/COUNT], as syn/syn,ack
  later-fragment yes|no             state new|established

CHANGE:
  set-src-mac, set-dst-mac MAC      set-src, set-dst ADDRESS    set-src-port, set-dst-port PORT
  push-vlan 1-4094                  pop-vlan
  meter MBIT (more than that is dropped)                        mirror FUNCTION (gets a copy)

ACTION: accept, drop, or forward FUNCTION

All frames are counted. Rules stay in force when the agent or the channel ends, and end with the machine's
boot. A file has a rule in each line, or `default FUNCTION from|to accept|drop`; `#` begins a comment. Or it
is JSON, as docs/flow-rules.md has it. Either all of it holds afterwards or nothing.";

/// Flow rules.
#[derive(Debug, Subcommand)]
#[command(after_long_help = HELP)]
pub(crate) enum Flow {
    /// Add a rule, or those of a file, and print their numbers
    #[command(after_long_help = RULE_HELP)]
    Add {
        #[command(flatten)]
        pf: Pf,
        /// The rule; --help says how it is written
        #[arg(required_unless_present = "file", conflicts_with = "file", value_name = "RULE")]
        rule: Vec<String>,
        /// A file with rules; - is standard input
        #[arg(long, short, value_name = "FILE")]
        file: Option<PathBuf>,
        #[command(flatten)]
        socket: Socket,
    },
    /// Have functions judge by the rules of a file and no others
    ///
    /// Functions are those that are named in it, and those of --on.
    #[command(after_long_help = RULE_HELP)]
    Replace {
        #[command(flatten)]
        pf: Pf,
        /// A file with rules; - is standard input
        file: PathBuf,
        /// Functions that have no rules afterwards if the file has none for them, with commas between
        #[arg(long, value_name = "FUNCTIONS", value_delimiter = ',')]
        on: Vec<FlowPort>,
        #[command(flatten)]
        socket: Socket,
    },
    /// Delete rules by number, or all of a function, or all
    #[command(visible_alias = "delete")]
    Del {
        #[command(flatten)]
        pf: Pf,
        /// Numbers of rules
        #[arg(required_unless_present_any = ["on", "all"], value_name = "ID")]
        ids: Vec<u64>,
        /// All rules and defaults of these functions, with commas between
        #[arg(long, value_name = "FUNCTIONS", value_delimiter = ',')]
        on: Vec<FlowPort>,
        /// All rules and defaults of the PF and its VFs
        #[arg(long, conflicts_with_all = ["ids", "on"])]
        all: bool,
        #[command(flatten)]
        socket: Socket,
    },
    /// Say what becomes of frames that no rule matches
    Default {
        #[command(flatten)]
        pf: Pf,
        /// FUNCTION from|to accept|drop
        #[arg(num_args = 3, value_names = ["FUNCTION", "DIRECTION", "ACTION"])]
        what: Vec<String>,
        #[command(flatten)]
        socket: Socket,
    },
    /// Show rules, in the words they are made with, and what they did
    List {
        #[command(flatten)]
        pf: Pf,
        #[command(flatten)]
        socket: Socket,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Pf {
    /// The PF, by the name of its interface in this VM
    pf: String,
}

/// Does what was typed; what is to be printed.
///
/// # Errors
/// Exit status, and why.
pub(crate) fn run(command: Flow) -> Result<String, Failure> {
    match command {
        Flow::Add { pf, rule, file, socket } => {
            let desk = Desk::new(&socket, &pf)?;
            let mut batch = match file {
                Some(file) => Batch::read(&text(&file)?),
                None => Batch::read(&rule.join(" ")),
            }
            .map_err(|why| (2, why))?;
            let ids = desk.add(&mut batch)?;
            Ok(ids.iter().map(|id| format!("{id}\n")).collect())
        }
        Flow::Replace { pf, file, on, socket } => {
            let desk = Desk::new(&socket, &pf)?;
            let mut batch = Batch::read(&text(&file)?).map_err(|why| (2, why))?;
            batch.replaces(&on);
            desk.add(&mut batch)?;
            Ok(String::new())
        }
        Flow::Del { pf, ids, on, all, socket } => {
            let desk = Desk::new(&socket, &pf)?;
            let clear = if all {
                let there = desk.list()?;
                there.functions.iter().map(|function| function.on).collect()
            } else {
                on
            };
            desk.set(&SetFlows { del: ids, clear, ..SetFlows::new(desk.pf) })?;
            Ok(String::new())
        }
        Flow::Default { pf, what, socket } => {
            let desk = Desk::new(&socket, &pf)?;
            match format!("default {}", what.join(" ")).parse() {
                Ok(FlowLine::Default(default)) => {
                    desk.set(&SetFlows { defaults: vec![default], ..SetFlows::new(desk.pf) })?;
                    Ok(String::new())
                }
                Ok(FlowLine::Rule { .. }) => Err((2, "that is no default".to_owned())),
                Err(why) => Err((2, why.to_string())),
            }
        }
        Flow::List { pf, socket, json } => {
            let flows = Desk::new(&socket, &pf)?.list()?;
            if json {
                return serde_json::to_string_pretty(&flows)
                    .map_err(|error| (1, error.to_string()));
            }
            Ok(list::text(&flows))
        }
    }
}

fn text(file: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(FILE_MAX).read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|opened| opened.take(FILE_MAX).read_to_string(&mut text))
    };
    read.map_err(|error| (1, format!("{}: {error}", file.display())))?;
    if text.len() as u64 == FILE_MAX {
        return Err((1, format!("{}: at most {FILE_MAX} bytes are read", file.display())));
    }
    Ok(text)
}

/// The agent, asked about one PF.
struct Desk<'s> {
    socket: &'s Path,
    pf: Mac,
}

impl<'s> Desk<'s> {
    fn new(socket: &'s Socket, pf: &Pf) -> Result<Self, Failure> {
        Ok(Self { socket: socket.path(), pf: vf::mac(&pf.pf)? })
    }

    fn ask<M: Method>(&self, params: &M) -> Result<Result<M::Result, String>, Failure> {
        desk::daemon(self.socket, params)
            .map_err(|error| (3, format!("no agent answers at {}: {error}", self.socket.display())))
    }

    /// All there is.
    fn list(&self) -> Result<Flows, Failure> {
        let mut all = Flows::default();
        let mut after = None;
        loop {
            let found = self.ask(&ListFlows { pf: self.pf, after })?.map_err(|why| (1, why))?;
            all.limits = found.limits;
            all.functions.extend(found.functions);
            all.rules.extend(found.rules);
            // Whoever says that there is more, and gives nothing, is not asked for ever.
            if found.next.is_none() || found.next == after {
                return Ok(all);
            }
            after = found.next;
        }
    }

    /// Adds a batch, whose rules get numbers if they have none; the numbers of all of them.
    fn add(&self, batch: &mut Batch) -> Result<Vec<u64>, Failure> {
        for attempt in 1.. {
            let ids = if batch.is_numbered() {
                batch.ids()
            } else {
                batch.number(self.list()?.rules.iter().map(|one| one.rule.id))
            };
            match self.try_set(&batch.set(self.pf))? {
                Ok(()) => return Ok(ids),
                // Somebody else took a number meanwhile.
                Err(why) if attempt == ATTEMPTS || batch.is_numbered() => return Err((1, why)),
                Err(_) => {}
            }
        }
        Ok(Vec::new())
    }

    fn set(&self, set: &SetFlows) -> Result<(), Failure> {
        self.try_set(set)?.map_err(|why| (1, why))
    }

    /// Changes rules, in parts if they are many; the inner error is the daemon's.
    fn try_set(&self, set: &SetFlows) -> Result<Result<(), String>, Failure> {
        let mut parts = batch::parts(set);
        if parts.len() == 1 {
            let only = parts.pop().unwrap_or_else(|| SetFlows::new(self.pf));
            return Ok(self.ask(&only)?.map(drop));
        }
        let mut refused = String::new();
        for _ in 0..ATTEMPTS {
            match self.in_parts(&parts)? {
                Ok(()) => return Ok(Ok(())),
                Err(why) => refused = why,
            }
            // Only a change of somebody else that came between is worth another attempt.
            if !refused.contains("begin again") {
                break;
            }
        }
        Ok(Err(refused))
    }

    fn in_parts(&self, parts: &[SetFlows]) -> Result<Result<(), String>, Failure> {
        let batch = batch::number();
        for (number, part) in (0u32..).zip(parts) {
            let last = number as usize + 1 == parts.len();
            let part = SetFlows { part: Some(FlowPart { batch, number, last }), ..part.clone() };
            if let Err(why) = self.ask(&part)? {
                return Ok(Err(why));
            }
        }
        Ok(Ok(()))
    }
}
