use std::ops::Range;

/// The order in which the candidates of one call are tried, each once.
///
/// A stop is a place in that order. The first two are for candidates that go before the
/// listed ones, and are empty if there are none.
#[derive(Debug, Default)]
pub(super) struct Route {
    /// The candidate of the session, and the one that the request names, if known.
    front: [Option<usize>; 2],
    /// The candidates of the request's own list, if it has one.
    listed: Option<Vec<usize>>,
    /// The number of the layer's candidates.
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

    /// Sets the candidate that the request names.
    pub(super) const fn name(&mut self, candidate: usize) {
        self.front[1] = Some(candidate);
    }

    /// Puts a candidate before all others, if it is on the route.
    pub(super) fn prefer(&mut self, candidate: usize) {
        let listed = |listed: &Vec<usize>| listed.contains(&candidate);
        let known = self.listed.as_ref().map_or(candidate < self.all, listed);
        if known || self.front[1] == Some(candidate) {
            self.front[0] = Some(candidate);
        }
    }

    /// All stops of the route, from 0 on.
    pub(super) fn stops(&self) -> Range<usize> {
        let listed = self.listed.as_ref().map_or(self.all, Vec::len);
        0..self.front.len() + listed
    }

    /// The candidate at a stop; `None` if the stop is empty, or an earlier one has it.
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
