use std::ops::Range;

/// The order in which the candidates of one call are tried: those that go
/// first, then the others as they are listed, each once.
#[derive(Debug, Default)]
pub(super) struct Route {
    /// Whom the session stays with, and whom the request names.
    front: [Option<usize>; 2],
    /// The request's own list, if it has one.
    listed: Option<Vec<usize>>,
    /// How many candidates there are.
    all: usize,
}

impl Route {
    pub(super) const fn new(all: usize, listed: Option<Vec<usize>>) -> Self {
        Self {
            front: [None; 2],
            listed,
            all,
        }
    }

    /// The one that goes before those that are listed.
    pub(super) const fn name(&mut self, candidate: usize) {
        self.front[1] = Some(candidate);
    }

    /// The one that goes before all others, if it is on the way at all.
    pub(super) fn prefer(&mut self, candidate: usize) {
        let listed = |listed: &Vec<usize>| listed.contains(&candidate);
        let known = self.listed.as_ref().map_or(candidate < self.all, listed);
        if known || self.front[1] == Some(candidate) {
            self.front[0] = Some(candidate);
        }
    }

    /// All stops, the first with 0.
    pub(super) fn stops(&self) -> Range<usize> {
        let listed = self.listed.as_ref().map_or(self.all, Vec::len);
        0..self.front.len() + listed
    }

    /// Who stands at a stop; nobody if it was passed before.
    pub(super) fn at(&self, stop: usize) -> Option<usize> {
        match stop {
            0 => self.front[0],
            1 => self.front[1].filter(|it| self.front[0] != Some(*it)),
            _ => {
                let at = stop - self.front.len();
                let candidate = match &self.listed {
                    Some(listed) => *listed.get(at)?,
                    None => Some(at).filter(|at| *at < self.all)?,
                };
                Some(candidate).filter(|it| !self.front.contains(&Some(*it)))
            }
        }
    }
}
