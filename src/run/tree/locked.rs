//! What of a node is behind its lock.

use std::sync::{Arc, Weak};

use super::{
    children::Children, idle_window::IdleWindow, node::Node, small_slab::SmallSlab,
    waiters::Waiters,
};
use crate::run::reason::TerminalReason;

#[derive(Debug)]
pub(super) struct LockedNode<P> {
    pub(super) children: Children<P>,
    pub(super) waiters: Waiters,
    pub(super) windows: SmallSlab<Arc<IdleWindow>>,
    rare: Option<Box<Rare<P>>>,
}

/// What few nodes ever have.
#[derive(Debug)]
struct Rare<P> {
    also: Vec<TerminalReason>,
    /// Where this node is listed besides its parent, to be forgotten there.
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
