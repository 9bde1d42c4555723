//! The candidates of one request, the order that a request asks for, and the candidate of its
//! session.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    mem,
    ops::Range,
    sync::Arc,
};

use crate::{attempt::Candidate, error::InvalidRequest, lock::Lock, run::Run};

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

/// The candidates that one request may go to, in order; an extension of the request.
///
/// The program sets it. The candidate that the request names as its `model` still goes
/// first, also if the list does not have it. With an empty list the request goes to the
/// named candidate only, or to the first that can serve. A name that no candidate has is an
/// error, an [`InvalidRequest`](crate::error::InvalidRequest).
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
    /// Makes the list from the [labels](Candidate::label) of candidates, in order.
    pub fn new<T: Into<String>>(names: impl IntoIterator<Item = T>) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }

    /// The positions of these candidates in the layer's list, each once.
    ///
    /// A name finds all candidates that share it: one of them may accept the request's
    /// dialect.
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

/// The most sessions in one generation; there are two generations.
const SESSIONS: usize = 4096;

/// Remembers the candidate that served each session last.
///
/// The memory is bounded: a full young generation becomes the old one, and the sessions
/// of the old one that were not used meanwhile are forgotten.
#[derive(Debug, Default)]
pub(super) struct StickySessions {
    hasher: RandomState,
    generations: Lock<Generations>,
}

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<u64, usize>,
    old: HashMap<u64, usize>,
}

impl StickySessions {
    /// The digest of the run's session and the requested model; `None` without a session.
    ///
    /// Another model is another digest: a session that asks for one wants to leave its
    /// candidate.
    pub(super) fn of(&self, own: &Run, model: Option<&str>) -> Option<u64> {
        let run = &own.nearest().payload;
        let identity = run.identity()?;
        let session = identity.session.as_ref()?;
        Some(self.hasher.hash_one((identity.owner, session, model)))
    }

    pub(super) fn find(&self, session: u64) -> Option<usize> {
        let mut generations = self.generations.lock();
        let served = generations.young.get(&session).copied();
        served.or_else(|| {
            let served = generations.old.remove(&session)?;
            generations.insert(session, served);
            Some(served)
        })
    }

    pub(super) fn insert(&self, session: u64, candidate: usize) {
        self.generations.lock().insert(session, candidate);
    }
}

impl Generations {
    fn insert(&mut self, session: u64, candidate: usize) {
        if self.young.len() >= SESSIONS && !self.young.contains_key(&session) {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(session, candidate);
    }
}

#[cfg(test)]
mod tests {
    use super::{SESSIONS, StickySessions};

    #[test]
    fn a_flood_of_sessions_is_bounded_and_leaves_those_in_use() {
        let sessions = StickySessions::default();
        sessions.insert(u64::MAX, 7);
        for session in 0..10 * SESSIONS as u64 {
            sessions.insert(session, 1);
            if session % 1000 == 0 {
                assert_eq!(sessions.find(u64::MAX), Some(7));
            }
        }
        assert_eq!(sessions.find(0), None, "nobody asked for it any more");
        let it = sessions.generations.lock();
        let held = it.young.len() + it.old.len();
        assert!(held <= 2 * SESSIONS + 1, "{held}");
    }
}
