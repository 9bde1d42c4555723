//! The attempts of a call: their number, targets and failures, and whether they had side effects.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::{AttemptTarget, FailedAttemptList, NodeState, TargetState};
use crate::run::{
    limits::Price,
    reason::TerminalReason,
    step::{Step, StepKind},
    tree::{Node, NodeKind},
};

/// The attempts of the call that one node belongs to, as that node sees them. The node is mostly
/// the call, or one of its attempts.
#[derive(Clone, Copy)]
pub(crate) struct CallAttempts<'a>(&'a Node<NodeState>);

impl<'a> CallAttempts<'a> {
    #[inline]
    pub(in crate::run) const fn of(node: &'a Node<NodeState>) -> Self {
        Self(node)
    }

    /// Resets the number of this node's attempts, the list of failed attempts, and the mark that a
    /// silent attempt was repeated. Does nothing if the node is an attempt.
    pub(crate) fn begin(self) {
        if self.0.kind() != NodeKind::Attempt {
            let state = &self.0.payload;
            state.attempt_count.store(0, Ordering::Release);
            state.repeated_silence.store(false, Ordering::Release);
            if let Some(call) = state.call() {
                call.forget_failed_attempts();
            }
        }
    }

    /// The list of the failed attempts of this node's call; `None` if none has failed.
    pub(crate) fn failed(self) -> Option<Arc<dyn FailedAttemptList>> {
        self.0.call_node().payload.call()?.failed_attempts()
    }

    /// Calls `act` with the list of the failed attempts of this node's call.
    pub(crate) fn with_failed(self, act: impl FnOnce(&mut Option<Arc<dyn FailedAttemptList>>)) {
        if let Some(call) = self.0.call_node().payload.call() {
            call.with_failed_attempts(act);
        }
    }

    /// Marks this attempt, and the attempts around it, as reported to the program's hook. Returns
    /// whether this attempt was marked before.
    pub(crate) fn mark_reported(self) -> bool {
        self.mark_attempts(|attempt| &attempt.is_reported)
    }

    /// Marks this attempt, and the attempts around it, as counted by a metric. Returns whether this
    /// attempt was marked before.
    #[cfg(feature = "metrics")]
    pub(crate) fn mark_counted(self) -> bool {
        self.mark_attempts(|attempt| &attempt.is_counted)
    }

    /// Sets a mark on this attempt and on the attempts around it. Returns whether this attempt had
    /// the mark before.
    fn mark_attempts(self, mark: impl Fn(&TargetState) -> &AtomicBool) -> bool {
        let mut attempts = self
            .0
            .up_to_call()
            .filter_map(|node| node.payload.attempt());
        let own = attempts.next();
        for outer in attempts {
            mark(outer).store(true, Ordering::Release);
        }
        own.is_some_and(|own| mark(own).swap(true, Ordering::AcqRel))
    }

    /// The number that the next attempt has in the call that this node belongs to. `again` is false
    /// for the first attempt of the layer that asks.
    pub(crate) fn next_number(self, again: bool) -> u32 {
        self.made() + u32::from(self.is_counted(again))
    }

    /// Counts an attempt of the call that this node belongs to. `again` is false for a layer's
    /// first attempt: that of a nested layer is not counted, because the outer layer has counted
    /// it.
    pub(crate) fn count(self, again: bool) {
        if self.is_counted(again) {
            for node in self.0.up_to_call() {
                node.payload.attempt_count.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    /// Counts an attempt that the program makes by [`Run::attempt`](crate::run::Run::attempt), as
    /// [`count`](Self::count) does.
    pub(crate) fn count_own(self) {
        let state = &self.0.payload;
        self.count(state.attempted.swap(true, Ordering::AcqRel));
    }

    /// Whether an attempt counts: the first attempt of a nested layer is the outer layer's attempt,
    /// and is not counted again.
    fn is_counted(self, again: bool) -> bool {
        again || self.0.kind() != NodeKind::Attempt
    }

    /// The number of attempts of this node's candidate in this call. Without a candidate, the
    /// number is that of all attempts of the call.
    pub(crate) fn of_candidate(self) -> u32 {
        self.candidate_state().attempt_count()
    }

    /// Whether the layers have repeated a silent attempt of this candidate in this call.
    pub(crate) fn has_repeated_silence(self) -> bool {
        let repeated = &self.candidate_state().repeated_silence;
        repeated.load(Ordering::Acquire)
    }

    /// Records that a silent attempt of this candidate is repeated.
    pub(crate) fn note_repeated_silence(self) {
        let repeated = &self.candidate_state().repeated_silence;
        repeated.store(true, Ordering::Release);
    }

    /// The state that counts the attempts of this node's candidate: that of the nearest attempt, at
    /// or above this node, that chose a candidate; without one, that of the call.
    fn candidate_state(self) -> &'a NodeState {
        let mut nodes = self.0.up_to_call();
        let is_chosen = |node: &&Node<NodeState>| {
            let attempt = node.payload.attempt();
            attempt.is_none_or(|attempt| attempt.target.get().is_some())
        };
        &nodes.find(is_chosen).unwrap_or(self.0).payload
    }

    /// Records the call's deposit into the retry bucket at the memory address `bucket`. Returns
    /// whether it is the first, so that only one of several nested layers makes the deposit.
    pub(crate) fn first_deposit(self, bucket: usize) -> bool {
        let call = self.0.call_node().payload.call();
        call.is_some_and(|call| call.first_deposit(bucket))
    }

    /// The number of attempts that the call of this node has made.
    pub(crate) fn made(self) -> u32 {
        self.0.call_node().payload.attempt_count()
    }

    /// Records that the request of this attempt asks for a stream.
    pub(crate) fn mark_stream_asked(self) {
        if let Some(attempt) = self.0.payload.attempt() {
            attempt.asks_for_stream.store(true, Ordering::Release);
        }
    }

    /// Whether this node is an attempt of a request that asks for a stream.
    #[inline]
    pub(crate) fn asks_for_stream(self) -> bool {
        let attempt = self.0.payload.attempt();
        attempt.is_some_and(|attempt| attempt.asks_for_stream.load(Ordering::Acquire))
    }

    /// Records that a layer sets a floor on the speed of this attempt's stream. On any other node,
    /// the floor is one for all streams of its run.
    pub(crate) fn set_floor(self) {
        let has_floor = match self.0.payload.attempt() {
            Some(attempt) => &attempt.has_floor,
            None => &self.0.run_state().rare().has_floor,
        };
        has_floor.store(true, Ordering::Release);
    }

    /// Whether this very attempt has a floor on the speed of its stream.
    pub(crate) fn has_own_floor(self) -> bool {
        has_floor(self.0)
    }

    /// Whether a stream of this node has a floor on its speed, on whatever node a layer has set it.
    pub(crate) fn has_floor(self) -> bool {
        self.0.up_to_call().any(has_floor) || {
            let rare = self.0.run_state().rare_if_any();
            rare.is_some_and(|rare| rare.has_floor.load(Ordering::Acquire))
        }
    }

    /// Stores the target of this attempt, and whether other candidates could serve the call.
    pub(crate) fn set_candidate<T: AttemptTarget>(self, target: Arc<T>, has_others: bool) {
        if let Some(call) = self.0.call_node().payload.call() {
            *call.last_target.lock() = Some(target.clone());
        }
        self.0
            .run_state()
            .set_step(Step::new(StepKind::LlmCall).detail(Arc::clone(target.label())));
        let state = &self.0.payload;
        if let Some(attempt) = state.attempt() {
            attempt.has_others.store(has_others, Ordering::Release);
            // An attempt has one target; a second target is ignored.
            let _ = attempt.target.set(target);
        }
        // The attempt is the first attempt of its target.
        state.attempt_count.store(1, Ordering::Release);
    }

    /// The name of the candidate to which the last attempt of this node's call went.
    pub(crate) fn last_target(self) -> Option<Arc<str>> {
        self.0.call_node().payload.last_target()
    }

    /// The name of this attempt's candidate, as set by the nearest layer that chose one.
    pub(crate) fn target_label(self) -> Option<Arc<str>> {
        let mut attempts = self
            .0
            .up_to_call()
            .filter_map(|node| node.payload.attempt());
        let target = attempts.find_map(|attempt| attempt.target.get())?;
        Some(Arc::clone(target.label()))
    }

    /// Whether this attempt has a target, which it gets when its request is made for a candidate.
    pub(crate) fn has_target(self) -> bool {
        let attempt = self.0.payload.attempt();
        attempt.is_some_and(|attempt| attempt.target.get().is_some())
    }

    /// Marks this attempt as one for which an inner layer makes attempts. Does nothing if the
    /// node is not an attempt.
    pub(crate) fn mark_outer(self) {
        if let Some(attempt) = self.0.payload.attempt() {
            attempt.is_outer.store(true, Ordering::Release);
        }
    }

    /// Marks whether a layer holds this attempt's request back, so that no upstream has it. Does
    /// nothing if the node is not an attempt.
    pub(crate) fn hold_request(self, holds: bool) {
        if let Some(attempt) = self.0.payload.attempt() {
            attempt.is_held.store(holds, Ordering::Release);
        }
    }

    /// Whether this attempt has handed its request to an upstream: no inner layer makes the
    /// attempts, or holds the request back.
    pub(crate) fn has_sent_request(self) -> bool {
        let attempt = self.0.payload.attempt();
        attempt.is_some_and(|attempt| {
            let holds = attempt.is_held.load(Ordering::Acquire);
            !holds && !attempt.is_outer.load(Ordering::Acquire)
        })
    }

    /// Whether candidates other than this attempt's could serve the call.
    pub(crate) fn has_others(self) -> bool {
        has_others(self.0)
    }

    /// Whether neither this attempt nor one around it has other candidates left.
    pub(crate) fn is_final(self) -> bool {
        !self.0.up_to_call().any(has_others)
    }

    /// Marks this node's call, and the nodes below it down to this one, as work with effects that
    /// must not happen twice.
    pub(crate) fn mark_side_effects(self) {
        for node in self.0.up_to_call() {
            node.payload.effects.store(true, Ordering::Release);
        }
    }

    /// Whether this node's call is marked as one with side effects.
    pub(crate) fn had_side_effects(self) -> bool {
        let mut nodes = self.0.up_to_call();
        nodes.any(|node| node.payload.effects.load(Ordering::Acquire))
    }

    /// Counts an attempt of the run that ended with a step timeout. Returns the number of such
    /// silent attempts in a row.
    pub(crate) fn count_silent(self) -> u32 {
        let silent = &self.0.run_state().silent_attempts;
        silent.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The number of the nearest run's silent attempts in a row.
    pub(crate) fn silent(self) -> u32 {
        self.0.run_state().silent_attempts.load(Ordering::Acquire)
    }

    /// Resets the run's number of silent attempts in a row, after one that was not silent.
    pub(crate) fn reset_silent(self) {
        let silent = &self.0.run_state().silent_attempts;
        // The number is mostly zero: a load is cheaper than a store.
        if silent.load(Ordering::Acquire) > 0 {
            silent.store(0, Ordering::Release);
        }
    }

    /// The target of the attempt at or above this node, as set by the nearest layer that chose one.
    pub(crate) fn served_by<T: AttemptTarget>(self) -> Option<&'a T> {
        let nodes = self.0.up_to_call();
        let mut targets = nodes.filter_map(|node| node.payload.attempt()?.target.get());
        targets.find_map(|target| target.as_any().downcast_ref())
    }

    /// The price of the tokens of this attempt's target, or of the call's last one; `None` if it is
    /// not known.
    pub(crate) fn price(self) -> Option<Price> {
        let mut attempts = self
            .0
            .up_to_call()
            .filter_map(|node| node.payload.attempt());
        match attempts.find_map(|attempt| attempt.target.get()) {
            Some(target) => target.price(),
            // A layer outside of the attempts reads the answer of the last one.
            None => {
                let call = self.0.call_node().payload.call()?;
                call.last_target.lock().as_ref()?.price()
            }
        }
    }

    /// Ends the call that this node belongs to.
    pub(crate) fn end_call(self, reason: TerminalReason) {
        drop(self.0.call_node().end(reason, None, self.0.now()));
    }
}

fn has_floor(node: &Node<NodeState>) -> bool {
    let attempt = node.payload.attempt();
    attempt.is_some_and(|attempt| attempt.has_floor.load(Ordering::Acquire))
}

fn has_others(node: &Node<NodeState>) -> bool {
    let attempt = node.payload.attempt();
    attempt.is_some_and(|attempt| attempt.has_others.load(Ordering::Acquire))
}
