//! With real threads: what a sequence of events cannot show.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use super::*;
use crate::run::tree::{
    clocks::Clock,
    node::{EndHook, PendingWakes},
};

const ROUNDS: usize = 3_000;

/// How often a node was told of its end, and how often that its last work was gone.
#[derive(Default)]
struct Told {
    ended: AtomicUsize,
    settled: AtomicUsize,
}

impl EndHook for Told {
    fn ended(&self, node: &Node<Self>, end: &End, _later: &mut PendingWakes<Self>) {
        assert_eq!(node.own_end().map(|own| own.origin), Some(end.origin));
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn settled(&self, node: &Node<Self>) {
        assert!(!node.is_idle());
        self.settled.fetch_add(1, Ordering::Relaxed);
    }
}

fn root() -> Arc<Node<Told>> {
    Node::root(NodeKind::Run, 0, Told::default())
}

fn open(under: &Arc<Node<Told>>, number: u64) -> Arc<Node<Told>> {
    under.child(NodeKind::Call, number, Told::default(), ms(number))
}

/// Lets the threads into each round together: spinning, since a barrier that
/// sleeps lets them in one after the other.
struct Gate {
    threads: usize,
    arrived: AtomicUsize,
}

impl Gate {
    const fn new(threads: usize) -> Self {
        Self {
            threads,
            arrived: AtomicUsize::new(0),
        }
    }

    fn enter(&self, round: usize) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        let mut spins = 0;
        while self.arrived.load(Ordering::Acquire) < self.threads * (round + 1) {
            spins += 1;
            if spins % 64 == 0 {
                thread::yield_now();
            }
        }
    }
}

#[test]
fn one_of_several_concurrent_ends_wins_and_all_see_it() {
    let reasons = [
        TerminalReason::Aborted,
        TerminalReason::Shutdown,
        TerminalReason::ClientDisconnect,
    ];
    let trees: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let root = root();
            let child = open(&root, 1);
            (root, child)
        })
        .collect();
    let gate = Gate::new(reasons.len());
    let end = |reason: &TerminalReason| {
        let ends = trees.iter().enumerate().map(|(round, (root, _))| {
            gate.enter(round);
            root.end(reason.clone(), None, ms(1))
                .map_err(|end| end.reason)
        });
        ends.collect::<Vec<_>>()
    };

    let answers: Vec<_> = thread::scope(|scope| {
        let threads = reasons.each_ref().map(|reason| scope.spawn(|| end(reason)));
        threads.map(|thread| thread.join().unwrap()).into()
    });

    for (round, (root, child)) in trees.iter().enumerate() {
        let winner = root.own_end().unwrap().reason.clone();
        let mut also = root.also();
        for (reason, answers) in reasons.iter().zip(&answers) {
            if *reason == winner {
                assert_eq!(answers[round], Ok(()));
            } else {
                assert_eq!(answers[round], Err(winner.clone()));
                let place = also.iter().position(|lost| lost == reason);
                also.remove(place.expect("a loser is kept"));
            }
        }
        assert_eq!(also, []);
        assert_eq!(child.own_end().unwrap().reason, winner);
        for node in [root, child] {
            assert_eq!(node.payload.ended.load(Ordering::Relaxed), 1);
        }
    }
}

#[test]
fn no_child_escapes_a_concurrent_end() {
    let trees: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let root = root();
            let call = open(&root, 1);
            (root, call)
        })
        .collect();
    let gate = Gate::new(3);
    let grow = |number: u64| {
        let opened = trees.iter().enumerate().map(|(round, (_, call))| {
            gate.enter(round);
            let attempt = open(call, number);
            let below = open(&attempt, number + 1);
            [attempt, below, open(call, number + 2)]
        });
        opened.collect::<Vec<_>>()
    };

    let opened = thread::scope(|scope| {
        let growing = [10, 20].map(|number| scope.spawn(move || grow(number)));
        for (round, (root, _)) in trees.iter().enumerate() {
            gate.enter(round);
            root.end(TerminalReason::Aborted, None, ms(1)).unwrap();
        }
        growing.map(|thread| thread.join().unwrap())
    });

    for node in opened.iter().flatten().flatten() {
        assert_eq!(node.own_end().map(|end| end.origin), Some(0));
        assert_eq!(node.payload.ended.load(Ordering::Relaxed), 1, "told once");
    }
}

#[test]
fn concurrent_records_and_deadlines_keep_the_extreme() {
    let trees: Vec<_> = (0..ROUNDS).map(|_| (root(), root())).collect();
    let gate = Gate::new(4);
    let write = |at: Duration| {
        for (round, (recorded, tightened)) in trees.iter().enumerate() {
            gate.enter(round);
            recorded.record(ResetOn::Content, at);
            tightened.clocks.tighten(Clock::Ceiling, at);
        }
    };

    thread::scope(|scope| {
        for at in [30, 10, 40, 20] {
            scope.spawn(move || write(ms(at)));
        }
    });

    for (recorded, tightened) in &trees {
        assert_eq!(recorded.last(ResetOn::Content), at(40));
        assert_eq!(recorded.last(ResetOn::AnyByte), at(40));
        assert_eq!(recorded.last(ResetOn::Step), at(0));
        assert_eq!(tightened.next_deadline(), Some(at(10)));
    }
}

#[test]
fn an_ended_node_is_told_of_its_last_work_before_it_is_idle() {
    let trees: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let root = root();
            let calls = [1, 2].map(|number| open(&root, number));
            calls.iter().for_each(|call| call.begin_work());
            root.end(TerminalReason::Aborted, None, ms(1)).unwrap();
            (root, calls)
        })
        .collect();
    let gate = Gate::new(3);
    let leave = |index: usize| {
        for (round, (_, calls)) in trees.iter().enumerate() {
            gate.enter(round);
            calls[index].end_work(ms(2));
        }
    };

    thread::scope(|scope| {
        let _leaving = [0, 1].map(|index| scope.spawn(move || leave(index)));
        for (round, (root, calls)) in trees.iter().enumerate() {
            gate.enter(round);
            while !root.is_idle() {
                thread::yield_now();
            }
            for node in calls.iter().chain([root]) {
                let told = node.payload.settled.load(Ordering::Relaxed);
                assert_eq!((node.is_idle(), told), (true, 1));
            }
        }
    });
}
