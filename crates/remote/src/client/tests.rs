use proptest::prelude::*;

use super::*;
use crate::Buffers;
use crate::SECTOR;

fn opened(handle: u32, requests: u16, bytes: u32) -> Opened {
    Opened {
        handle,
        epoch: 1,
        size: 1 << 20,
        block_size: 512,
        requests,
        bytes,
        discard: true,
        durable: false,
        place: None,
        fabric: None,
    }
}

fn ask(operation: Operation, sector: u64, sectors: u64) -> Request {
    let (offset, length) = (sector * SECTOR, sectors * SECTOR);
    Request {
        operation,
        stable: false,
        unmap: false,
        handle: 0,
        offset,
        length,
        buffers: Buffers::new(),
    }
}

fn flush() -> Request {
    ask(Operation::Flush, 0, 0)
}

fn tags<J>(client: &mut Client<J>) -> Vec<u64> {
    std::iter::from_fn(|| client.send().map(|(tag, _, _)| tag)).collect()
}

#[test]
fn nothing_is_sent_without_a_connection_or_beyond_its_limits() {
    let mut client = Client::default();
    for sector in 0..8 {
        client.push(ask(Operation::Write, sector * 8, 8), sector);
    }
    assert!(client.send().is_none());
    client.connected(&opened(7, 3, 1 << 20), "a");
    assert_eq!(client.send().map(|(tag, handle, sent)| (tag, handle, sent.job)), Some((0, 7, 0)));
    assert_eq!(tags(&mut client), [1, 2]);
    assert_eq!(
        client.answered(1, Status::Ok).map(|(sent, status)| (sent.job, status)),
        Some((1, Status::Ok))
    );
    assert!(client.answered(1, Status::Ok).is_none());
    assert_eq!(tags(&mut client), [3]);
    client.disconnected();
    // Room for two of 4 KiB.
    client.connected(&opened(8, 100, 8191), "a");
    assert_eq!(client.send().map(|(tag, handle, sent)| (tag, handle, sent.job)), Some((4, 8, 0)));
    assert!(client.send().is_none());
    let back = |client: &mut Client<u64>, wanted: fn(&u64) -> bool| {
        client.take_back(wanted).into_iter().map(|back| back.job).collect::<Vec<u64>>()
    };
    // What is under way cannot be taken back, but after the end of the connection.
    assert_eq!(back(&mut client, |job| job % 2 == 0), [2, 4, 6]);
    client.disconnected();
    assert_eq!(back(&mut client, |_| true), [0, 3, 5, 7]);
    assert!(client.is_empty());
}

#[test]
fn what_changes_the_same_bytes_waits() {
    let mut client = Client::<()>::default();
    client.connected(&opened(1, 100, 1 << 20), "a");
    client.push(ask(Operation::Write, 8, 8), ());
    client.push(ask(Operation::Read, 8, 8), ());
    client.push(ask(Operation::Write, 16, 8), ());
    client.push(ask(Operation::WriteZeroes, 15, 1), ());
    client.push(ask(Operation::Write, 100, 1), ());
    assert_eq!(tags(&mut client), [0, 1, 2]);
    assert!(client.answered(2, Status::Ok).is_some());
    assert!(client.send().is_none());
    assert!(client.answered(0, Status::Failed).is_some());
    assert_eq!(tags(&mut client), [3, 4]);
}

#[test]
fn a_flush_does_not_hide_what_a_restarted_machine_forgot() {
    let mut client = Client::default();
    let one = |client: &mut Client<()>, request: Request| {
        client.push(request, ());
        let tag = client.send().unwrap().0;
        client.answered(tag, Status::Ok).unwrap().1
    };
    client.connected(&opened(1, 100, 1 << 20), "a");
    assert_eq!(one(&mut client, ask(Operation::Write, 0, 1)), Status::Ok);
    assert_eq!(one(&mut client, flush()), Status::Ok);
    // Everything was stable.
    client.disconnected();
    client.connected(&opened(2, 100, 1 << 20), "b");
    assert_eq!(one(&mut client, flush()), Status::Ok);
    // A write that is stable at once is nothing to be lost.
    assert_eq!(
        one(&mut client, Request { stable: true, ..ask(Operation::Write, 0, 1) }),
        Status::Ok
    );
    client.disconnected();
    client.connected(&opened(3, 100, 1 << 20), "c");
    assert_eq!(one(&mut client, flush()), Status::Ok);
    // The same machine with another process keeps what was written.
    assert_eq!(one(&mut client, ask(Operation::Discard, 0, 1)), Status::Ok);
    client.disconnected();
    client.connected(&opened(4, 100, 1 << 20), "c");
    assert_eq!(one(&mut client, flush()), Status::Ok);
    // An image that outlives the machine keeps it, too.
    assert_eq!(one(&mut client, ask(Operation::Write, 0, 1)), Status::Ok);
    client.disconnected();
    client.connected(&Opened { durable: true, ..opened(5, 100, 1 << 20) }, "e");
    assert_eq!(one(&mut client, flush()), Status::Ok);
    // It may be gone: said once.
    assert_eq!(one(&mut client, ask(Operation::Write, 0, 1)), Status::Ok);
    client.disconnected();
    client.connected(&opened(5, 100, 1 << 20), "d");
    assert_eq!(one(&mut client, flush()), Status::Failed);
    assert_eq!(one(&mut client, flush()), Status::Ok);
}

#[test]
fn a_flush_covers_what_was_answered_before_it_was_sent() {
    let mut client = Client::default();
    client.connected(&opened(1, 100, 1 << 20), "a");
    client.push(ask(Operation::Write, 0, 1), ());
    client.push(flush(), ());
    assert_eq!(tags(&mut client), [0, 1]);
    assert!(client.answered(0, Status::Ok).is_some());
    assert!(client.answered(1, Status::Ok).is_some());
    client.disconnected();
    client.connected(&opened(2, 100, 1 << 20), "b");
    client.push(flush(), ());
    assert_eq!(tags(&mut client), [2]);
    assert_eq!(client.answered(2, Status::Ok).unwrap().1, Status::Failed);
}

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    Push {
        operation: usize,
        sector: u64,
        sectors: u64,
    },
    Send,
    /// The store does one of those it was sent, and answers at once or later.
    Do(usize),
    Answer(usize),
    Break,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..3, 0u64..12, 1u64..5)
            .prop_map(|(operation, sector, sectors)| Step::Push { operation, sector, sectors }),
        4 => Just(Step::Send),
        4 => any::<usize>().prop_map(Step::Do),
        3 => any::<usize>().prop_map(Step::Answer),
        1 => Just(Step::Break),
    ]
}

/// A store whose image is one number for each sector.
#[derive(Default)]
struct Store {
    image: [u64; 16],
    /// Sent and not done; done and not answered.
    asked: Vec<(u64, Request, u64)>,
    done: Vec<u64>,
}

impl Store {
    fn do_one(&mut self, which: usize) {
        if self.asked.is_empty() {
            return;
        }
        let (tag, request, number) = self.asked.remove(which % self.asked.len());
        let range = request.offset / SECTOR..(request.offset + request.length) / SECTOR;
        for sector in range {
            match request.operation {
                Operation::Write => self.image[sector as usize] = number,
                Operation::WriteZeroes => self.image[sector as usize] = 0,
                _ => {}
            }
        }
        self.done.push(tag);
    }
}

proptest! {
    /// However connections end and in whatever order the store works, what is there in the end is
    /// what was pushed last, and everything is answered once.
    #[test]
    fn what_was_pushed_last_is_there(steps in proptest::collection::vec(step(), 1..200), limit in 1u16..20) {
        let mut client = Client::default();
        let (mut store, mut handle, mut pushed) = (Store::default(), 1, 0u64);
        let (mut model, mut answers) = ([0u64; 16], Vec::new());
        client.connected(&opened(handle, limit, 1 << 20), "a");
        let send = |client: &mut Client<u64>, store: &mut Store| {
            let Some((tag, _, sent)) = client.send() else { return false };
            store.asked.push((tag, sent.request.clone(), sent.job));
            true
        };
        let answer = |client: &mut Client<u64>, store: &mut Store, which: usize, answers: &mut Vec<u64>| {
            if store.done.is_empty() {
                return;
            }
            let tag = store.done.remove(which % store.done.len());
            answers.push(client.answered(tag, Status::Ok).unwrap().0.job);
        };
        for step in steps {
            match step {
                Step::Push { operation, sector, sectors } => {
                    let operation = [Operation::Read, Operation::Write, Operation::WriteZeroes][operation];
                    pushed += 1;
                    for sector in sector..sector + sectors {
                        match operation {
                            Operation::Write => model[sector as usize] = pushed,
                            Operation::WriteZeroes => model[sector as usize] = 0,
                            _ => {}
                        }
                    }
                    client.push(ask(operation, sector, sectors), pushed);
                }
                Step::Send => _ = send(&mut client, &mut store),
                Step::Do(which) => store.do_one(which),
                Step::Answer(which) => answer(&mut client, &mut store, which, &mut answers),
                Step::Break => {
                    client.disconnected();
                    // Fenced: what was not done never is, and no answer arrives.
                    store.asked.clear();
                    store.done.clear();
                    handle += 1;
                    client.connected(&opened(handle, limit, 1 << 20), "a");
                }
            }
            prop_assert!(client.under_way() <= usize::from(limit));
        }
        while !client.is_empty() {
            while send(&mut client, &mut store) {}
            while !store.asked.is_empty() {
                store.do_one(1);
            }
            answer(&mut client, &mut store, 0, &mut answers);
        }
        prop_assert_eq!(store.image, model);
        answers.sort_unstable();
        prop_assert_eq!(answers, (1..=pushed).collect::<Vec<u64>>());
    }
}

#[test]
fn half_a_tag_says_which_read_was_delivered() {
    let mut client: Client<u32> = Client::default();
    assert!(client.delivered(0).is_err());
    // Just before the lower half begins anew.
    client.next_tag = (3 << 32) - 2;
    client.connected(&opened(7, 8, 1 << 20), "a");
    for job in 0..3 {
        client.push(ask(Operation::Read, u64::from(job) * 8, 8), job);
    }
    client.push(ask(Operation::Write, 0, 1), 3);
    let tags = tags(&mut client);
    assert_eq!(tags, [(3 << 32) - 2, (3 << 32) - 1, 3 << 32, (3 << 32) + 1]);
    for (job, tag) in tags.iter().enumerate().take(3) {
        assert_eq!(client.delivered(*tag as u32), Ok(*tag));
        let (answered, status) = client.answered(*tag, Status::Ok).unwrap();
        assert_eq!((answered.job, status), (job as u32, Status::Ok));
        assert!(client.delivered(*tag as u32).is_err(), "twice");
    }
    // Nothing is delivered for a write, or for what was not asked yet.
    assert!(client.delivered(1).is_err() && client.delivered(2).is_err());
}
