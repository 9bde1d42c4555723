use std::sync::{Arc, Weak};

use slab::Slab;

use super::Node;

/// The nodes that end when this one does: its children, and those that follow it.
#[derive(Debug)]
pub(crate) struct Children<P> {
    // Most nodes have one at a time, which needs no allocation.
    first: Option<Weak<Node<P>>>,
    rest: Slab<Weak<Node<P>>>,
}

impl<P> Children<P> {
    pub(super) const fn new() -> Self {
        Self {
            first: None,
            rest: Slab::new(),
        }
    }

    /// The key that the next one will have.
    pub(super) fn next_key(&self) -> usize {
        match self.first {
            None => 0,
            Some(_) => self.rest.vacant_key() + 1,
        }
    }

    pub(super) fn insert(&mut self, node: Weak<Node<P>>) -> usize {
        if self.first.is_none() {
            self.first = Some(node);
            return 0;
        }
        self.rest.insert(node) + 1
    }

    pub(super) fn remove(&mut self, key: usize) {
        match key.checked_sub(1) {
            None => self.first = None,
            Some(key) => drop(self.rest.try_remove(key)),
        }
    }

    pub(super) fn alive(&self) -> impl Iterator<Item = Arc<Node<P>>> {
        let rest = self.rest.iter().map(|(_, node)| node);
        self.first.iter().chain(rest).filter_map(Weak::upgrade)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }
}
