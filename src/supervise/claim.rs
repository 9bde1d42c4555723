//! The claim of a layer to act on the node of a request, and to settle it.

use http::Request;

use super::operation_of;
use crate::run::{CallSlot, Run, Settlement, Step, StepKind, is_traced};

/// The node that a layer acts on, and whether the layer settles it.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) run: Run,
    /// Whether this layer settles the node.
    ///
    /// A layer settles a node that it has opened. A layer also settles a node that the program
    /// attached for this call, if no other layer has claimed it before.
    pub(crate) settles: bool,
}

impl Claim {
    /// Claims the node that the request carries; without a node, opens a run for this call.
    ///
    /// `settles` is true for a run opened here, and for a carried call that the program attached and
    /// that no layer has claimed.
    #[inline]
    pub(crate) fn of<B>(request: &mut Request<B>) -> Self {
        if let Some(run) = request.extensions().get::<Run>() {
            let run = run.clone();
            let settles = run.node().settlement().claim();
            if settles {
                CallSlot::fill(request.extensions(), &run);
                Self::trace(&run, request, None);
            }
            return Self::new(run, settles);
        }
        let run = Run::open_single();
        run.node().settlement().set(Settlement::Layer);
        run.node().begin_work();
        CallSlot::fill(request.extensions(), &run);
        Self::trace(&run, request, None);
        request.extensions_mut().insert(run.clone());
        Self::new(run, true)
    }

    /// Claims the call of a request, for layers that count per call.
    ///
    /// If the request carries a run of many calls, this method opens a call in that run. Any
    /// other request is claimed as by [`of`](Self::of).
    pub(crate) fn of_call<B>(request: &mut Request<B>) -> Self {
        let found = request.extensions().get::<Run>();
        if let Some(run) = found.filter(|run| run.node().is_of_many()).cloned() {
            let call = run.open_call();
            CallSlot::fill(request.extensions(), &call);
            Self::trace(&call, request, Some(&run));
            request.extensions_mut().insert(call.clone());
            return Self::new(call, true);
        }
        Self::of(request)
    }

    /// Makes the span of the call that a layer has claimed, if a subscriber wants it. `found` is
    /// the run in which the layer opened the call; `None` if the request carried the call itself,
    /// or carried nothing.
    #[inline]
    pub(crate) fn trace<B>(call: &Run, request: &Request<B>, found: Option<&Run>) {
        if is_traced() {
            Self::make_span(call, request, found);
        }
    }

    #[cold]
    fn make_span<B>(call: &Run, request: &Request<B>, found: Option<&Run>) {
        let found = found.map(Run::spans);
        call.spans().make_call(operation_of(request), found);
    }

    /// Creates a claim on `run`. If `settles` and the node is live, the start of an LLM call is
    /// recorded as a step.
    #[inline]
    pub(crate) fn new(run: Run, settles: bool) -> Self {
        if settles && !run.node().is_over() {
            run.note(Step::new(StepKind::LlmCall));
        }
        Self { run, settles }
    }
}
