//! The order of the candidates of one request, and a request's own list of them.

use std::{ops::Range, sync::Arc};

use crate::{attempt::Candidate, error::InvalidRequest};

/// The order in which one call tries its candidates, each at most once.
///
/// A stop is a place in that order. The first two stops are for candidates that go before the
/// listed ones, and may be empty.
#[derive(Debug, Default)]
pub(super) struct Route {
    /// The candidate of the session, and the one that the request names; `None` if unknown.
    front: [Option<usize>; 2],
    /// The candidates of the request's own list; `None` if all of the layer's follow in order.
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

    /// Puts the candidate that the request names at the second stop.
    pub(super) const fn name(&mut self, candidate: usize) {
        self.front[1] = Some(candidate);
    }

    /// Puts a candidate at the first stop, unless the request's own list lacks it. The candidate
    /// that the request names need not be in the list.
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

    /// The candidate at a stop; `None` if the stop is empty, or an earlier stop has the same one.
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

/// The candidates that one request may go to, in order; an extension of the request.
///
/// The program sets the extension. The candidate that the request names as its `model` goes before
/// the listed ones, even if the list lacks it. With an [empty list](Self::none) the request goes to
/// the named candidate only; if the request names none that accepts its dialect, to the first
/// candidate that does. A listed name that no candidate has fails the call with an
/// [`InvalidRequest`](crate::error::InvalidRequest).
///
/// ```
/// use tower_agent::CandidateOrder;
///
/// let mut request = http::Request::new(());
/// request
///     .extensions_mut()
///     .insert(CandidateOrder::new(["small", "large"]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CandidateOrder(Arc<[String]>);

impl CandidateOrder {
    /// The empty list: the request goes to one candidate only.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Makes the list from the [labels](Candidate::label) of candidates, in order.
    pub fn new<T: Into<String>>(names: impl IntoIterator<Item = T>) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }

    /// The positions of the listed candidates in the layer's list, each once.
    ///
    /// A name stands for all candidates that share it, since only one of them may accept the
    /// request's dialect.
    pub(super) fn find(&self, candidates: &[Arc<Candidate>]) -> Result<Vec<usize>, InvalidRequest> {
        let mut found = Vec::with_capacity(self.0.len());
        for name in &*self.0 {
            let all = candidates.iter().enumerate();
            let named = all.filter(|(_, it)| it.label() == name);
            let mut named = named.map(|(at, _)| at).peekable();
            if named.peek().is_none() {
                return Err(unknown(name, candidates));
            }
            for at in named {
                if !found.contains(&at) {
                    found.push(at);
                }
            }
        }
        Ok(found)
    }
}

fn unknown(name: &str, candidates: &[Arc<Candidate>]) -> InvalidRequest {
    let known: Vec<_> = candidates.iter().map(|it| it.label()).collect();
    let known = known.join(", ");
    InvalidRequest::new(format!(
        "the request's list of candidates names {name:?}, which is none of {known}"
    ))
}
