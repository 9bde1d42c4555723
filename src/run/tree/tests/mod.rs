//! Tier 0: the core against a reference model, and each invariant by name.
//!
//! `model` says what a tree does, `event` what may happen to one, `tree` lets
//! it happen to both and compares; `sequences` draws the sequences. The seed is
//! fixed, so that a run repeats; `TOWER_AGENT_SEED=<number>` draws others.

mod announced;
mod closing;
mod compare;
mod effects;
mod event;
mod follow;
mod invariants;
mod journal;
mod model;
mod registrations;
mod same_instant;
mod sequences;
mod silence;
mod threads;
mod tree;
mod windows;

use std::{sync::Arc, time::Duration};

use self::journal::{Journal, Log};
use super::{
    super::{reason::TerminalReason, step::ResetOn, tree::NodeKind},
    end::End,
    idle_window::{IdleWindow, TaskId, WindowKind},
    nanos::{Nanos, nanos},
    node::Node,
};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn at(millis: u64) -> Nanos {
    millis * 1_000_000
}

/// A tree whose nodes are told apart by the order in which they were opened.
struct Sapling {
    journal: Arc<Journal>,
    root: Arc<Node<Log>>,
}

impl Sapling {
    fn new() -> Self {
        let journal = Arc::new(Journal::default());
        let root = Node::root(NodeKind::Run, 0, journal.next());
        journal.watch(&root);
        Self { journal, root }
    }

    fn open(&self, under: &Arc<Node<Log>>, kind: NodeKind, now: Duration) -> Arc<Node<Log>> {
        let log = self.journal.next();
        let number = log.id as u64;
        let node = under.child(kind, number, log, now);
        self.journal.watch(&node);
        node
    }

    fn last_call(&self, under: &Arc<Node<Log>>, now: Duration) -> Arc<Node<Log>> {
        let log = self.journal.next();
        let number = log.id as u64;
        let node = under.last_call(number, log, now);
        self.journal.watch(&node);
        node
    }

    /// A call and its attempt under the root.
    fn call(&self) -> [Arc<Node<Log>>; 2] {
        let call = self.open(&self.root, NodeKind::Call, Duration::ZERO);
        let attempt = self.open(&call, NodeKind::Attempt, Duration::ZERO);
        [call, attempt]
    }
}

fn window(node: &Node<Log>, resets_on: ResetOn) -> Arc<IdleWindow> {
    let window = Arc::new(IdleWindow::new(WindowKind::Step(resets_on)));
    node.add_window(&window);
    window
}

fn callers_window(node: &Node<Log>) -> Arc<IdleWindow> {
    let window = Arc::new(IdleWindow::new(WindowKind::Callers));
    node.add_window(&window);
    window
}

fn run(window: &IdleWindow, since: Duration, length: Duration, task: TaskId) {
    window.run(nanos(since), nanos(length), task);
}

fn reason(node: &Node<Log>) -> Option<TerminalReason> {
    node.own_end().map(|end| end.reason.clone())
}

/// Which node an end started from, and why.
fn cause(end: &End) -> (u64, TerminalReason) {
    (end.origin, end.reason.clone())
}
