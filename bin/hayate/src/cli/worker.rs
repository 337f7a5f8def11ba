//! `hayate worker`.

use super::args::{Destination, Output, PortQueue};
use super::client::Client;
use super::fail::Failure;
use super::out;
use crate::render::{Table, facts, units};
use api::{Placement, Port, Worker, WorkerQueue, WorkerState};

pub(super) fn list(client: &Client, output: Output) -> Result<(), Failure> {
    let workers: Vec<Worker> = client.get("/v1/workers")?;
    if output.json {
        return out::json(&workers);
    }
    let mut table =
        Table::new(["WORKER", "CPU", "NODE", "STATE", ">LOAD", ">FRAMES", ">QUEUES", "SERVES"]);
    for worker in &workers {
        let names: Vec<String> = worker.queues.iter().map(name).collect();
        table.row([
            worker.id.to_string(),
            units::maybe(worker.cpu),
            units::maybe(worker.node),
            state(worker).to_owned(),
            format!("{}%", worker.load_percent),
            units::rate(worker.frames_per_second as f64, "/s"),
            worker.queues.len().to_string(),
            units::list(&names),
        ]);
    }
    out::text(&table.to_string())
}

pub(super) fn show(client: &Client, id: u16, output: Output) -> Result<(), Failure> {
    let worker: Worker = client.get(&format!("/v1/workers/{id}"))?;
    if output.json {
        return out::json(&worker);
    }
    let share = |part: u64| match part.saturating_mul(100).checked_div(worker.polls) {
        Some(percent) => format!("{} ({percent}% of the looks)", units::number(part)),
        None => units::number(part),
    };
    let mut text = facts(&[
        ("worker", worker.id.to_string()),
        ("CPU", worker.cpu.map_or_else(|| "any".to_owned(), |cpu| cpu.to_string())),
        ("NUMA node", units::maybe(worker.node)),
        ("state", state(&worker).to_owned()),
        ("load", format!("{}%", worker.load_percent)),
        ("frames", units::number(worker.frames)),
        ("frames now", units::rate(worker.frames_per_second as f64, "/s")),
        ("looked", units::number(worker.polls)),
        ("found frames", share(worker.busy_polls)),
        ("napped", units::number(worker.naps)),
        ("slept", units::number(worker.sleeps)),
    ]);
    if !worker.queues.is_empty() {
        let mut table = Table::new(["QUEUE", "NODE", ">LOAD", ">FRAMES", "PLACED BY"]);
        for queue in &worker.queues {
            table.row([
                name(queue),
                units::maybe(queue.node),
                format!("{}%", queue.load_percent),
                units::rate(queue.frames_per_second as f64, "/s"),
                if queue.pinned { "you" } else { "load" }.to_owned(),
            ]);
        }
        text.push('\n');
        text.push_str(&table.to_string());
    }
    out::text(&text)
}

pub(super) fn place(
    client: &Client,
    PortQueue { port, queue }: &PortQueue,
    to: Destination,
    output: Output,
) -> Result<(), Failure> {
    let worker = match to {
        Destination::Worker(worker) => Some(worker),
        Destination::Auto => None,
    };
    let placement = Placement { queue: *queue, worker };
    let port: Port = client.put(&format!("/v1/ports/{port}/placement"), &placement)?;
    if output.json { out::json(&port) } else { Ok(()) }
}

/// A queue as `hayate worker move` takes it.
fn name(queue: &WorkerQueue) -> String {
    format!("{}:{}", queue.port, queue.queue)
}

fn state(worker: &Worker) -> &'static str {
    match worker.state {
        WorkerState::Asleep => "asleep",
        WorkerState::Napping => "napping",
        WorkerState::Polling => "polling",
    }
}
