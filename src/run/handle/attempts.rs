//! The attempts of a call: their number, targets and failures, and whether they had side effects.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::Run;
use crate::run::{
    limits::Price,
    reason::TerminalReason,
    state::{AttemptTarget, FailedAttempts, NodeState, TargetState},
    step::{Step, StepKind},
    tree::{Node, NodeKind},
};

impl Run {
    /// Resets the number of this node's attempts, the list of failed attempts, and the mark that a
    /// silent attempt was repeated. Does nothing if the node is an attempt.
    pub(crate) fn begin_attempts(&self) {
        if self.kind() != NodeKind::Attempt {
            let state = &self.node().payload;
            state.attempt_count.store(0, Ordering::Release);
            state.repeated_silence.store(false, Ordering::Release);
            if let Some(call) = state.call() {
                call.forget_failed_attempts();
            }
        }
    }

    /// The list of the failed attempts of this node's call; `None` if none has failed.
    pub(crate) fn failed_attempts(&self) -> Option<FailedAttempts> {
        self.call_node().payload.call()?.failed_attempts()
    }

    /// Calls `act` with the list of the failed attempts of this node's call.
    pub(crate) fn with_failed_attempts(&self, act: impl FnOnce(&mut Option<FailedAttempts>)) {
        if let Some(call) = self.call_node().payload.call() {
            call.with_failed_attempts(act);
        }
    }

    /// Marks this attempt, and the attempts around it, as reported to the program's hook. Returns
    /// whether this attempt was marked before.
    pub(crate) fn mark_reported(&self) -> bool {
        self.mark_attempts(|attempt| &attempt.is_reported)
    }

    /// Marks this attempt, and the attempts around it, as counted by a metric. Returns whether this
    /// attempt was marked before.
    #[cfg(feature = "metrics")]
    pub(crate) fn mark_counted(&self) -> bool {
        self.mark_attempts(|attempt| &attempt.is_counted)
    }

    /// Sets a mark on this attempt and on the attempts around it. Returns whether this attempt had
    /// the mark before.
    fn mark_attempts(&self, mark: impl Fn(&TargetState) -> &AtomicBool) -> bool {
        let mut attempts = self.up_to_call().filter_map(|node| node.payload.attempt());
        let own = attempts.next();
        for outer in attempts {
            mark(outer).store(true, Ordering::Release);
        }
        own.is_some_and(|own| mark(own).swap(true, Ordering::AcqRel))
    }

    /// The number that the next attempt has in the call that this node belongs to. `again` is false
    /// for the first attempt of the layer that asks.
    pub(crate) fn next_attempt_number(&self, again: bool) -> u32 {
        self.attempt_count() + u32::from(self.is_counted(again))
    }

    /// Counts an attempt of the call that this node belongs to. `again` is false for a layer's
    /// first attempt: that of a nested layer is not counted, because the outer layer has counted
    /// it.
    pub(crate) fn count_attempt(&self, again: bool) {
        if self.is_counted(again) {
            for node in self.up_to_call() {
                node.payload.attempt_count.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    /// Counts an attempt that the program makes by [`Run::attempt`], as
    /// [`count_attempt`](Self::count_attempt) does.
    pub(crate) fn count_own_attempt(&self) {
        let state = &self.node().payload;
        self.count_attempt(state.attempted.swap(true, Ordering::AcqRel));
    }

    /// Whether an attempt counts: the first attempt of a nested layer is the outer layer's attempt,
    /// and is not counted again.
    fn is_counted(&self, again: bool) -> bool {
        again || self.kind() != NodeKind::Attempt
    }

    /// The number of attempts of this node's candidate in this call. Without a candidate, the
    /// number is that of all attempts of the call.
    pub(crate) fn attempts_of_candidate(&self) -> u32 {
        self.candidate_state().attempt_count()
    }

    /// Whether the layers have repeated a silent attempt of this candidate in this call.
    pub(crate) fn has_repeated_silence(&self) -> bool {
        let repeated = &self.candidate_state().repeated_silence;
        repeated.load(Ordering::Acquire)
    }

    /// Records that a silent attempt of this candidate is repeated.
    pub(crate) fn note_repeated_silence(&self) {
        let repeated = &self.candidate_state().repeated_silence;
        repeated.store(true, Ordering::Release);
    }

    /// The state that counts the attempts of this node's candidate: that of the nearest attempt, at
    /// or above this node, that chose a candidate; without one, that of the call.
    fn candidate_state(&self) -> &NodeState {
        let mut nodes = self.up_to_call();
        let is_chosen = |node: &&Node<NodeState>| {
            let attempt = node.payload.attempt();
            attempt.is_none_or(|attempt| attempt.target.get().is_some())
        };
        &nodes.find(is_chosen).unwrap_or(self.node()).payload
    }

    /// Records the call's deposit into the retry bucket at the memory address `bucket`. Returns
    /// whether it is the first, so that only one of several nested layers makes the deposit.
    pub(crate) fn first_deposit(&self, bucket: usize) -> bool {
        let call = self.call_node().payload.call();
        call.is_some_and(|call| call.first_deposit(bucket))
    }

    /// The number of attempts that the call of this node has made.
    pub(crate) fn attempt_count(&self) -> u32 {
        self.call_node().payload.attempt_count()
    }

    /// Records that the request of this attempt asks for a stream.
    pub(crate) fn mark_stream_asked(&self) {
        if let Some(attempt) = self.node().payload.attempt() {
            attempt.asks_for_stream.store(true, Ordering::Release);
        }
    }

    /// Whether this node is an attempt of a request that asks for a stream.
    #[inline]
    pub(crate) fn asks_for_stream(&self) -> bool {
        let attempt = self.node().payload.attempt();
        attempt.is_some_and(|attempt| attempt.asks_for_stream.load(Ordering::Acquire))
    }

    /// Stores the target of this attempt, and whether other candidates could serve the call.
    pub(crate) fn set_candidate<T: AttemptTarget>(&self, target: Arc<T>, has_others: bool) {
        if let Some(call) = self.call_node().payload.call() {
            *call.last_target.lock() = Some(target.clone());
        }
        self.note(Step::new(StepKind::LlmCall).detail(Arc::clone(target.label())));
        let state = &self.node().payload;
        if let Some(attempt) = state.attempt() {
            attempt.has_others.store(has_others, Ordering::Release);
            // An attempt has one target; a second target is ignored.
            let _ = attempt.target.set(target);
        }
        // The attempt is the first attempt of its target.
        state.attempt_count.store(1, Ordering::Release);
    }

    /// The name of the candidate to which the last attempt of this node's call went.
    pub(crate) fn last_target(&self) -> Option<Arc<str>> {
        self.call_node().payload.last_target()
    }

    /// The name of this attempt's candidate, as set by the nearest layer that chose one.
    #[cfg(feature = "metrics")]
    pub(crate) fn target_label(&self) -> Option<Arc<str>> {
        let mut attempts = self.up_to_call().filter_map(|node| node.payload.attempt());
        let target = attempts.find_map(|attempt| attempt.target.get())?;
        Some(Arc::clone(target.label()))
    }

    /// Whether this attempt has a target, which it gets when its request is made for a candidate.
    pub(crate) fn has_target(&self) -> bool {
        let attempt = self.node().payload.attempt();
        attempt.is_some_and(|attempt| attempt.target.get().is_some())
    }

    /// Marks this attempt as one for which a layer further in makes attempts. Does nothing if the
    /// node is no attempt.
    pub(crate) fn mark_outer(&self) {
        if let Some(attempt) = self.node().payload.attempt() {
            attempt.is_outer.store(true, Ordering::Release);
        }
    }

    /// Marks whether a layer holds this attempt's request back, so that no upstream has it. Does
    /// nothing if the node is no attempt.
    pub(crate) fn hold_request(&self, holds: bool) {
        if let Some(attempt) = self.node().payload.attempt() {
            attempt.is_held.store(holds, Ordering::Release);
        }
    }

    /// Whether this attempt has handed its request to an upstream: no layer further in makes the
    /// attempts, or holds the request back.
    pub(crate) fn has_sent_request(&self) -> bool {
        let attempt = self.node().payload.attempt();
        attempt.is_some_and(|attempt| {
            let holds = attempt.is_held.load(Ordering::Acquire);
            !holds && !attempt.is_outer.load(Ordering::Acquire)
        })
    }

    /// Whether candidates other than this attempt's could serve the call.
    pub(crate) fn has_others(&self) -> bool {
        has_others(self.node())
    }

    /// Whether this attempt is at the last candidate: if it fails, no other candidate follows.
    ///
    /// Without another candidate a layer may treat the attempt's failure as the call's. The result
    /// is true without a [`ModelFallbackLayer`](crate::ModelFallbackLayer). The attempt may still
    /// be repeated.
    #[must_use]
    pub fn is_final_attempt(&self) -> bool {
        !self.up_to_call().any(has_others)
    }

    /// Marks that this call had effects that must not happen twice: a sent message, say.
    ///
    /// From now on the call is neither repeated nor moved to another candidate. The method acts as
    /// the `SideEffects` extension of a request does, for effects that become known only later.
    pub fn mark_side_effects(&self) {
        for node in self.up_to_call() {
            node.payload.effects.store(true, Ordering::Release);
        }
    }

    /// Whether this node's call is marked as one with side effects.
    pub(crate) fn had_side_effects(&self) -> bool {
        let mut nodes = self.up_to_call();
        nodes.any(|node| node.payload.effects.load(Ordering::Acquire))
    }

    /// Counts an attempt of the run that ended with a step timeout. Returns the number of such
    /// silent attempts in a row.
    pub(crate) fn count_silent_attempt(&self) -> u32 {
        let silent = &self.run_state().silent_attempts;
        silent.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The number of the nearest run's silent attempts in a row.
    pub(crate) fn silent_attempts(&self) -> u32 {
        self.run_state().silent_attempts.load(Ordering::Acquire)
    }

    /// Resets the run's number of silent attempts in a row, after one that was not silent.
    pub(crate) fn reset_silent_attempts(&self) {
        let silent = &self.run_state().silent_attempts;
        // The number is mostly zero: a load is cheaper than a store.
        if silent.load(Ordering::Acquire) > 0 {
            silent.store(0, Ordering::Release);
        }
    }

    /// The target of the attempt at or above this node, as set by the nearest layer that chose one.
    pub(crate) fn served_by<T: AttemptTarget>(&self) -> Option<&T> {
        let nodes = self.up_to_call();
        let mut targets = nodes.filter_map(|node| node.payload.attempt()?.target.get());
        targets.find_map(|target| target.as_any().downcast_ref())
    }

    /// The price of the tokens of this attempt's target, or of the call's last one; `None` if it is
    /// not known.
    pub(crate) fn price(&self) -> Option<Price> {
        let mut attempts = self.up_to_call().filter_map(|node| node.payload.attempt());
        match attempts.find_map(|attempt| attempt.target.get()) {
            Some(target) => target.price(),
            // A layer outside of the attempts reads the answer of the last one.
            None => {
                let call = self.call_node().payload.call()?;
                call.last_target.lock().as_ref()?.price()
            }
        }
    }

    /// This node and its ancestors, up to and including the nearest that is no attempt.
    fn up_to_call(&self) -> impl Iterator<Item = &Node<NodeState>> {
        let mut nodes = self.node().path();
        let mut over = false;
        std::iter::from_fn(move || {
            let node = nodes.next().filter(|_| !over)?;
            over = node.kind() != NodeKind::Attempt;
            Some(node)
        })
    }

    /// The nearest node, at or above this one, that is no attempt: mostly the call.
    pub(crate) fn call_node(&self) -> &Node<NodeState> {
        self.up_to_call().last().unwrap_or(self.node())
    }

    /// Ends the call that this node belongs to.
    pub(crate) fn end_call(&self, reason: TerminalReason) {
        if let Some(call) = self.up_to_call().last() {
            drop(call.end(reason, None, self.now()));
        }
    }
}

fn has_others(node: &Node<NodeState>) -> bool {
    let attempt = node.payload.attempt();
    attempt.is_some_and(|attempt| attempt.has_others.load(Ordering::Acquire))
}
