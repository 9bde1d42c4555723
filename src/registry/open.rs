use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    RunRegistry, admission::Finder, entries::Entries, key::EntryKey, owner_caps::Owner,
    state::RegistryState, store::AskedRun,
};
use crate::run::{
    Admission, Identity, Registration, Run, RunId, RunNotice, Settlement, TerminalReason,
};

/// The parameters with which a run enters the registry.
struct Enrolment<'a> {
    key: &'a EntryKey,
    session: Option<Arc<str>>,
    /// Whether the program or a request chose the run's id; false for a generated id.
    named: bool,
    /// The idle limit of the run; `None` if the run ends with its one call.
    idle: Option<Duration>,
    finder: Finder,
}

impl RunRegistry {
    /// Finds or opens the owner's run of this id: the live one, the tombstone, or a new one.
    ///
    /// Check [`Run::terminal_reason`] before you start work: a tombstone is over, and so is a new
    /// run if the registry is shut down.
    #[must_use]
    pub fn open(&self, owner: Owner, id: RunId) -> Run {
        self.find_or_open(owner, id, None)
    }

    /// Finds or opens the owner's run of this id, as [`open`](Self::open) does, and opens a new run
    /// in this session.
    ///
    /// An abort of the session also ends a run that was opened in it. If the run of this id exists
    /// already, it stays in the session in which it was opened, or in none: [`Run::session`] tells
    /// which.
    ///
    /// ```
    /// use tower_agent::{Owner, RunRegistry, TerminalReason};
    ///
    /// let (registry, us) = (RunRegistry::new(), Owner::default());
    /// let run = registry.open_in(us, "nightly".parse()?, "chat-7".parse()?);
    ///
    /// assert_eq!(registry.abort_session(us, "chat-7"), [run.id()]);
    /// assert_eq!(run.terminal_reason(), Some(TerminalReason::Aborted));
    /// # Ok::<_, tower_agent::InvalidRunId>(())
    /// ```
    #[must_use]
    pub fn open_in(&self, owner: Owner, id: RunId, session: RunId) -> Run {
        self.find_or_open(owner, id, Some(session.to_string().into()))
    }

    fn find_or_open(&self, owner: Owner, id: RunId, session: Option<Arc<str>>) -> Run {
        let run = self.find_with(owner, id, session, Self::IDLE, Finder::Program, None);
        drop(run.check());
        run
    }

    /// Ends the owner's run `old` as superseded, and opens `new` in its place.
    ///
    /// `old` ends as [`Superseded`](TerminalReason::Superseded), and `new` is in the same
    /// session. The new run exists before any task learns of the end. If `old` is unknown or
    /// has ended, `new` is opened all the same.
    ///
    /// The method returns `None`, without any effect, if `new` is not a new id: the run of that id
    /// lives, or ended other than as completed. The method also returns `None` if the registry is
    /// shut down.
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
        let key = self.state.key(owner, new);
        let enrolment = self.successor(&key, old.as_ref());
        let run = self.open_anew(enrolment, |known| {
            known.terminal_reason() == Some(TerminalReason::Completed)
        })?;
        if let Some(old) = old.filter(|old| old.terminal_reason().is_none()) {
            old.end(TerminalReason::Superseded);
        }
        Some(run)
    }

    /// Opens a new run with an id that has ended, in the session of the ended run.
    ///
    /// The new run is the next generation, with all counts at zero. Only the program can reopen
    /// a tombstone; a request opens an id anew only if its run completed.
    ///
    /// The method returns `None` if the id is unknown, its run lives, or the registry is shut down.
    #[must_use]
    pub fn reopen(&self, owner: Owner, id: &RunId) -> Option<Run> {
        let ended = self.get(owner, id)?;
        let key = self.state.key(owner, id.clone());
        let enrolment = self.successor(&key, Some(&ended));
        let run = self.open_anew(enrolment, |known| known.terminal_reason().is_some())?;
        self.state.parts.tell_reopened(owner, id);
        Some(run)
    }

    /// Finds or opens the run of this id. For a request it also counts the calling layer's request as
    /// work of the run.
    ///
    /// The run does not complete as idle before the layer uncounts the request by
    /// [`Node::leave`](crate::run::Node::leave). If owners have caps, an inner layer
    /// [admits](Self::admit) a new run. A [`LateRequest`](Finder::LateRequest) then ends the run by
    /// [`end_with_parent`](Run::end_with_parent).
    pub(crate) fn find_with(
        &self,
        owner: Owner,
        id: RunId,
        session: Option<Arc<str>>,
        idle: Duration,
        finder: Finder,
        asked: Option<&AskedRun>,
    ) -> Run {
        self.state.tidy();
        let (key, now) = (self.state.key(owner, id), Instant::now());
        let (run, enrolled) = self.state.with(&key, |entries| {
            if let Some(run) = entries.reusable(&key, now) {
                // A run that is found by its id no longer belongs to one call.
                entries.share(&key, idle, now);
                // The run is entered under the lock under which idle and unused runs retire.
                match finder {
                    Finder::Program => run.run_state().set_used(),
                    Finder::Request | Finder::LateRequest => run.node().begin_work(),
                }
                return (run, None);
            }
            let run = Run::open_aged(asked.map_or(Duration::ZERO, |asked| asked.age));
            if finder != Finder::Program {
                run.run_state().set_unused();
                run.node().begin_work();
            }
            if finder == Finder::LateRequest {
                let rare = run.run_state().rare();
                rare.ends_at_birth.store(true, Ordering::Release);
            }
            let enrolment = Enrolment {
                key: &key,
                session,
                named: true,
                idle: Some(idle),
                finder,
            };
            let enrolled = self.enrol(entries, &run, enrolment, now);
            (run, Some(enrolled))
        });
        if let Some(asked) = asked {
            run.run_state().rare().share(&asked.part);
            run.node().adjust_to(&asked.adjusted);
            if asked.adjusted.suspended && enrolled.is_some() {
                run.suspend_as_told();
            }
        }
        if let (Some(_), Finder::Program) = (enrolled, finder) {
            run.spans().trace_run(None);
        }
        match enrolled {
            Some(true) => self.announce(&run),
            Some(false) => drop(run.end(TerminalReason::Shutdown)),
            None => {}
        }
        run
    }

    /// Enrols a run that has no id in the registry yet. Returns whether it was enrolled.
    ///
    /// The run takes `id` unless a live or remembered run has it; a run that completed does not
    /// count. Without `id` the run takes its generated one, or ends as `Shutdown` if the registry
    /// is shut down. An enrolled run completes after it was idle for `idle`, unless it got no `id`
    /// and ends with its one call.
    pub(crate) fn adopt(
        &self,
        run: &Run,
        owner: Owner,
        id: Option<RunId>,
        session: Option<Arc<str>>,
        idle: Duration,
        finder: Finder,
    ) -> bool {
        self.state.tidy();
        let now = Instant::now();
        let given = id.is_some();
        let key = self.state.key(owner, id.unwrap_or_else(|| run.id()));
        let adopted = self.state.with(&key, |entries| {
            if self.state.is_closed() || entries.reusable(&key, now).is_some() {
                return false;
            }
            let settlement = &run.node().settlement();
            let enrolment = Enrolment {
                key: &key,
                session,
                named: given,
                idle: (given || !settlement.ends_with_call()).then_some(idle),
                finder,
            };
            let enrolled = self.enrol(entries, run, enrolment, now);
            if enrolled && given {
                // Only a run that a layer opened is unused: the program may still use its own.
                if settlement.is(Settlement::Layer) {
                    run.run_state().set_unused();
                }
                run.node().make_shared();
            }
            enrolled
        });
        if !adopted {
            if !given && self.state.is_closed() {
                run.end(TerminalReason::Shutdown);
            }
            return false;
        }
        self.announce(run);
        // The run may have ended before the registry knew it: then no end was published.
        if run.terminal_reason().is_some() {
            self.state.ended(run.node(), None);
        }
        true
    }

    /// Opens a run with the key, unless the key has a run that `replaces` rejects. Opens none if
    /// the registry is shut down.
    fn open_anew(
        &self,
        enrolment: Enrolment<'_>,
        replaces: impl FnOnce(&Run) -> bool,
    ) -> Option<Run> {
        let (key, now) = (enrolment.key, Instant::now());
        let run = self.state.with(key, |entries| {
            let known = entries.get(key, now);
            if self.state.is_closed() || known.is_some_and(|known| !replaces(&known)) {
                return None;
            }
            let run = Run::open_root();
            self.enrol(entries, &run, enrolment, now).then_some(run)
        })?;
        // No cap refuses this run, but it counts for the owner.
        let counted = self.state.owners.get();
        if let Some(owners) = counted {
            run.node()
                .count_as(Box::new(owners.open_uncapped(key.owner)));
        }
        run.spans().trace_run(None);
        run.notify(&RunNotice::Opened);
        Some(run)
    }

    /// Gives the run its identity, and adds it to the live runs; no other method does.
    /// [`Registration::ended`] takes the run out when it ends. Returns false, and adds nothing, if
    /// the registry is shut down, or if the run has an identity already.
    fn enrol(&self, entries: &mut Entries, run: &Run, with: Enrolment<'_>, now: Instant) -> bool {
        let place = self.state.next_place(with.key);
        let owner = with.key.owner.0;
        let registration: Weak<RegistryState> = Arc::downgrade(&self.state);
        let is_first = run.run_state().identify(Identity {
            id: with.key.id.clone(),
            session: with.session.clone(),
            registration,
            owner,
            generation: entries.generation(with.key) + 1,
            place,
            session_slot: OnceLock::new(),
            end_event: AtomicU64::new(0),
            admission: Admission::new(with.finder == Finder::Program || !self.has_caps()),
        });
        if !is_first || self.state.is_closed() {
            return false;
        }
        let identity = run.node().identity();
        if let (Some(name), Some(identity)) = (with.session, identity) {
            // The run joins its session under the shard's lock, so that no end comes in between.
            let mut sessions = self.state.sessions.lock();
            let slot = sessions.insert(name, owner, &with.key.id, place.serial, run.clone());
            // The slot is unset, because no other thread enrols this run.
            let _set_before = identity.session_slot.set(slot);
        }
        entries.insert(with.key, place, run.clone(), with.named, with.idle, now);
        true
    }

    /// Sends `Opened` for the run to observers, unless the owner's caps have yet to admit the run.
    fn announce(&self, run: &Run) {
        let identity = run.node().identity();
        if identity.is_some_and(|known| known.admission.is_admitted()) {
            run.notify(&RunNotice::Opened);
        }
    }

    /// The parameters of a run that the program opens after the run `before`. The new run gets the
    /// session and the idle limit of that run, if there is one.
    fn successor<'a>(&self, key: &'a EntryKey, before: Option<&Run>) -> Enrolment<'a> {
        let known = before.and_then(|run| run.node().identity());
        let idle = known.and_then(|known| self.state.idle_limit(known));
        Enrolment {
            key,
            session: before.and_then(Run::session),
            named: true,
            idle: Some(idle.unwrap_or(Self::IDLE)),
            finder: Finder::Program,
        }
    }
}
