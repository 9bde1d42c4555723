use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Wake, Waker},
};

use super::super::{end::End, node::Node};
use crate::run::tree::node::{EndHook, PendingWakes};

/// In which order hooks and wakers were called, and what they could see.
#[derive(Debug, Default)]
pub(super) struct Journal {
    opened: AtomicUsize,
    nodes: Mutex<Vec<Weak<Node<Log>>>>,
    entries: Mutex<Vec<Entry>>,
}

/// `ended` has a bit for each node of the tree that had its end by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Told { node: usize, ended: u64 },
    Woken { waker: usize, ended: u64 },
}

/// The payload of a node that writes down when it is told of its end.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) id: usize,
    journal: Arc<Journal>,
}

struct Alarm {
    id: usize,
    journal: Arc<Journal>,
}

impl Journal {
    pub(super) fn next(self: &Arc<Self>) -> Log {
        Log {
            id: self.opened.fetch_add(1, Ordering::Relaxed),
            journal: Arc::clone(self),
        }
    }

    /// A waker that writes down that it was called.
    pub(super) fn waker(self: &Arc<Self>, id: usize) -> Waker {
        Waker::from(Arc::new(Alarm {
            id,
            journal: Arc::clone(self),
        }))
    }

    pub(super) fn watch(&self, node: &Arc<Node<Log>>) {
        let mut nodes = self.nodes.lock().unwrap();
        nodes.push(Arc::downgrade(node));
    }

    /// What was written since the last call.
    pub(super) fn take(&self) -> Vec<Entry> {
        std::mem::take(&mut self.entries.lock().unwrap())
    }

    /// Which wakers were called since the last call, once per call.
    pub(super) fn woken(&self) -> Vec<usize> {
        let woken = |entry| match entry {
            Entry::Woken { waker, .. } => Some(waker),
            Entry::Told { .. } => None,
        };
        self.take().into_iter().filter_map(woken).collect()
    }

    fn ended(&self) -> u64 {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let has_end = |node: &Weak<Node<Log>>| {
            let node = node.upgrade();
            u64::from(node.is_some_and(|node| node.own_end().is_some()))
        };
        // A node that is just being opened has no bit to miss yet.
        let unknown = u64::MAX << nodes.len();
        let bits = nodes.iter().enumerate();
        bits.fold(unknown, |ended, (id, node)| ended | has_end(node) << id)
    }

    fn write(&self, entry: Entry) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push(entry);
    }
}

impl EndHook for Log {
    fn ended(&self, node: &Node<Self>, end: &End, _later: &mut PendingWakes<Self>) {
        let own = node.own_end().map(|own| own.origin);
        assert_eq!(own, Some(end.origin), "told before its end was stored");
        assert_eq!(node.payload.id, self.id, "told of another node's end");
        let ended = self.journal.ended();
        let node = self.id;
        self.journal.write(Entry::Told { node, ended });
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        let ended = self.journal.ended();
        let waker = self.id;
        self.journal.write(Entry::Woken { waker, ended });
    }
}
