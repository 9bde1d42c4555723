//! The measurements of a layer in a call, and the claim to settle a call's node.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};

use super::observer::{FrameKind, Observer};
use crate::{
    error::BoxError,
    run::{Nanos, Run, Settlement, Step, StepKind, TaskId},
};

/// The part of a supervised call in which the layers that act on a node differ.
///
/// In each method `run` is the node that the layer acts on.
pub trait Policy {
    /// Whether the layer reads the response, because its policy needs frame kinds or
    /// completeness.
    const READS: bool;

    /// Whether the policy has deadlines that a stream of ready frames must not starve.
    const TIMED: bool = false;

    /// Whether the layer puts the run into the response's extensions, if it settles the
    /// run's node.
    const TELLS: bool = true;

    /// Whether the layer settles the node not at the body's end, but when the body drops.
    ///
    /// The settlement waits for the attempt, which may still classify the complete answer
    /// as a failure.
    const DEFERS: bool = false;

    /// Handles a `Pending` of the inner future or body, without an end of the node.
    ///
    /// Returns the next deadline of the policy, if any: the layer is polled again then at
    /// the latest.
    fn pending(
        &mut self,
        run: &Run,
        observer: Option<&Observer>,
        now: Duration,
        task: TaskId,
    ) -> Option<Nanos> {
        let _ = (run, observer, now, task);
        None
    }

    /// Tells the policy that the head of the response has arrived.
    fn answered(&mut self, run: &Run) {
        let _ = run;
    }

    /// Shows the policy the bytes of the body that the caller gets next.
    fn data(&mut self, run: &Run, data: &Bytes) {
        let _ = (run, data);
    }

    /// Shows the policy a frame that the caller gets; `seen`, its meaning, is `None`
    /// without [`READS`](Self::READS).
    fn frame(&mut self, run: &Run, seen: Option<FrameKind>, observer: Option<&Observer>) {
        let _ = (run, seen, observer);
    }

    /// Handles an error of the inner future or body at `now`, while `run` was live.
    ///
    /// The supervisor checks the deadlines after the policy has handled the error.
    fn failed(&mut self, run: &Run, now: Duration, task: TaskId) {
        let _ = (run, now, task);
    }

    /// Handles the drop of an unfinished future or body, before the inner one drops.
    fn dropped(&mut self, run: &Run) {
        let _ = run;
    }

    /// Edits the headers of the response that the caller gets.
    fn head(&mut self, run: &Run, headers: &mut HeaderMap) {
        let _ = (run, headers);
    }

    /// Converts an error of the call into the one that the caller gets.
    fn error(&self, run: &Run, error: BoxError) -> BoxError {
        let _ = run;
        error
    }

    /// Releases the policy's registrations at the end of the call.
    fn release(&mut self, run: &Run) {
        let _ = run;
    }
}

/// The node that a layer acts on, and whether the layer settles it.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) run: Run,
    /// Whether this layer settles the node.
    ///
    /// A layer settles a node that it has opened, or that the caller attached and no
    /// other layer saw first.
    pub(crate) owns: bool,
}

impl Claim {
    /// Claims the node of a request, or opens a run for this call alone.
    #[inline]
    pub(crate) fn of<B>(request: &mut Request<B>) -> Self {
        if let Some(run) = request.extensions().get::<Run>() {
            let run = run.clone();
            let owns = run.node().payload.settlement.claim();
            return Self::new(run, owns);
        }
        let run = Run::open_single();
        run.node().payload.settlement.set(Settlement::Layer);
        run.node().enter();
        request.extensions_mut().insert(run.clone());
        Self::new(run, true)
    }

    /// Claims the call of a request, for layers that count per call.
    ///
    /// A request that carries a run of many calls gets a call of its own in that run.
    pub(crate) fn of_call<B>(request: &mut Request<B>) -> Self {
        let found = request.extensions().get::<Run>();
        if let Some(run) = found.filter(|run| run.is_of_many()).cloned() {
            let call = run.open_call();
            request.extensions_mut().insert(call.clone());
            return Self::new(call, true);
        }
        Self::of(request)
    }

    /// Creates a claim on `run`; with `owns` it records that a call begins.
    #[inline]
    pub(crate) fn new(run: Run, owns: bool) -> Self {
        if owns && !run.node().is_over() {
            run.note(Step::new(StepKind::LlmCall));
        }
        Self { run, owns }
    }
}
