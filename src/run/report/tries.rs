//! The tries of a call: how many there were, and whom each went to.

use std::{
    any::Any,
    sync::{Arc, PoisonError, atomic::Ordering},
};

use crate::run::{handle::Run, kinds::NodeKind, reason::TerminalReason, state::Info, tree::Node};

/// Whom an attempt goes to.
pub(crate) trait Server: Any + Send + Sync + std::fmt::Debug {
    fn label(&self) -> &str;

    /// What it is, for those who know.
    fn as_any(&self) -> &dyn Any;
}

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
    fn candidate_info(&self) -> &Info {
        let mut nodes = self.up_to_call();
        let chosen = |node: &&Node<Info>| {
            node.kind() != NodeKind::Attempt || node.payload.server().get().is_some()
        };
        &nodes.find(chosen).unwrap_or(self.node()).payload
    }

    /// Whether the call has still to pay for its first attempt into this bucket,
    /// which is named by where it is: of layers in layers one pays.
    pub(crate) fn pays(&self, bucket: usize) -> bool {
        self.call_info().pays(bucket)
    }

    /// How many tries the call has made.
    pub(crate) fn tries(&self) -> u32 {
        self.call_info().tries().load(Ordering::Acquire)
    }

    /// Says whom this attempt goes to, and whether there are others.
    pub(crate) fn serve_by<T: Server>(&self, server: Arc<T>, followed: bool) {
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
    pub(crate) fn served_by<T: Server>(&self) -> Option<&T> {
        let nodes = self.up_to_call();
        let attempts = nodes.take_while(|node| node.kind() == NodeKind::Attempt);
        let mut servers = attempts.filter_map(|node| node.payload.server().get());
        servers.find_map(|server| server.as_any().downcast_ref())
    }

    /// This node and those above it, to the nearest that is no attempt.
    fn up_to_call(&self) -> impl Iterator<Item = &Node<Info>> {
        let mut nodes = std::iter::once(&**self.node()).chain(self.node().ancestors());
        let mut over = false;
        std::iter::from_fn(move || {
            let node = nodes.next().filter(|_| !over)?;
            over = node.kind() != NodeKind::Attempt;
            Some(node)
        })
    }

    pub(in crate::run) fn call_info(&self) -> &Info {
        &self.call_node().payload
    }

    /// The nearest node that is no attempt.
    pub(crate) fn call_node(&self) -> &Node<Info> {
        self.up_to_call().last().unwrap_or(self.node())
    }

    /// Ends the call that this node belongs to.
    pub(crate) fn end_call(&self, reason: TerminalReason) {
        if let Some(call) = self.up_to_call().last() {
            drop(call.end(reason, None, self.now()));
        }
    }
}

impl Info {
    /// How many tries this call has made.
    pub(in crate::run) fn tried(&self) -> u32 {
        self.tries().load(Ordering::Acquire)
    }

    /// Whom the last try of this call went to.
    pub(in crate::run) fn last_asked(&self) -> Option<Arc<str>> {
        let asked = self.asked().lock().unwrap_or_else(PoisonError::into_inner);
        asked.as_ref().map(|server| server.label().into())
    }
}
