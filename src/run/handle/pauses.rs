//! Pauses that hold the turns of a run: by hand, and at a cap.

use std::{sync::Arc, time::Duration};

use super::Run;
use crate::run::{
    limit_kind::{LimitHit, LimitKind},
    reason::TerminalReason,
    report::{CapWords, Hold, RunCap, RunNotice, RunPause, Terminated},
    state::{HeldBy, NodeState, PausedAtCap},
    tree::{Node, NodeKind},
};

/// Why a turn is not admitted.
#[derive(Debug)]
pub(crate) enum TurnRefused {
    /// The run, or a node above the call, has ended or refuses work.
    Ended(Terminated),
    /// The turn waits.
    Held(Hold),
}

impl From<Terminated> for TurnRefused {
    fn from(end: Terminated) -> Self {
        Self::Ended(end)
    }
}

impl Run {
    /// Holds the turns of the nearest run, and of its sub-agents, until [`resume`](Self::resume): for an
    /// operator. Returns false if the run is suspended already, is closing or has ended.
    ///
    /// A turn that comes meanwhile waits in the [`TurnCapLayer`](crate::TurnCapLayer) or
    /// [`TokenCapLayer`](crate::TokenCapLayer) that would count it, for as long as that layer
    /// [waits](crate::run::PauseAtCap::wait) at a cap, or 60 s; then it fails as
    /// [`RunPaused`](crate::run::RunPaused), and counts nowhere. Calls and tools in progress go on. Step
    /// windows stand still, and the run does not complete for being idle; ceilings and other absolute
    /// deadlines go on. Sub-agents in trees of their own, [detached](Self::child_detached) or
    /// [asked](Self::child_asked) ones, are not held.
    ///
    /// If the registry is [shared](crate::RunRegistry::share), a replica that gets the run later holds its
    /// turns, too; one that has it already does not.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use tower_agent::Run;
    ///
    /// let run = Run::open();
    /// assert!(run.suspend());
    /// assert!(run.snapshot().paused.unwrap().suspended);
    /// assert!(run.resume());
    /// assert!(!run.resume(), "it goes on already");
    /// # }
    /// ```
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers need not know whether it is news"
    )]
    pub fn suspend(&self) -> bool {
        let run = self.run();
        let is_new = run.check().is_ok() && run.node().suspend(run.now());
        if is_new {
            run.node().tell_suspension();
        }
        is_new
    }

    /// Lets the turns of a [suspended](Self::suspend) run go on. Returns whether it was suspended.
    ///
    /// A run that is paused at a cap stays so: [`extend`](Self::extend) lets it go on. At another replica
    /// that holds the turns of the run, resume it there.
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers need not know whether it is news"
    )]
    pub fn resume(&self) -> bool {
        let node = self.nearest();
        let was_suspended = node.take_suspension(node.now());
        if was_suspended {
            node.wake_tree();
            node.publish(&RunNotice::Resumed, false);
            node.tell_suspension();
        }
        was_suspended
    }

    /// Suspends the run, which this replica has opened, as it is elsewhere.
    pub(crate) fn suspend_as_told(&self) {
        let run = self.run();
        run.node().suspend(run.now());
    }

    /// What holds a turn of this node in this layer; `None` if nothing does. `ticket` is that of a turn
    /// which is held already.
    #[inline]
    pub(crate) fn holds_turn(&self, held_by: HeldBy, ticket: Option<u64>) -> Option<Hold> {
        let pauses = |node: &&Node<NodeState>| {
            let rare = node.payload.rare_if_any();
            rare.is_some_and(|rare| rare.pauses.any())
        };
        let mut paused = self.node().path().filter(pauses).peekable();
        paused.peek()?;
        let own = self.nearest().number();
        paused.find_map(|run| run.hold_of(own, held_by, ticket))
    }

    /// Whether a turn that this layer holds at `ticket` may try again.
    ///
    /// # Errors
    ///
    /// The run has ended, or holds the turn yet.
    #[allow(
        clippy::result_large_err,
        reason = "the cold path, and the type of every layer"
    )]
    pub(crate) fn still_held(&self, held_by: HeldBy, ticket: u64) -> Result<(), TurnRefused> {
        self.check()?;
        if let Some(hold) = self.holds_turn(held_by, Some(ticket)) {
            return Err(TurnRefused::Held(hold));
        }
        match self.nearest().payload.pause_of_cap() {
            Some((_, limit)) if held_by == HeldBy::TurnCap => {
                Err(TurnRefused::Held(Hold::at(limit)))
            }
            _ => Ok(()),
        }
    }

    /// Takes a place behind the turns of the nearest run that this layer holds.
    pub(crate) fn queue_turn(&self, held_by: HeldBy) -> u64 {
        let pauses = &self.run_state().rare().pauses;
        pauses.with(|state| state.queue(held_by))
    }

    /// Gives the place back, and wakes the turns behind it.
    pub(crate) fn leave_queue(&self, held_by: HeldBy, ticket: u64) {
        let run = self.nearest();
        let pauses = &run.run_state().rare().pauses;
        let waits = pauses.with(|state| {
            state.waiting[held_by as usize].remove(&ticket);
            state.held() > 0
        });
        if waits {
            run.wake_near();
        }
    }

    /// Stops the clocks of this sub-agent's run with those of the paused run above it, if it was opened
    /// during the pause.
    pub(crate) fn stand_with_paused(&self) {
        let own = self.run();
        for above in own.node().ancestors() {
            let rare = above.payload.rare_if_any();
            let Some(rare) = rare.filter(|rare| rare.pauses.any()) else {
                continue;
            };
            rare.pauses.with(|state| {
                let Some(paused) = &mut state.at_cap else {
                    return;
                };
                let node = Arc::downgrade(own.node());
                if !paused.below.iter().any(|known| known.ptr_eq(&node)) {
                    own.node().stand(own.now());
                    paused.below.push(node);
                }
            });
        }
    }
}

impl Node<NodeState> {
    fn suspend(&self, now: Duration) -> bool {
        let is_new = self.run_state().rare().pauses.with(|state| {
            let is_new = state.suspended.is_none();
            if is_new {
                state.suspended = Some(now);
                self.begin_pause(now);
            }
            is_new
        });
        if is_new {
            self.wake_near();
            let message = "the operator has suspended it".to_owned();
            self.publish(&RunNotice::Paused { cap: None, message }, false);
            self.forget_pauses_if_over(now);
        }
        is_new
    }

    fn take_suspension(&self, now: Duration) -> bool {
        let Some(rare) = self.payload.rare_if_any() else {
            return false;
        };
        rare.pauses.with(|state| {
            let was_suspended = state.suspended.take().is_some();
            if was_suspended {
                self.end_pause(now);
            }
            was_suspended
        })
    }

    /// Pauses this run at its cap, for `limit` at most. Returns whether it was not paused at a cap
    /// before.
    pub(crate) fn pause_at_cap(
        &self,
        reason: &TerminalReason,
        passed: LimitHit,
        limit: Duration,
        now: Duration,
    ) -> bool {
        // These handles are dropped after the lock is released: a drop may run code of the program.
        let mut below = Vec::new();
        let mut children = self.children();
        while let Some(node) = children.pop() {
            if node.own_end().is_none() {
                children.append(&mut node.children());
                below.push(node);
            }
        }
        let is_new = self.run_state().rare().pauses.with(|state| {
            if state.at_cap.is_some() {
                return false;
            }
            self.stand(now);
            let runs = below.iter().filter(|node| node.kind() == NodeKind::Run);
            let runs = runs.inspect(|run| run.stand(now));
            state.at_cap = Some(PausedAtCap {
                reason: reason.clone(),
                limit: passed,
                since: now,
                below: runs.map(Arc::downgrade).collect(),
            });
            self.clocks.set_pause(Some(now.saturating_add(limit)));
            self.begin_pause(now);
            true
        });
        if is_new {
            self.wake_near();
            let message = format!("it is paused {}", CapWords(passed));
            let cap = RunCap::of(passed);
            self.publish(&RunNotice::Paused { cap, message }, false);
            self.forget_pauses_if_over(now);
        }
        is_new
    }

    /// Lets this run go on that is paused at the cap on turns.
    pub(crate) fn go_on_with_turns(&self) {
        self.go_on_if(|limit| matches!(limit.kind, LimitKind::Turns(_)));
    }

    /// Lets this run go on that is paused at a cap on tokens.
    pub(crate) fn go_on_with_tokens(&self) {
        self.go_on_if(|limit| matches!(limit.kind, LimitKind::Tokens(_)));
    }

    fn go_on_if(&self, is_lifted: impl Fn(LimitHit) -> bool) {
        let rare = self.payload.rare_if_any();
        if rare.is_some_and(|rare| rare.pauses.any()) && self.lift(self.now(), is_lifted) {
            self.wake_tree();
            self.publish(&RunNotice::Resumed, false);
        }
    }

    /// Undoes a pause at a cap, and wakes nobody. Returns whether there was one.
    fn lift(&self, now: Duration, is_lifted: impl Fn(LimitHit) -> bool) -> bool {
        let Some(rare) = self.payload.rare_if_any() else {
            return false;
        };
        let lifted = rare.pauses.with(|state| {
            let paused = state.at_cap.take_if(|paused| is_lifted(paused.limit))?;
            self.clocks.set_pause(None);
            let below: Vec<_> = paused
                .below
                .iter()
                .filter_map(|run| run.upgrade())
                .collect();
            below.iter().for_each(|run| run.go_on(now));
            self.go_on(now);
            self.end_pause(now);
            Some(below)
        });
        lifted.is_some()
    }

    /// Undoes the pauses of this run, which has ended.
    pub(super) fn forget_pauses(&self, now: Duration) {
        let rare = self.payload.rare_if_any();
        if rare.is_some_and(|rare| rare.pauses.any()) {
            self.take_suspension(now);
            self.lift(now, |_| true);
        }
    }

    /// Undoes a pause of this run that came after its end.
    fn forget_pauses_if_over(&self, now: Duration) {
        if self.nearest_end().is_some() {
            self.forget_pauses(now);
        }
    }

    /// What holds a turn of the run with the number `own`, which is this run or one below it.
    fn hold_of(&self, own: u64, held_by: HeldBy, ticket: Option<u64>) -> Option<Hold> {
        let is_above = self.number() != own;
        self.payload.rare_if_any()?.pauses.with(|state| {
            let limit = state.at_cap.as_ref().map(|paused| paused.limit);
            let holds = match limit {
                // The layer of its cap decides by itself: another layer may have another cap.
                Some(limit) if !is_above => {
                    held_by == HeldBy::TurnCap && matches!(limit.kind, LimitKind::Tokens(_))
                }
                Some(_) => true,
                None => false,
            };
            let is_behind = !is_above && state.is_behind(held_by, ticket);
            let is_held = holds || is_behind || state.suspended.is_some();
            is_held.then_some(Hold { limit, is_above })
        })
    }

    /// The pause of this run, for a snapshot.
    pub(in crate::run) fn run_pause(&self, now: Duration) -> Option<RunPause> {
        let rare = self.payload.rare_if_any()?;
        rare.pauses.with(|state| {
            let at_cap = state.at_cap.as_ref();
            let began = at_cap.map(|paused| paused.since).into_iter();
            let began = began.chain(state.suspended).min()?;
            Some(RunPause {
                cap: at_cap.and_then(|paused| RunCap::of(paused.limit)),
                suspended: state.suspended.is_some(),
                since: now.saturating_sub(began),
                held: state.held(),
            })
        })
    }
}

impl NodeState {
    /// The reason and the cap of the pause at a cap that is on.
    pub(super) fn pause_of_cap(&self) -> Option<(TerminalReason, LimitHit)> {
        self.rare_if_any()?.pauses.with(|state| {
            let paused = state.at_cap.as_ref()?;
            Some((paused.reason.clone(), paused.limit))
        })
    }
}
