//! The service that finds or opens a request's run, and opens its call.

use std::{error::Error, fmt, sync::Arc};

use http::{HeaderMap, HeaderValue, Request, StatusCode, request::Parts};
use tower_layer::Layer;

use super::{
    layer::RunLayer,
    request_run::{ParentRun, RequestRun},
};
use crate::{
    error::BoxError,
    headers::X_RUN_ID,
    registry::{AskedRun, Finder, Owner, RunRegistry, RunsFrozen, Uncounted},
    run::{
        CallSlot, Node, NodeKind, NodeState, Run, RunId, Settlement, TerminalReason, Terminated,
    },
    supervise::{
        Claim, LayerHooks, LayerSettings, SupervisedFuture, SupervisedService, SupervisesCalls,
    },
};

/// The service of a [`RunLayer`]; a clone of it shares the settings.
pub type RunService<S> = SupervisedService<S, Arc<RunLayer>>;

/// The id, session and owner of a run, as a request names them.
struct NamedRun {
    owner: Owner,
    id: Option<RunId>,
    session: Option<Arc<str>>,
    /// The run of which a new run is the child.
    parent: Option<ParentRun>,
    /// What a store of runs was asked, if the registry is shared.
    asked: Option<AskedRun>,
}

/// What a request says of its run.
pub(crate) struct RunName {
    pub(crate) owner: Owner,
    /// The id; `None` if the request is a run of its own.
    pub(crate) id: Option<RunId>,
    pub(crate) session: Option<Arc<str>>,
    /// The id of the run's parent, if the request names that whole.
    pub(crate) parent: Option<RunId>,
}

/// The most levels of runs that requests build. What walks a tree upwards must stay cheap whatever
/// a caller sends.
const LEVELS: usize = 16;

/// The run that a request belongs to, and how it was found.
struct Resolved<'a> {
    run: Run,
    /// The run in the request's extensions, if the call belongs to a different run.
    outer: Option<&'a Run>,
    /// Whether the look-up has already counted this request as work on the run.
    ///
    /// That count keeps the run from completing as idle before its call begins.
    entered: bool,
}

impl RunLayer {
    fn read<B>(&self, request: Request<B>) -> Result<(NamedRun, Request<B>), BoxError> {
        let (parts, body) = request.into_parts();
        let named = self.read_head(&parts)?;
        Ok((named, Request::from_parts(parts, body)))
    }

    fn read_head(&self, parts: &Parts) -> Result<NamedRun, BoxError> {
        let (mut id, mut session) = (self.id.read(parts)?, self.session.read(parts)?);
        let mut parent = None;
        let given = id.is_none().then(|| parts.extensions.get::<RequestRun>());
        if let Some(given) = given.flatten() {
            id = Some(given.id.clone());
            session = session.or_else(|| given.session.clone());
            parent.clone_from(&given.parent);
        }
        let is_shared = self.registry.is_shared();
        let asked = is_shared.then(|| parts.extensions.get::<AskedRun>());
        Ok(NamedRun {
            owner: self.owner.read(parts),
            id,
            session: session.map(|session| session.to_string().into()),
            parent,
            asked: asked.flatten().cloned(),
        })
    }

    pub(crate) const fn registry(&self) -> &RunRegistry {
        &self.registry
    }

    /// The name of a request's run. `None` if its headers are wrong, which the layer's own call says.
    pub(crate) fn named<B>(&self, request: Request<B>) -> (Option<RunName>, Request<B>) {
        let (parts, body) = request.into_parts();
        let named = self.read_head(&parts).ok().map(|named| RunName {
            owner: named.owner,
            id: named.id,
            session: named.session,
            parent: named.parent.and_then(|parent| parent.id().cloned()),
        });
        (named, Request::from_parts(parts, body))
    }

    /// Opens the call of a request in its run, and counts the call as work in progress.
    fn open(&self, named: NamedRun, found: Option<&Run>) -> Run {
        let is_unnamed = named.id.is_none();
        let Resolved {
            run,
            outer,
            entered,
        } = self.find(named, found);
        run.wait_for_birth();
        // The check ends the run if a deadline has passed; the call inherits that end.
        drop(run.check());
        let call = run.open_below(NodeKind::Call);
        call.node().begin_work();
        if entered {
            run.node().end_work(run.now());
        }
        if found.is_some() {
            run.node().pass_turn_to(call.node());
        }
        match outer {
            Some(outer) => call.end_with(outer),
            None if is_unnamed => call.node().settlement().set(Settlement::OnlyCall),
            None => {}
        }
        call
    }

    /// The run below which a sub-agent of `parent` is opened: `parent`, or its ancestor on the last
    /// of the [`LEVELS`].
    fn within_levels(&self, parent: Run) -> Run {
        let is_run = |node: &&Node<NodeState>| node.kind() == NodeKind::Run;
        let level = parent.node().path().filter(is_run).count();
        let Some(too_deep) = level.checked_sub(LEVELS + 1) else {
            return parent;
        };
        if self.registry.is_first_deep_chain() {
            tracing::warn!(
                target: "tower_agent",
                run = %parent.id(),
                levels = LEVELS,
                "sub-agents nested too deeply: the deeper ones belong to their ancestor on the last \
                 level; logged once"
            );
        }
        let runs = std::iter::successors(Some(parent.clone()), Run::parent);
        let mut runs = runs.filter(|run| run.kind() == NodeKind::Run);
        runs.nth(too_deep + 1).unwrap_or(parent)
    }

    /// Whether the request would open a run while its owner may open none.
    fn is_frozen(&self, named: &NamedRun, found: Option<&Run>) -> bool {
        self.registry.is_frozen(named.owner) && found.is_none() && !self.belongs_to_a_run(named)
    }

    /// Whether the request names a run that is known, here or at another replica, or the sub-agent of
    /// one that is open.
    #[cold]
    fn belongs_to_a_run(&self, named: &NamedRun) -> bool {
        let is_known = |id: &RunId| self.registry.get(named.owner, id).is_some();
        let asked = named.asked.as_ref();
        let is_open_elsewhere = asked.is_some_and(|asked| asked.was_open);
        let parent = || {
            let session = named.session.as_deref();
            named
                .parent
                .as_ref()?
                .find(&self.registry, named.owner, session)
        };
        named.id.as_ref().is_some_and(is_known)
            || is_open_elsewhere
            || parent().is_some_and(|parent| !is_over(&parent))
    }

    /// Finds the run of a request by its id, or opens one.
    ///
    /// A run in the request's extensions gets the id, if it has no identity and the id is free.
    fn find<'a>(&self, named: NamedRun, found: Option<&'a Run>) -> Resolved<'a> {
        let NamedRun {
            owner,
            id,
            session,
            parent,
            asked,
        } = named;
        let (registry, asked) = (&self.registry, asked.as_ref());
        let idle = self.idle.unwrap_or(RunRegistry::IDLE);
        let adopt =
            |run: &Run, id| registry.adopt(run, owner, id, session.clone(), idle, Finder::Request);
        let enter =
            |id, finder| registry.find_with(owner, id, session.clone(), idle, finder, asked);
        let here = |run: Run| Resolved {
            run,
            outer: None,
            entered: false,
        };
        match (found, id) {
            (Some(found), id) if found.node().identity().is_none() => {
                if adopt(found, id.clone()) {
                    return here(found.clone());
                }
                match id {
                    // Another run has the id already, or the registry is shut down.
                    Some(id) => Resolved {
                        run: enter(id, Finder::Request),
                        outer: Some(found),
                        entered: true,
                    },
                    None => here(found.clone()),
                }
            }
            (Some(found), _) => here(found.clone()),
            (None, Some(id)) => {
                // A run that lives, or did not complete, keeps the parent with which it was opened.
                let parent = parent.filter(|_| {
                    let known = registry.get(owner, &id);
                    known.is_none_or(|run| run.terminal_reason() == Some(TerminalReason::Completed))
                });
                let parent =
                    parent.and_then(|parent| parent.find(registry, owner, session.as_deref()));
                if let Some(parent) = &parent {
                    parent.wait_for_birth();
                }
                // A run that is over, or at its cap, begins no sub-agent: the run of this id ends with it.
                if let Some(over) = parent.as_ref().filter(|parent| is_over(parent)) {
                    let run = enter(id, Finder::LateRequest);
                    run.end_with_parent(over);
                    return Resolved {
                        run,
                        outer: None,
                        entered: true,
                    };
                }
                // The child gets no span: each of its calls belongs to the trace of its caller.
                let parent = parent.map(|parent| self.within_levels(parent));
                if let Some(child) = parent.map(|parent| parent.open_below(NodeKind::Run)) {
                    if adopt(&child, Some(id.clone())) {
                        if let Some(asked) = asked {
                            child.run_state().rare().share(&asked.part);
                        }
                        return here(child);
                    }
                    // A concurrent request has opened the run, or the registry is shut down: drop
                    // the child, which no request has seen.
                }
                Resolved {
                    run: enter(id, Finder::Request),
                    outer: None,
                    entered: true,
                }
            }
            (None, None) => {
                let run = Run::open_single();
                adopt(&run, None);
                here(run)
            }
        }
    }
}

/// Whether nothing of this run may begin any more.
fn is_over(run: &Run) -> bool {
    run.terminal_reason().is_some() || run.node().refuses_work()
}

impl SupervisesCalls for RunLayer {
    #[inline]
    fn supervise<B, F>(
        &self,
        request: Request<B>,
        inner: impl FnOnce(Request<B>) -> F,
    ) -> SupervisedFuture<F> {
        let (named, mut request) = match self.read(request) {
            Ok(read) => read,
            Err(error) => return SupervisedFuture::refused(error),
        };
        let found = request.extensions().get::<Run>().cloned();
        if self.is_frozen(&named, found.as_ref()) {
            return SupervisedFuture::refused(RunsFrozen.into());
        }
        let (call, settles) = match found {
            // The program, or an outer layer, has opened this node below a run: open no call.
            Some(call) if call.kind() != NodeKind::Run => {
                let settles = call.node().settlement().claim();
                if settles {
                    Claim::trace(&call, &request, None);
                }
                (call, settles)
            }
            found => {
                let call = self.open(named, found.as_ref());
                Claim::trace(&call, &request, found.as_ref());
                if self.registry.has_caps() {
                    request.extensions_mut().insert(Uncounted);
                }
                (call, true)
            }
        };
        if let Some(hook) = &self.on_end {
            call.node().on_end(hook);
        }
        if self.keep_partial > 0 {
            call.keep_partial(self.keep_partial);
        }
        if self.keep_excerpts > 0 {
            call.keep_excerpts(self.keep_excerpts);
        }
        CallSlot::fill(request.extensions(), &call);
        request.extensions_mut().insert(call.clone());
        let entry = Claim::new(call, settles);
        SupervisedFuture::new(
            entry,
            LayerSettings::hooks(RunHeader).reading(),
            request,
            inner,
        )
    }
}

/// Puts the run's id into the response's headers, or into the error.
#[derive(Debug)]
struct RunHeader;

impl LayerHooks for RunHeader {
    fn head(&mut self, found: &Run, _: StatusCode, headers: &mut HeaderMap) {
        // A `RunId` only has characters that are valid in a header.
        if let Ok(id) = HeaderValue::try_from(found.id().to_string()) {
            headers.insert(X_RUN_ID, id);
        }
    }

    fn error(&self, found: &Run, error: BoxError) -> BoxError {
        // A `Terminated` of this tree names its run already.
        if Terminated::find(&*error).is_some_and(|end| end.is_kin_of(found.node())) {
            return error;
        }
        CallFailed::new(found.id(), error).into()
    }
}

/// The error of a call that failed, with the id of its run.
///
/// The source is the failure. The end of a node of the run's tree is no such error, but a
/// [`Terminated`].
#[non_exhaustive]
#[derive(Debug)]
pub struct CallFailed {
    /// The id of the run that the call belongs to.
    pub run: RunId,
    source: BoxError,
}

impl CallFailed {
    pub(super) const fn new(run: RunId, source: BoxError) -> Self {
        Self { run, source }
    }
}

impl fmt::Display for CallFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call of run {} failed: {}", self.run, self.source)
    }
}

impl Error for CallFailed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

impl<S> Layer<S> for RunLayer {
    type Service = RunService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SupervisedService::new(inner, Arc::new(self.clone()))
    }
}
