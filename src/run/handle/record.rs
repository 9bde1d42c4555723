//! What the layers record on a run: tries, side effects, usage, partial text.

use std::sync::{Arc, PoisonError, atomic::Ordering};

use super::Run;
use crate::{
    llm::{dialect::Usage, stream::Partial},
    run::{
        kinds::NodeKind, reason::TerminalReason, report::AttemptTarget, state::NodeState,
        tree::Node,
    },
};

impl Run {
    /// Nothing has been tried yet, unless this node is a try of its own.
    pub(crate) fn begin_tries(&self) {
        if self.kind() != NodeKind::Attempt {
            let info = &self.node().payload;
            info.tries().store(0, Ordering::Release);
            info.repeated_silence().store(false, Ordering::Release);
        }
    }

    /// Counts a try of the call that this node belongs to, and answers its
    /// number. The first try of a layer inside of another is that one's try.
    pub(crate) fn count_try(&self, again: bool) -> u32 {
        if again || self.kind() != NodeKind::Attempt {
            for node in self.up_to_call() {
                node.payload.tries().fetch_add(1, Ordering::AcqRel);
            }
        }
        self.tries()
    }

    /// How often the candidate of this node was tried in this call; without one,
    /// how many tries the call has made.
    pub(crate) fn tries_of_candidate(&self) -> u32 {
        self.candidate_info().tries().load(Ordering::Acquire)
    }

    /// Whether a silent attempt of this candidate was repeated in this call.
    pub(crate) fn has_repeated_silence(&self) -> bool {
        self.candidate_info()
            .repeated_silence()
            .load(Ordering::Acquire)
    }

    /// A silent attempt is repeated.
    pub(crate) fn repeat_silence(&self) {
        self.candidate_info()
            .repeated_silence()
            .store(true, Ordering::Release);
    }

    /// The node that stands for one candidate in this call.
    fn candidate_info(&self) -> &NodeState {
        let mut nodes = self.up_to_call();
        let chosen = |node: &&Node<NodeState>| {
            node.kind() != NodeKind::Attempt || node.payload.server().get().is_some()
        };
        &nodes.find(chosen).unwrap_or(self.node()).payload
    }

    /// Whether the call has still to pay for its first attempt into this bucket,
    /// which is named by where it is: of layers in layers one pays.
    pub(crate) fn first_deposit(&self, bucket: usize) -> bool {
        self.call_info().first_deposit(bucket)
    }

    /// How many tries the call has made.
    pub(crate) fn tries(&self) -> u32 {
        self.call_info().tries().load(Ordering::Acquire)
    }

    /// Says whom this attempt goes to, and whether there are others.
    pub(crate) fn set_candidate<T: AttemptTarget>(&self, server: Arc<T>, followed: bool) {
        let info = &self.node().payload;
        info.followed().store(followed, Ordering::Release);
        let asked = self.call_info().asked();
        *asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(server.clone());
        // An attempt goes to one; a second word is not heard.
        let _ = info.server().set(server);
        // It is the first try of it.
        info.tries().store(1, Ordering::Release);
    }

    /// Whether it was said whom this attempt goes to: then it was made.
    pub(crate) fn has_server(&self) -> bool {
        self.node().payload.server().get().is_some()
    }

    /// Whether there are others to go to than whom this attempt goes to.
    pub(crate) fn has_others(&self) -> bool {
        self.node().payload.followed().load(Ordering::Acquire)
    }

    /// Whether no other candidate follows, if this attempt fails: who sees to an
    /// attempt may treat its failure as the call's. True without a
    /// [`ModelFallbackLayer`](crate::ModelFallbackLayer). What fails may still be
    /// repeated.
    #[must_use]
    pub fn is_final_attempt(&self) -> bool {
        let mut nodes = self.up_to_call();
        nodes.all(|node| !node.payload.followed().load(Ordering::Acquire))
    }

    /// Says that what the call did has effects that must not be had twice, such
    /// as a message sent: it is neither repeated nor moved to another candidate
    /// from now on. The same as [`SideEffects`](crate::attempt::SideEffects) in
    /// a request, for what is known only later.
    pub fn mark_side_effects(&self) {
        for node in self.up_to_call() {
            node.payload.effects().store(true, Ordering::Release);
        }
    }

    /// Whether it was said so.
    pub(crate) fn had_side_effects(&self) -> bool {
        let mut nodes = self.up_to_call();
        nodes.any(|node| node.payload.effects().load(Ordering::Acquire))
    }

    /// An attempt of the run was silent to its end: answers how many were in a
    /// row.
    pub(crate) fn count_silence(&self) -> u32 {
        let silent = self.nearest().payload.silent();
        silent.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// How many were silent in a row.
    pub(crate) fn silence(&self) -> u32 {
        self.nearest().payload.silent().load(Ordering::Acquire)
    }

    /// An attempt of the run was not.
    pub(crate) fn forget_silence(&self) {
        let silent = self.nearest().payload.silent();
        // Mostly there is none: a load is cheaper than a store.
        if silent.load(Ordering::Acquire) > 0 {
            silent.store(0, Ordering::Release);
        }
    }

    /// Whom this attempt goes to, as the nearest layer said that chose it.
    pub(crate) fn served_by<T: AttemptTarget>(&self) -> Option<&T> {
        let nodes = self.up_to_call();
        let attempts = nodes.take_while(|node| node.kind() == NodeKind::Attempt);
        let mut servers = attempts.filter_map(|node| node.payload.server().get());
        servers.find_map(|server| server.as_any().downcast_ref())
    }

    /// This node and those above it, to the nearest that is no attempt.
    fn up_to_call(&self) -> impl Iterator<Item = &Node<NodeState>> {
        let mut nodes = std::iter::once(&**self.node()).chain(self.node().ancestors());
        let mut over = false;
        std::iter::from_fn(move || {
            let node = nodes.next().filter(|_| !over)?;
            over = node.kind() != NodeKind::Attempt;
            Some(node)
        })
    }

    pub(in crate::run) fn call_info(&self) -> &NodeState {
        &self.call_node().payload
    }

    /// The nearest node that is no attempt.
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

impl Run {
    /// The tokens that upstreams said were used at or below this node, so far:
    /// of a call those of all its attempts, also of those that failed; of a run
    /// those of all its calls and sub-agents. `None` if nobody said.
    ///
    /// An answer is counted when its body ended or was dropped, and once: by
    /// the layer that judges it. A layer of your own that makes another answer
    /// of a stream should keep its [`ResponseMarks`](crate::supervise::ResponseMarks) extension,
    /// else what it made is judged, and counted, as a stream of its own. One that
    /// costs nothing is marked as [`NotCounted`](crate::run::NotCounted).
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.node().payload.told().usage
    }

    /// An answer of this node is over, and said this of itself.
    pub(crate) fn report(&self, usage: Option<Usage>, stop_reason: Option<&Arc<str>>) {
        if usage.is_none() && stop_reason.is_none() {
            return;
        }
        let node = &**self.node();
        let mut stop_reason = stop_reason;
        for node in std::iter::once(node).chain(node.ancestors()) {
            node.payload.report(usage, stop_reason);
            if node.kind() != NodeKind::Attempt {
                // Above its call it is one of many.
                stop_reason = None;
            }
        }
    }
}

impl Node<NodeState> {
    pub(in crate::run) fn usage(&self) -> Option<Usage> {
        self.payload.lock_told().usage
    }
}

impl Run {
    /// Keeps the beginning of each answer of the nearest run while it streams, at most
    /// `max_bytes` of its text: where the run or a call ends before its answer does,
    /// [`RunEvent::Ended`](crate::run::RunEvent::Ended) and
    /// [`CallSummary`](crate::run::CallSummary) have it. For answers that begin from now
    /// on; 0 keeps nothing. Read are the text deltas of OpenAI's and Anthropic's
    /// streams, of several choices the first.
    pub fn keep_partial(&self, max_bytes: usize) {
        let partials = &self.nearest().payload.harness().partials;
        partials.lock().max = Some(max_bytes).filter(|max| *max > 0);
    }

    /// An answer of this node begins: where its text goes, if it is kept.
    pub(crate) fn begin_partial(&self) -> Option<Partial> {
        let harness = self.nearest().payload.harness_if_any()?;
        let mut kept = harness.partials.lock();
        let partial = Partial::new(kept.max?);
        kept.live.push(partial.clone());
        kept.cut = None;
        drop(kept);
        self.call_info().tell_partial(None);
        Some(partial)
    }

    /// Nothing more comes of an answer that was begun.
    pub(crate) fn end_partial(&self, partial: &Partial) {
        let Some(harness) = self.nearest().payload.harness_if_any() else {
            return;
        };
        let text = partial.read();
        let mut kept = harness.partials.lock();
        kept.live.retain(|live| !live.is(partial));
        if text.is_some() {
            kept.cut.clone_from(&text);
        }
        drop(kept);
        self.call_info().tell_partial(text);
    }
}

impl Node<NodeState> {
    /// What the caller has of the run's last answer, if that is not whole.
    pub(in crate::run) fn partial(&self) -> Option<Arc<str>> {
        let harness = self.nearest_run().payload.harness_if_any()?;
        harness.partials.lock().latest()
    }
}
