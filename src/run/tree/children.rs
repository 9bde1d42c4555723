use std::sync::{Arc, Weak};

use super::{node::Node, small_slab::SmallSlab};

/// The nodes that end when this one does: its children, and those that follow it.
#[derive(Debug)]
pub(super) struct Children<P>(SmallSlab<Weak<Node<P>>>);

impl<P> Children<P> {
    pub(super) const fn new() -> Self {
        Self(SmallSlab::new())
    }

    /// The key that the next one will have.
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
