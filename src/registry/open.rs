use std::{
    convert::Infallible,
    sync::{Arc, OnceLock, Weak, atomic::AtomicU64},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    RunRegistry,
    entries::Entries,
    key::EntryKey,
    owner::Owner,
    owner_caps::{OpenRun, OwnerCaps},
    shared::Shared,
};
use crate::run::{
    EntryLocation, Identity, LimitHit, Membership, Registration, Run, RunId, RunNotice,
    TerminalReason,
};

/// What a run is enrolled with.
struct Enrolment {
    key: EntryKey,
    session: Option<Arc<str>>,
    /// Whether its id was chosen by somebody.
    named: bool,
    /// None if the run ends with its one call.
    idle: Option<Duration>,
}

/// What looks for a run by its id.
#[derive(Clone, Copy)]
enum Finder {
    /// The program, which may do with the run what it likes.
    Program,
    /// A request, whose call the run is entered for.
    Request,
}

impl RunRegistry {
    /// The owner's run of this id: the live one, else the tombstone, else a
    /// new one. Check [`Run::terminal_reason`] before you work for it: of a
    /// registry that is shut down a new one is over from its birth.
    #[must_use]
    pub fn open(&self, owner: Owner, id: RunId) -> Run {
        let uncounted = || Ok::<_, Infallible>(None);
        let Ok((run, _)) = self.find_with(owner, id, None, Self::IDLE, Finder::Program, uncounted);
        drop(run.check());
        run
    }

    /// Ends the owner's run `old` as [`Superseded`](TerminalReason::Superseded) and
    /// opens `new` in its place, in the same session: by the time anybody hears of
    /// the end, the new run is there. If `old` is unknown or has ended, `new` is
    /// opened all the same.
    ///
    /// `None`, and nothing is touched, if `new` is no new id: it lives, or ended
    /// otherwise than as completed; likewise if the registry is shut down.
    ///
    /// ```
    /// use tower_agent::{Owner, RunRegistry, TerminalReason};
    ///
    /// let (registry, us) = (RunRegistry::new(), Owner::default());
    /// let first = registry.open(us, "message-1".parse()?);
    /// let second = registry.supersede(us, &first.id(), "message-2".parse()?);
    ///
    /// assert!(second.is_some_and(|run| run.terminal_reason().is_none()));
    /// assert_eq!(first.terminal_reason(), Some(TerminalReason::Superseded));
    /// # Ok::<_, tower_agent::InvalidRunId>(())
    /// ```
    #[allow(
        clippy::must_use_candidate,
        reason = "the new run can be found by its id"
    )]
    pub fn supersede(&self, owner: Owner, old: &RunId, new: RunId) -> Option<Run> {
        let old = self.get(owner, old);
        let enrolment = Enrolment {
            key: self.shared.key(owner, new),
            session: old.as_ref().and_then(Run::session),
            named: true,
            idle: Some(self.idle_of(old.as_ref())),
        };
        let run = self.open_anew(enrolment, |known| {
            known.terminal_reason() == Some(TerminalReason::Completed)
        })?;
        if let Some(old) = old.filter(|old| old.terminal_reason().is_none()) {
            old.end(TerminalReason::Superseded);
        }
        Some(run)
    }

    /// Opens an id that has ended anew, in the same session: the next generation,
    /// with nothing on its account. For the program alone; no request can.
    ///
    /// `None` if the id is unknown, lives, or the registry is shut down.
    #[must_use]
    pub fn reopen(&self, owner: Owner, id: &RunId) -> Option<Run> {
        let ended = self.get(owner, id)?;
        let key = self.shared.key(owner, id.clone());
        let enrolment = Enrolment {
            session: ended.session(),
            named: true,
            idle: Some(self.idle_of(Some(&ended))),
            key,
        };
        self.open_anew(enrolment, |known| known.terminal_reason().is_some())
    }

    /// The run of this id, entered: it does not complete for being idle before the
    /// caller has left it, [`Node::leave`](crate::run::Node::leave). If it is a
    /// new one, and somebody counts, it is counted by `count` as its owner's: under
    /// the lock, so that of many requests with a new id one alone opens it. Answers
    /// also whether that was done.
    ///
    /// # Errors
    ///
    /// Those of `count`; nothing is opened then.
    pub(crate) fn enter_with(
        &self,
        owner: Owner,
        id: RunId,
        session: Option<Arc<str>>,
        idle: Duration,
        count: impl FnOnce() -> Result<Option<OpenRun>, LimitHit>,
    ) -> Result<(Run, bool), LimitHit> {
        self.find_with(owner, id, session, idle, Finder::Request, count)
    }

    fn find_with<E>(
        &self,
        owner: Owner,
        id: RunId,
        session: Option<Arc<str>>,
        idle: Duration,
        finder: Finder,
        count: impl FnOnce() -> Result<Option<OpenRun>, E>,
    ) -> Result<(Run, bool), E> {
        self.shared.tidy();
        let now = Instant::now();
        let key = self.shared.key(owner, id);
        let enrolment = Enrolment {
            key: key.clone(),
            session,
            named: true,
            idle: Some(idle),
        };
        let (run, counted, enrolled) = self.shared.with(&key, |entries| {
            if let Some(run) = entries.reusable(&key, now) {
                // Found by its name, it is no longer the run of one call.
                entries.share(&key, idle, now);
                // Under the lock, where idle and unused ones are retired.
                match finder {
                    Finder::Program => run.node().payload.set_used(),
                    Finder::Request => run.node().enter(),
                }
                return Ok((run, None, None));
            }
            // The one before is over, though whoever ends it may still be at it.
            if let Some(before) = entries.get(&key, now) {
                before.node().uncount();
            }
            let counted = count()?;
            let run = Run::open();
            if let Finder::Request = finder {
                run.node().payload.set_unused();
                run.node().enter();
            }
            self.identify(&run, &enrolment, entries.generation(&key) + 1);
            let enrolled = self.enrol(entries, &run, enrolment, now);
            Ok((run, counted, Some(enrolled)))
        })?;
        let is_counted = counted.is_some();
        if let Some(counted) = counted {
            run.count_as(Box::new(counted));
        }
        match enrolled {
            Some(true) => run.notify(&RunNotice::Opened),
            Some(false) => drop(run.end(TerminalReason::Shutdown)),
            None => {}
        }
        Ok((run, is_counted))
    }

    /// Enrols a run that has no name yet: under this one if that is free, else,
    /// without one, under the id that is made up for it. Answers whether it was
    /// enrolled. A run that its opener does not settle ends after `idle`.
    pub(crate) fn adopt(
        &self,
        run: &Run,
        owner: Owner,
        id: Option<RunId>,
        session: Option<Arc<str>>,
        idle: Duration,
    ) -> bool {
        self.shared.tidy();
        let now = Instant::now();
        let given = id.is_some();
        let key = self.shared.key(owner, id.unwrap_or_else(|| run.id()));
        let adopted = self.shared.with(&key, |entries| {
            let mut enrolment = Enrolment {
                key: key.clone(),
                session,
                named: given,
                idle: None,
            };
            let taken = entries.reusable(&key, now).is_some();
            let generation = entries.generation(&key) + 1;
            if self.shared.is_closed() || taken || !self.identify(run, &enrolment, generation) {
                return false;
            }
            if given {
                run.node().make_shared();
                // Not one that the program opened: it may go on with it.
                if run.node().payload.is_owned() {
                    run.node().payload.set_unused();
                }
            }
            enrolment.idle = (!run.node().payload.is_single()).then_some(idle);
            self.enrol(entries, run, enrolment, now)
        });
        if !adopted {
            if !given && self.shared.is_closed() {
                run.end(TerminalReason::Shutdown);
            }
            return false;
        }
        run.notify(&RunNotice::Opened);
        // It may have ended before it had a name to be remembered by.
        if run.terminal_reason().is_some() {
            self.shared.ended(run.node());
        }
        true
    }

    /// A run that nobody finds by its id.
    pub(crate) fn open_unknown(owner: Owner, id: Option<RunId>, session: Option<Arc<str>>) -> Run {
        let run = Run::open_single();
        let nobody: Weak<Shared> = Weak::new();
        let _first = run.node().payload.identify(Identity {
            id: id.unwrap_or_else(|| run.id()),
            session,
            registration: nobody,
            owner: owner.0,
            generation: 0,
            told: AtomicU64::new(0),
            listed: OnceLock::new(),
        });
        run
    }

    /// Whether it is shut down, and admits nothing any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// Opens a run under a key that is free, or whose run is one of those that a
    /// new one may replace.
    fn open_anew(&self, enrolment: Enrolment, replaces: impl FnOnce(&Run) -> bool) -> Option<Run> {
        let now = Instant::now();
        let key = enrolment.key.clone();
        let owner = Owner(key.owner);
        let run = self.shared.with(&key, |entries| {
            let known = entries.get(&key, now);
            if self.shared.is_closed() || known.is_some_and(|known| !replaces(&known)) {
                return None;
            }
            let run = Run::open();
            self.identify(&run, &enrolment, entries.generation(&key) + 1);
            self.enrol(entries, &run, enrolment, now).then_some(run)
        })?;
        // The program is not capped, but what it opens in the place of another counts.
        let counted = self.shared.owners.get();
        if let Some(Ok(open)) = counted.map(|all| all.open(owner, OwnerCaps::new(), false)) {
            run.count_as(Box::new(open));
        }
        run.notify(&RunNotice::Opened);
        Some(run)
    }

    /// The only place where a run becomes one of those that live here; they leave
    /// in [`Registration::ended`]. Answers false if the registry is shut down.
    fn enrol(&self, entries: &mut Entries, run: &Run, with: Enrolment, now: Instant) -> bool {
        if self.shared.is_closed() {
            return false;
        }
        let Enrolment {
            key,
            session,
            named,
            idle,
        } = with;
        let serial = self.shared.next_serial();
        let (hash, owner) = (key.hash(), key.owner);
        let session = session.map(|name| {
            let session = self.shared.session(name);
            let hash = session.hash();
            // Under the lock of the shard, so that no end comes in between.
            let slot = self.shared.sessions(&session.clone(), |sessions| {
                sessions.insert(session, owner, serial, run.clone())
            });
            Membership { hash, slot }
        });
        let listed = EntryLocation {
            hash,
            place: entries.insert(&key, run.clone(), serial, named, idle, now),
            session,
        };
        if let Some(identity) = run.node().payload.identity() {
            // Nobody else enrols it.
            let _set_before = identity.listed.set(listed);
        }
        true
    }

    fn identify(&self, run: &Run, with: &Enrolment, generation: u64) -> bool {
        let shared: Weak<Shared> = Arc::downgrade(&self.shared);
        run.node().payload.identify(Identity {
            id: with.key.id.clone(),
            session: with.session.clone(),
            registration: shared,
            owner: with.key.owner,
            generation,
            told: AtomicU64::new(0),
            listed: OnceLock::new(),
        })
    }

    fn idle_of(&self, run: Option<&Run>) -> Duration {
        let idle = run.and_then(|run| self.shared.idle_limit(run.node().payload.identity()?));
        idle.unwrap_or(Self::IDLE)
    }
}
