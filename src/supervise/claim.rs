use http::Request;

use crate::run::{Run, Step, StepKind};

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
