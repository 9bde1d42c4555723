//! The candidate that served each session last.

use std::{collections::HashMap, mem};

use crate::{
    lock::Lock,
    registry::{DigestKeys, Purpose},
    run::Run,
};

/// The maximum number of sessions in one generation; `StickySessions` has two of them.
const SESSIONS: usize = 4096;

/// Remembers the candidate that served each session last.
///
/// The memory is bounded: when the young generation is full, it becomes the old one, and the layer
/// forgets the sessions that are only in the previous old one.
#[derive(Debug, Default)]
pub(super) struct StickySessions {
    generations: Lock<Generations>,
}

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<u64, usize>,
    old: HashMap<u64, usize>,
}

/// One digest of three values: the run's owner, its session, and the requested model.
///
/// The result is `None` if the run has no session.
///
/// A session that asks for another model has another digest, and so no candidate yet.
pub(super) fn digest_session(own: &Run, model: Option<&str>) -> Option<u64> {
    let identity = own.nearest().identity()?;
    let session = identity.session.as_ref()?;
    let owner = identity.owner.to_le_bytes();
    let values = [
        Some(owner.as_slice()),
        Some(session.as_bytes()),
        model.map(str::as_bytes),
    ];
    Some(DigestKeys::in_use().digest_all(Purpose::StickySession, values))
}

impl StickySessions {
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
