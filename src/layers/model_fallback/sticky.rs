use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    mem,
    sync::{Mutex, PoisonError},
};

use crate::run::Run;

/// How many sessions one generation holds; two are kept.
const SESSIONS: usize = 4096;

/// Which candidate served a session last.
///
/// Bounded: once a generation is full, what was not used since the one before
/// it is forgotten.
#[derive(Debug, Default)]
pub(super) struct StickySessions {
    hasher: RandomState,
    generations: Mutex<Generations>,
}

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<u64, usize>,
    old: HashMap<u64, usize>,
}

impl StickySessions {
    /// The digest of a session that asks for a model; none without a session.
    /// One that asks for another model starts anew: it wants that one.
    pub(super) fn of(&self, own: &Run, model: Option<&str>) -> Option<u64> {
        let run = &own.nearest().payload;
        let identity = run.identity()?;
        let session = identity.session.as_ref()?;
        Some(self.hasher.hash_one((identity.owner, session, model)))
    }

    pub(super) fn find(&self, session: u64) -> Option<usize> {
        self.with(|generations| {
            let served = generations.young.get(&session).copied();
            served.or_else(|| {
                let served = generations.old.remove(&session)?;
                generations.insert(session, served);
                Some(served)
            })
        })
    }

    pub(super) fn stay(&self, session: u64, candidate: usize) {
        self.with(|generations| generations.insert(session, candidate));
    }

    fn with<T>(&self, f: impl FnOnce(&mut Generations) -> T) -> T {
        let generations = self.generations.lock();
        f(&mut generations.unwrap_or_else(PoisonError::into_inner))
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
        sessions.stay(u64::MAX, 7);
        for session in 0..10 * SESSIONS as u64 {
            sessions.stay(session, 1);
            if session % 1000 == 0 {
                assert_eq!(sessions.find(u64::MAX), Some(7));
            }
        }
        assert_eq!(sessions.find(0), None, "nobody asked for it any more");
        let held = sessions.with(|it| it.young.len() + it.old.len());
        assert!(held <= 2 * SESSIONS + 1, "{held}");
    }
}
