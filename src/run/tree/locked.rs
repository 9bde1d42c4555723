//! The part of a node behind its lock: children, waiters, windows.

use std::sync::{Arc, Weak};

use super::{
    idle_window::IdleWindow,
    node::Node,
    waiters::{SmallSlab, Waiters},
};
use crate::run::reason::TerminalReason;

#[derive(Debug)]
pub(super) struct LockedNode<P> {
    pub(super) children: Children<P>,
    pub(super) waiters: Waiters,
    pub(super) windows: SmallSlab<Arc<IdleWindow>>,
    rare: Option<Box<Rare<P>>>,
}

/// The data behind a node's lock that few nodes ever have.
#[derive(Debug)]
struct Rare<P> {
    also: Vec<TerminalReason>,
    /// The nodes that this node follows, each with this node's key among that node's children.
    follows: Vec<(Weak<Node<P>>, usize)>,
}

impl<P> LockedNode<P> {
    pub(super) fn new() -> Self {
        Self {
            children: Children::new(),
            waiters: Waiters::new(),
            windows: SmallSlab::new(),
            rare: None,
        }
    }

    pub(super) fn also(&self) -> &[TerminalReason] {
        self.rare.as_ref().map_or(&[], |rare| &rare.also)
    }

    pub(super) fn follows(&self) -> &[(Weak<Node<P>>, usize)] {
        self.rare.as_ref().map_or(&[], |rare| &rare.follows)
    }

    pub(super) fn add_also(&mut self, reason: TerminalReason) {
        self.rare.get_or_insert_default().also.push(reason);
    }

    pub(super) fn take_followed(&mut self) -> Vec<(Weak<Node<P>>, usize)> {
        self.rare.take().map_or_else(Vec::new, |rare| rare.follows)
    }

    pub(super) fn add_followed(&mut self, node: Weak<Node<P>>, key: usize) {
        self.rare.get_or_insert_default().follows.push((node, key));
    }
}

impl<P> Default for Rare<P> {
    fn default() -> Self {
        Self {
            also: Vec::new(),
            follows: Vec::new(),
        }
    }
}

/// The nodes that end with this node: its children and its followers.
#[derive(Debug)]
pub(super) struct Children<P>(SmallSlab<Weak<Node<P>>>);

impl<P> Children<P> {
    pub(super) const fn new() -> Self {
        Self(SmallSlab::new())
    }

    /// The key under which the next child or follower will be stored.
    pub(super) fn next_key(&self) -> usize {
        self.0.next_key()
    }

    pub(super) fn insert(&mut self, node: Weak<Node<P>>) -> usize {
        self.0.insert(node)
    }

    pub(super) fn remove(&mut self, key: usize) {
        self.0.remove(key);
    }

    pub(super) fn alive(&self) -> impl Iterator<Item = Arc<Node<P>>> {
        self.0.iter().filter_map(Weak::upgrade)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
