use http::Request;

use crate::run::{Run, Step, StepKind};

/// The node that a layer acts on, as it found it in a request.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) run: Run,
    /// Whether this layer opened the node, or is the first to see one that was
    /// attached: then it settles it.
    pub(crate) owns: bool,
}

impl Entry {
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

    /// The layer's node; the one who owns it says that a call begins.
    #[inline]
    pub(crate) fn new(run: Run, owns: bool) -> Self {
        if owns && run.node().own_end().is_none() {
            run.note(Step::new(StepKind::LlmCall));
        }
        Self { run, owns }
    }
}
