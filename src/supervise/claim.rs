//! The claim of a layer to act on the node of a request, and to settle it.

use http::Request;

use crate::run::{Run, Settlement, Step, StepKind};

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
    /// Claims the node that the request carries; without one, opens a run for this call.
    ///
    /// If another layer settles the node, `owns` is false.
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
