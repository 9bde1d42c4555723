//! The candidate that served each session last.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, OnceLock},
};

use super::cooldown::digest_candidate;
use crate::{
    attempt::Candidate,
    lock::Lock,
    registry::{
        DigestKeys, Owner, Purpose, RunRegistry,
        store::{HearsOfCandidates, RunNews, RunStore, StickyCandidate},
    },
    run::Run,
};

/// The maximum number of sessions in one generation; `StickySessions` has two of them.
const SESSIONS: usize = 4096;

/// Remembers the candidate that served each session last.
///
/// The memory is bounded: when the young generation is full, it becomes the old one, and the layer
/// forgets the sessions that are only in the previous old one.
///
/// A candidate is its place in the layer's list, which never changes. Other replicas have other lists,
/// so they are told a digest of the candidate.
#[derive(Debug, Default)]
pub(crate) struct StickySessions {
    generations: Lock<Generations>,
    shared: OnceLock<SharedSessions>,
}

/// What the sessions that replicas share have beside the places.
#[derive(Debug)]
struct SharedSessions {
    store: Arc<dyn RunStore>,
    /// The digests of the layer's candidates.
    candidates: Vec<u64>,
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

    /// Records the candidate that serves the session of `own`, and tells of a change.
    pub(super) fn serve(&self, session: u64, candidate: usize, own: &Run) {
        let before = self.generations.lock().insert(session, candidate);
        if before != Some(candidate) {
            self.tell(session, candidate, own);
        }
    }

    fn tell(&self, session: u64, candidate: usize, own: &Run) {
        let Some(shared) = self.shared.get() else {
            return;
        };
        let identity = own.nearest().identity();
        let named = identity.and_then(|it| Some((Owner(it.owner), it.session.clone()?)));
        if let (Some((owner, name)), Some(digest)) = (named, shared.candidates.get(candidate)) {
            shared.store.tell(RunNews::SessionServed {
                owner,
                session: name,
                served: StickyCandidate::new(session, *digest),
            });
        }
    }

    /// Shares the sessions with the other replicas of the registry. The first store stays.
    pub(super) fn share(self: &Arc<Self>, registry: &RunRegistry, candidates: &[Arc<Candidate>]) {
        let Some(store) = registry.store() else {
            return;
        };
        self.shared.get_or_init(|| SharedSessions {
            store: Arc::clone(store),
            candidates: candidates.iter().map(|it| digest_candidate(it)).collect(),
        });
        registry.add_listener(&(Arc::clone(self) as Arc<dyn HearsOfCandidates>));
    }

    /// Takes over what the store answered, for sessions that are not known here.
    pub(crate) fn learn(&self, served: &[StickyCandidate]) {
        for served in served {
            if self.find(served.session).is_none() {
                self.session_served(*served);
            }
        }
    }
}

impl HearsOfCandidates for StickySessions {
    fn session_served(&self, served: StickyCandidate) {
        let candidates = self.shared.get().map(|shared| &shared.candidates);
        let mut candidates = candidates.into_iter().flatten();
        if let Some(at) = candidates.position(|it| *it == served.candidate) {
            self.generations.lock().insert(served.session, at);
        }
    }
}

impl Generations {
    /// Returns the candidate before.
    fn insert(&mut self, session: u64, candidate: usize) -> Option<usize> {
        if let Some(served) = self.young.get_mut(&session) {
            return Some(mem::replace(served, candidate));
        }
        let before = self.old.get(&session).copied();
        if self.young.len() >= SESSIONS {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(session, candidate);
        before
    }
}

#[cfg(test)]
mod tests {
    use super::{SESSIONS, StickySessions};

    #[test]
    fn a_flood_of_sessions_is_bounded_and_leaves_those_in_use() {
        let sessions = StickySessions::default();
        let insert = |session, at| sessions.generations.lock().insert(session, at);
        insert(u64::MAX, 7);
        for session in 0..10 * SESSIONS as u64 {
            insert(session, 1);
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
