//! The balancer against made-up machines, whose queues want a fixed share of a worker's time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use proptest::collection::vec;
use proptest::prelude::*;
use switch::PortId;

use super::*;

/// A queue that wants this much of a worker's time, in parts of [`ONE`].
#[derive(Debug, Clone)]
struct Wish {
    want: u32,
    at: usize,
    node: Option<u16>,
    pinned: bool,
}

/// Workers of these nodes, and the queues on them.
#[derive(Debug, Clone)]
struct Machine {
    nodes: Vec<Option<u16>>,
    queues: Vec<Wish>,
}

fn id(queue: usize) -> TxId {
    TxId { port: PortId(queue as u16), index: 0 }
}

impl Machine {
    fn new(workers: usize, queues: &[(u32, usize)]) -> Machine {
        let wish = |&(want, at)| Wish { want, at, node: None, pinned: false };
        Machine { nodes: vec![None; workers], queues: queues.iter().map(wish).collect() }
    }

    /// What the queues at a worker want together.
    fn wanted(&self, worker: usize) -> u32 {
        self.queues.iter().filter(|queue| queue.at == worker).map(|queue| queue.want).sum()
    }

    /// The same with `noise` parts of [`ONE`] more or less for each queue, as measured: no worker
    /// does more than it can.
    fn loads(&self, mut noise: impl FnMut() -> i64) -> Vec<WorkerLoad> {
        let load = |(worker, node): (usize, &Option<u16>)| {
            let mine = self.queues.iter().enumerate().filter(|(_, queue)| queue.at == worker);
            let queues: Vec<QueueLoad> = mine
                .map(|(at, queue)| QueueLoad {
                    id: id(at),
                    cost: (i64::from(queue.want) * (i64::from(ONE) + noise())) as u64,
                    node: queue.node,
                    pinned: queue.pinned,
                })
                .collect();
            let cost = queues.iter().map(|queue| queue.cost).sum::<u64>() / u64::from(ONE);
            WorkerLoad { load: cost.min(ONE.into()) as u32, node: *node, queues }
        };
        self.nodes.iter().enumerate().map(load).collect()
    }

    /// Lets the balancer look `looks` times; the moves it made.
    fn run(
        &mut self,
        balancer: &mut Balancer,
        looks: usize,
        noise: &mut impl FnMut() -> i64,
    ) -> Vec<Move> {
        let mut moves = Vec::new();
        for _ in 0..looks {
            let Some(made) = balancer.look(&self.loads(&mut *noise)) else { continue };
            let queue = &mut self.queues[usize::from(made.id.port.0)];
            assert!(queue.at == made.from && made.from != made.to && made.to < self.nodes.len());
            assert!(!queue.pinned, "{made:?}");
            queue.at = made.to;
            moves.push(made);
        }
        moves
    }

    fn quiet_run(&mut self, looks: usize) -> Vec<Move> {
        self.run(&mut Balancer::default(), looks, &mut || 0)
    }
}

#[test]
fn an_overloaded_worker_is_relieved_after_a_while() {
    let mut machine = Machine::new(2, &[(500, 0), (400, 0), (100, 1)]);
    assert!(machine.quiet_run(PATIENCE as usize - 1).is_empty(), "a moment is no reason");
    let moves = machine.quiet_run(100);
    assert_eq!(moves, [Move { id: id(1), from: 0, to: 1 }], "the smaller one, once");
    assert_eq!((machine.wanted(0), machine.wanted(1)), (500, 500));
}

#[test]
fn more_than_a_worker_can_do_is_spread() {
    let mut machine = Machine::new(4, &[(900, 0), (900, 0), (900, 0), (900, 0)]);
    machine.quiet_run(400);
    assert!((0..4).all(|worker| machine.wanted(worker) == 900), "{machine:?}");
}

#[test]
fn one_queue_that_fills_a_worker_stays() {
    for others in [&[][..], &[(300, 1), (10, 1)], &[(20, 0)]] {
        let mut machine = Machine::new(2, &[&[(990, 0)], others].concat());
        assert!(machine.quiet_run(200).iter().all(|made| made.id != id(0)), "{others:?}");
    }
}

#[test]
fn nobody_has_room() {
    let mut machine = Machine::new(2, &[(500, 0), (450, 0), (480, 1), (470, 1)]);
    assert!(machine.quiet_run(200).is_empty());
}

#[test]
fn what_the_operator_chose_stays() {
    let mut machine = Machine::new(2, &[(400, 0), (400, 0), (200, 0)]);
    machine.queues[0].pinned = true;
    machine.queues[1].pinned = true;
    assert_eq!(machine.quiet_run(200), [Move { id: id(2), from: 0, to: 1 }]);
}

/// A worker whose only queue is pinned does not keep the next one from being relieved.
#[test]
fn each_overloaded_worker_is_tried() {
    let mut machine = Machine::new(3, &[(1000, 0), (450, 1), (450, 1)]);
    machine.queues[0].pinned = true;
    let moves = machine.quiet_run(200);
    assert_eq!(moves.len(), 1);
    assert_eq!((moves[0].from, moves[0].to), (1, 2));
}

#[test]
fn the_node_of_the_memory_is_preferred() {
    let mut machine = Machine::new(3, &[(450, 0), (450, 0), (100, 2)]);
    machine.nodes = vec![Some(0), Some(1), Some(0)];
    machine.queues[0].node = Some(0);
    machine.queues[1].node = Some(0);
    let moves = machine.quiet_run(200);
    assert_eq!(moves.iter().map(|made| made.to).collect::<Vec<_>>(), [2], "{moves:?}");
    // A detour is better than no room.
    machine.queues[2].want = 900;
    machine.queues.iter_mut().take(2).for_each(|queue| queue.at = 0);
    let moves = machine.quiet_run(200);
    assert_eq!(moves.iter().map(|made| made.to).collect::<Vec<_>>(), [1], "{moves:?}");
}

#[test]
fn a_queue_starts_where_there_is_least_to_do() {
    let quiet = Candidate { load: 0, queues: 0, remote: false, here: false };
    let place = |candidates: &[Candidate]| super::place(candidates).unwrap();
    assert_eq!(super::place(&[]), None);
    assert_eq!(place(&[quiet, quiet]), 0);
    assert_eq!(place(&[quiet, Candidate { here: true, ..quiet }]), 1, "no move for nothing");
    assert_eq!(place(&[Candidate { queues: 1, ..quiet }, quiet]), 1, "then by queues");
    assert_eq!(place(&[Candidate { load: 600, ..quiet }, Candidate { queues: 9, ..quiet }]), 1);
    let few = Candidate { load: 30, ..quiet };
    assert_eq!(place(&[few, Candidate { queues: 1, ..quiet }]), 0, "a little load is none");
    let remote = Candidate { remote: true, ..quiet };
    assert_eq!(place(&[remote, Candidate { load: 450, queues: 9, ..quiet }]), 1);
    assert_eq!(place(&[remote, Candidate { load: 950, queues: 9, ..quiet }]), 0);
}

#[test]
fn unknown_nodes_are_near() {
    assert!(is_remote(Some(0), Some(1)));
    for near in [(Some(1), Some(1)), (None, Some(1)), (Some(1), None), (None, None)] {
        assert!(!is_remote(near.0, near.1));
    }
}

fn node() -> impl Strategy<Value = Option<u16>> {
    prop_oneof![Just(None), (0u16..2).prop_map(Some)]
}

prop_compose! {
    fn machine()(nodes in vec(node(), 1..6))(
        queues in vec((1u32..=1000, 0..nodes.len(), node(), prop::bool::weighted(0.15)), 0..20),
        nodes in Just(nodes),
    ) -> Machine {
        let wish = |(want, at, node, pinned)| Wish { want, at, node, pinned };
        Machine { nodes, queues: queues.into_iter().map(wish).collect() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Under a load that stays the same, queues come to rest, and each move was one for the better.
    #[test]
    fn queues_come_to_rest(mut machine in machine()) {
        let mut balancer = Balancer::default();
        let moves = machine.queues.len() * 4;
        machine.run(&mut balancer, 40 * (moves + 1), &mut || 0);
        let late = machine.run(&mut balancer, 400, &mut || 0);
        prop_assert!(late.is_empty(), "{late:?} of {machine:?}");
        // At rest no overloaded worker has a queue that would be better off elsewhere.
        let loads = machine.loads(|| 0);
        for (from, hot) in loads.iter().enumerate().filter(|(_, worker)| worker.load >= HIGH) {
            prop_assert_eq!(Balancer::default().relief(&loads, from), None, "{:?}", hot);
        }
    }

    /// As long as no worker is overloaded nothing moves, however uneven the loads are.
    #[test]
    fn nothing_moves_below_the_threshold(mut machine in machine(), seed in any::<u64>()) {
        for worker in 0..machine.nodes.len() {
            let wanted = machine.wanted(worker);
            for queue in machine.queues.iter_mut().filter(|queue| queue.at == worker) {
                queue.want = queue.want * (HIGH - 100) / wanted.max(HIGH);
            }
        }
        let mut noise = noise(seed, 50);
        let moves = machine.run(&mut Balancer::default(), 300, &mut noise);
        prop_assert!(moves.is_empty(), "{moves:?} of {machine:?}");
    }

    /// Measurements that jump by a twentieth do not make queues go back and forth.
    #[test]
    fn noise_is_not_followed(mut machine in machine(), seed in any::<u64>()) {
        let mut noise = noise(seed, 50);
        let mut balancer = Balancer::default();
        machine.run(&mut balancer, 40 * (machine.queues.len() * 4 + 1), &mut noise);
        let late = machine.run(&mut balancer, 1000, &mut noise);
        // A gain just below the least may look like enough once or twice.
        prop_assert!(late.len() <= 2, "{late:?} of {machine:?}");
    }
}

/// Numbers from `-most` to `most`, the same for the same seed.
fn noise(seed: u64, most: i64) -> impl FnMut() -> i64 {
    let mut state = seed | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % (2 * most as u64 + 1)) as i64 - most
    }
}
