//! What a layer measures of a call, and the claim by which a wrapper settles its node.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};

use super::observer::{FrameKind, Observer};
use crate::{
    error::BoxError,
    run::{Nanos, Run, Step, StepKind, TaskId},
};

/// What one layer measures, and on which node: the part in which the layers
/// that act on a node differ. `found` is the node that the layer found.
pub trait Policy {
    /// Whether it must know what frames are, or whether a body is complete.
    const READS: bool;

    /// Whether it has clocks that a stream of ready frames must not starve.
    const TIMED: bool = false;

    /// Whether the answer is told which node it belongs to, if this layer
    /// settles it.
    const TELLS: bool = true;

    /// Whether the node is settled only when the body is dropped: somebody
    /// judges it after its end.
    const DEFERS: bool = false;

    /// Everything below is pending. Answers when the policy wants to be asked
    /// again at the latest; ends nothing itself.
    fn pending(
        &mut self,
        found: &Run,
        tap: Option<&Observer>,
        now: Duration,
        task: TaskId,
    ) -> Option<Nanos> {
        let _ = (found, tap, now, task);
        None
    }

    /// The head has come, and is about to be handed on.
    fn answered(&mut self, found: &Run) {
        let _ = found;
    }

    /// These bytes are handed on next.
    fn data(&mut self, found: &Run, data: &Bytes) {
        let _ = (found, data);
    }

    /// A frame is handed on; `seen` is none if the policy does not read.
    fn frame(&mut self, found: &Run, seen: Option<FrameKind>, tap: Option<&Observer>) {
        let _ = (found, seen, tap);
    }

    /// The inner service or body failed at `now`, while `found` lived; the clocks
    /// are looked at next.
    fn failed(&mut self, found: &Run, now: Duration, task: TaskId) {
        let _ = (found, now, task);
    }

    /// The future or body is dropped before its end, the inner one still being
    /// there.
    fn dropped(&mut self, found: &Run) {
        let _ = found;
    }

    /// The head of an answer is handed on.
    fn head(&mut self, found: &Run, headers: &mut HeaderMap) {
        let _ = (found, headers);
    }

    /// An error is handed on.
    fn error(&self, found: &Run, error: BoxError) -> BoxError {
        let _ = found;
        error
    }

    /// It is over: gives back what the policy registered.
    fn release(&mut self, found: &Run) {
        let _ = found;
    }
}

/// The node that a layer acts on, as it found it in a request.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) run: Run,
    /// Whether this layer opened the node, or is the first to see one that was
    /// attached: then it settles it.
    pub(crate) owns: bool,
}

impl Claim {
    /// Finds the request's node; without one, opens a run that is this call.
    #[inline]
    pub(crate) fn of<B>(request: &mut Request<B>) -> Self {
        if let Some(run) = request.extensions().get::<Run>() {
            let run = run.clone();
            let owns = run.node().payload.claim();
            return Self::new(run, owns);
        }
        let run = Run::open_single();
        run.node().payload.set_owned();
        run.node().enter();
        request.extensions_mut().insert(run.clone());
        Self::new(run, true)
    }

    /// The same for a layer that counts what a call does: of a run of many, which
    /// the program put into the request as it is, it makes a call of its own.
    pub(crate) fn of_call<B>(request: &mut Request<B>) -> Self {
        let found = request.extensions().get::<Run>();
        if let Some(run) = found.filter(|run| run.is_of_many()).cloned() {
            let call = run.open_call();
            request.extensions_mut().insert(call.clone());
            return Self::new(call, true);
        }
        Self::of(request)
    }

    /// The layer's node; the one who owns it says that a call begins.
    #[inline]
    pub(crate) fn new(run: Run, owns: bool) -> Self {
        if owns && !run.node().is_over() {
            run.note(Step::new(StepKind::LlmCall));
        }
        Self { run, owns }
    }
}
