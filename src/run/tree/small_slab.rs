use slab::Slab;

/// Some of what a node keeps, each under a key: mostly there is one at a time, which
/// needs no allocation, and little room in the node.
#[derive(Debug)]
pub(super) struct SmallSlab<T> {
    first: Option<T>,
    rest: Option<Box<Slab<T>>>,
}

impl<T> SmallSlab<T> {
    pub(super) const fn new() -> Self {
        Self {
            first: None,
            rest: None,
        }
    }

    /// The key that the next one will have.
    pub(super) fn next_key(&self) -> usize {
        match (&self.first, &self.rest) {
            (None, _) => 0,
            (Some(_), None) => 1,
            (Some(_), Some(rest)) => rest.vacant_key() + 1,
        }
    }

    pub(super) fn insert(&mut self, item: T) -> usize {
        if self.first.is_none() {
            self.first = Some(item);
            return 0;
        }
        self.rest.get_or_insert_default().insert(item) + 1
    }

    pub(super) fn get_mut(&mut self, key: usize) -> Option<&mut T> {
        match key.checked_sub(1) {
            None => self.first.as_mut(),
            Some(key) => self.rest.as_mut()?.get_mut(key),
        }
    }

    /// Answers what was there.
    pub(super) fn remove(&mut self, key: usize) -> Option<T> {
        match key.checked_sub(1) {
            None => self.first.take(),
            Some(key) => self.rest.as_mut()?.try_remove(key),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        let rest = self.rest.iter().flat_map(|rest| rest.iter());
        self.first.iter().chain(rest.map(|(_, item)| item))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.as_ref().map_or(0, |rest| rest.len())
    }
}
