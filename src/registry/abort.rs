//! Ends runs from outside: one, or those of a session.

use std::time::Duration;

use tokio::time::Instant;

use super::{RunRegistry, owner_caps::Owner, store::AbortTarget};
use crate::run::{Run, RunId, TerminalReason};

/// The outcome of an abort by id: see [`RunRegistry::abort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortOutcome {
    /// This abort ended the run.
    Ended,
    /// The run had ended before, and keeps its reason.
    ///
    /// A deadline that has passed by now counts as an end before the abort.
    AlreadyOver,
    /// The registry knows no run of this id, or it is another owner's.
    ///
    /// A run that a request without a credential opened is one of [`Owner::anonymous`], and not of
    /// the program, which is [`Owner::default`].
    Unknown,
    /// This registry knows no run of this id, and has told those that
    /// [share](RunRegistry::share) its store. If one of them has the run, it ends there.
    Told,
}

impl RunRegistry {
    /// Ends the owner's run of this id as aborted, unless it has ended or is unknown.
    ///
    /// Runs of requests without a credential are those of [`Owner::anonymous`].
    ///
    /// ```
    /// use tower_agent::{Owner, RunRegistry, registry::AbortOutcome};
    ///
    /// let (registry, id) = (RunRegistry::new(), "r-1".parse()?);
    /// // As a request without a credential opens it.
    /// let _run = registry.open(Owner::anonymous(), "r-1".parse()?);
    ///
    /// assert_eq!(registry.abort(Owner::default(), &id), AbortOutcome::Unknown);
    /// assert_eq!(registry.abort(Owner::anonymous(), &id), AbortOutcome::Ended);
    /// assert_eq!(registry.abort(Owner::anonymous(), &id), AbortOutcome::AlreadyOver);
    /// # Ok::<_, tower_agent::InvalidRunId>(())
    /// ```
    ///
    /// Observers have received the end before any waiter of the run wakes; by then the run has also
    /// left the live runs.
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers need not know who won"
    )]
    pub fn abort(&self, owner: Owner, id: &RunId) -> AbortOutcome {
        let Some(run) = self.get(owner, id) else {
            return match self.state.parts.tell_abort(owner, id) {
                true => AbortOutcome::Told,
                false => AbortOutcome::Unknown,
            };
        };
        match end(&run, TerminalReason::Aborted, run.now()) {
            true => AbortOutcome::Ended,
            false => AbortOutcome::AlreadyOver,
        }
    }

    /// Ends all live runs of this owner's session as aborted, each as [`abort`](Self::abort)
    /// does.
    ///
    /// If the registry is [shared](Self::share), the session's runs of other replicas end too.
    ///
    /// Returns the ids of the runs that this call ended here, in the order in which they were opened. A
    /// run that its parent's end ended is not among them.
    ///
    /// ```
    /// use tower_agent::{Owner, RunRegistry};
    ///
    /// let registry = RunRegistry::new();
    /// // The session of requests without a credential.
    /// assert!(registry.abort_session(Owner::anonymous(), "chat-7").is_empty());
    /// ```
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers need not know which"
    )]
    pub fn abort_session(&self, owner: Owner, session: &str) -> Vec<RunId> {
        self.state.parts.tell_session(owner, session, None);
        self.abort_but(owner, session, None)
    }

    /// Ends the runs of this id as aborted, of all owners: for an operator.
    ///
    /// If the registry is [shared](Self::share), the runs of other replicas end too. The outcome is
    /// [`Ended`](AbortOutcome::Ended) if the call ended a run here,
    /// [`AlreadyOver`](AbortOutcome::AlreadyOver) if none lives here, and
    /// [`Told`](AbortOutcome::Told) if the registry does not know the id, or its run has completed,
    /// and others were told.
    ///
    /// ```
    /// use tower_agent::{Owner, RunRegistry, registry::AbortOutcome};
    ///
    /// let (registry, id) = (RunRegistry::new(), "r-1".parse()?);
    /// let _one = registry.open(Owner::of(b"sk-one"), "r-1".parse()?);
    /// let _other = registry.open(Owner::of(b"sk-two"), "r-1".parse()?);
    ///
    /// assert_eq!(registry.abort_for_all(&id), AbortOutcome::Ended);
    /// assert_eq!(registry.abort_for_all(&id), AbortOutcome::AlreadyOver);
    /// # Ok::<_, tower_agent::InvalidRunId>(())
    /// ```
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers need not know who won"
    )]
    pub fn abort_for_all(&self, id: &RunId) -> AbortOutcome {
        let before = self.find(id);
        let target = AbortTarget::Run(id.clone());
        let has_ended = !self.abort_here(&target).is_empty();
        let is_told = self.state.parts.tell_for_all(target);
        let reasons = before.iter().filter_map(Run::terminal_reason);
        let mut is_over = false;
        let mut has_completed = false;
        for reason in reasons {
            match reason {
                TerminalReason::Completed => has_completed = true,
                _ => is_over = true,
            }
        }
        match (has_ended, is_over, is_told) {
            (true, _, _) => AbortOutcome::Ended,
            (_, true, _) => AbortOutcome::AlreadyOver,
            (_, _, true) => AbortOutcome::Told,
            _ if has_completed => AbortOutcome::AlreadyOver,
            _ => AbortOutcome::Unknown,
        }
    }

    /// Ends all live runs of this session as aborted, of all owners: for an operator.
    ///
    /// If the registry is [shared](Self::share), the session's runs of other replicas end too. Returns
    /// the ids of the runs that this call ended here, oldest first.
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers need not know which"
    )]
    pub fn abort_session_for_all(&self, session: &str) -> Vec<RunId> {
        let target = AbortTarget::Session(session.into());
        let ended = self.abort_here(&target);
        self.state.parts.tell_for_all(target);
        ended
    }

    /// Ends the live ones of these runs here, and returns their ids.
    pub(super) fn abort_here(&self, target: &AbortTarget) -> Vec<RunId> {
        self.abort_older(target, Duration::ZERO)
    }

    /// Ends the live ones of these runs here that are at least so old, and returns their ids.
    pub(super) fn abort_older(&self, target: &AbortTarget, age: Duration) -> Vec<RunId> {
        let runs = match target {
            AbortTarget::Run(id) => self.find(id),
            AbortTarget::Session(session) => self.find_session(session),
        };
        let ended = runs.into_iter().filter(|run| {
            // A run that is over keeps its reason and is not reported.
            let is_live = run.terminal_reason().is_none() && run.now() >= age;
            is_live && run.end(TerminalReason::Aborted)
        });
        ended.map(|run| run.id()).collect()
    }

    /// The latest run with this id [prefix](RunId::prefix) in the owner's session. It lives, or has
    /// ended and is remembered.
    pub(crate) fn latest_in(&self, owner: Owner, session: &str, prefix: &str) -> Option<Run> {
        let latest = self
            .state
            .sessions
            .lock()
            .latest(session, owner.0, prefix)?;
        // A look-up by its id makes the registry remember an ended run for longer.
        self.get(owner, &latest)
    }

    /// Ends the other live runs of this run's session as aborted, and returns their ids.
    pub(crate) fn abort_others(&self, run: &Run) -> Vec<RunId> {
        let node = run.nearest();
        let identity = node.identity();
        let session = identity.and_then(|known| Some((known.owner, known.session.as_ref()?)));
        session.map_or_else(Vec::new, |(owner, session)| {
            let spared = Some(node.run_id());
            self.state.parts.tell_session(Owner(owner), session, spared);
            self.abort_but(Owner(owner), session, Some(node.number()))
        })
    }

    fn abort_but(&self, owner: Owner, session: &str, spared: Option<u64>) -> Vec<RunId> {
        self.state.tidy();
        let runs = self.state.sessions.lock().find(session, Some(owner));
        let (mut aborted, now) = (Vec::new(), Instant::now());
        // Each run is checked, ended and dropped before the next, so that its memory enters the
        // processor's cache once.
        for run in runs {
            let at = run.at(now);
            run.node().check_below(at);
            let spared = Some(run.node().number()) == spared;
            if !spared && end(&run, TerminalReason::Aborted, at) {
                aborted.push(run.id());
            }
        }
        aborted
    }
}

/// Ends a live run, and returns whether this call ended it. A deadline that has passed ends the
/// run first. An ended run stays unchanged: `reason` does not become one of its late reasons.
pub(super) fn end(run: &Run, reason: TerminalReason, now: Duration) -> bool {
    let node = run.node();
    node.check_from_outside(now).is_ok() && node.end(reason, None, now).is_ok()
}
