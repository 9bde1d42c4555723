//! The service: finds or opens the run of a request, and opens its call.

use std::{
    error::Error,
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::layer::RunLayer;
use crate::{
    attempt::generates,
    error::BoxError,
    registry::{Held, OpenRun, Owner, RunRegistry},
    run::{InvalidRunId, LimitHit, NodeKind, Run, RunId, TerminalReason, Terminated},
    supervise::{Claim, Policy, SupervisedBody, SupervisedFuture},
};

/// The service of a [`RunLayer`].
#[derive(Clone, Debug)]
pub struct RunService<S> {
    inner: S,
    // Shared, so that a service that is cloned per request clones cheaply.
    layer: Arc<RunLayer>,
}

/// The response future of [`RunService`].
pub type RunFuture<F> = SupervisedFuture<F, RunPolicy>;

/// The response body of [`RunService`].
pub type RunBody<B> = SupervisedBody<B, RunPolicy>;

impl<S> RunService<S> {
    pub(super) fn new(inner: S, layer: RunLayer) -> Self {
        Self {
            inner,
            layer: Arc::new(layer),
        }
    }
}

/// What a request says about its run.
struct NamedRun {
    owner: Owner,
    id: Option<RunId>,
    session: Option<Arc<str>>,
    /// Whether it is a turn, if somebody counts.
    is_turn: bool,
}

/// The run that a request belongs to.
struct Resolved<'a> {
    run: Run,
    /// The one around it, if that is another.
    outer: Option<&'a Run>,
    /// It is worked on, lest it completes as idle before its call begins.
    entered: bool,
    /// It is a new one, and its owner's count has it and its first turn.
    counted: bool,
}

impl RunLayer {
    fn read<B>(&self, request: Request<B>) -> Result<(NamedRun, Request<B>), InvalidRunId> {
        let is_turn = self.owner_caps.is_some() && generates(&request);
        let (parts, body) = request.into_parts();
        let session = self.session.read(&parts)?;
        let named = NamedRun {
            owner: self.owner.read(&parts),
            id: self.id.read(&parts)?,
            session: session.map(|session| session.to_string().into()),
            is_turn,
        };
        Ok((named, Request::from_parts(parts, body)))
    }

    /// Opens the call of a request, or finds the one that the program put into
    /// it, and enters it; the caller settles it if the second is true.
    fn enter(&self, named: NamedRun, found: Option<Run>) -> (Run, bool) {
        // Put there by the program, for a run that it knows.
        if let Some(call) = found.as_ref().filter(|found| found.kind() != NodeKind::Run) {
            return (call.clone(), call.node().payload.claim());
        }
        (self.open(&named, found.as_ref()), true)
    }

    fn open(&self, named: &NamedRun, found: Option<&Run>) -> Run {
        let found_run = match self.find(named, found) {
            Ok(found_run) => found_run,
            Err(cap) => return self.refuse(named, cap, found),
        };
        let Resolved {
            run,
            outer,
            entered,
            counted,
        } = found_run;
        // A deadline that has come is stored here; the call inherits it.
        drop(run.check());
        let call = run.open_below(NodeKind::Call);
        call.node().enter();
        if entered {
            run.node().leave(run.now());
        }
        if found.is_some() {
            run.pass_turn_to(&call);
        }
        if !counted {
            self.count_turn(named, &call);
        }
        match outer {
            Some(outer) => call.end_with(outer),
            None if named.id.is_none() => call.node().payload.set_sole(),
            None => {}
        }
        call
    }

    /// A call of a run that is none, for its owner is over a cap.
    fn refuse(&self, named: &NamedRun, cap: LimitHit, found: Option<&Run>) -> Run {
        let (id, session) = (named.id.clone(), named.session.clone());
        let run = RunRegistry::open_unknown(named.owner, id, session);
        let call = run.open_below(NodeKind::Call);
        call.node().enter();
        call.node().payload.set_sole();
        match self.hold(named, cap, true) {
            Some(held) => {
                call.hold(held);
                if let Some(found) = found {
                    call.end_with(found);
                }
            }
            None => {
                let now = run.now();
                drop(run.node().end(TerminalReason::TurnCap, Some(cap), now));
                self.registry.tell_refused(named.owner, cap, None);
            }
        }
        call
    }

    /// Leaves it to a layer further in whether a call is refused, if there is one and
    /// the call may be a word to stop.
    fn hold(&self, named: &NamedRun, cap: LimitHit, is_new: bool) -> Option<Held> {
        let may_stop = self.hears_stop && named.session.is_some();
        may_stop.then(|| self.registry.hold(named.owner, cap, is_new))?
    }

    /// Counts a run that is about to be opened, with its first turn; none if nobody
    /// counts.
    ///
    /// # Errors
    ///
    /// The cap of its owner that it is over.
    fn count_run(&self, named: &NamedRun) -> Result<Option<OpenRun>, LimitHit> {
        // Of a registry that is shut down it is over from its birth, which says more.
        let admits = !self.registry.is_closed();
        let Some(caps) = self.owner_caps.filter(|_| admits) else {
            return Ok(None);
        };
        let owners = self.registry.count_owners();
        owners.open(named.owner, caps, named.is_turn).map(Some)
    }

    /// Counts a turn of a run that is known; over the cap the call alone ends.
    fn count_turn(&self, named: &NamedRun, call: &Run) {
        let Some(caps) = self.owner_caps.filter(|_| named.is_turn) else {
            return;
        };
        if call.terminal_reason().is_some() {
            return;
        }
        let Err(cap) = self.registry.count_owners().turn(named.owner, caps) else {
            return;
        };
        if let Some(held) = self.hold(named, cap, false) {
            call.hold(held);
            return;
        }
        let now = call.now();
        drop(call.node().end(TerminalReason::TurnCap, Some(cap), now));
        self.registry.tell_refused(named.owner, cap, Some(call));
    }

    /// The run that a request belongs to.
    ///
    /// # Errors
    ///
    /// The cap of its owner that it is over, if it would be a new one.
    fn find<'a>(&self, named: &NamedRun, found: Option<&'a Run>) -> Result<Resolved<'a>, LimitHit> {
        let registry = &self.registry;
        let nameless = |run: &Run| run.node().payload.identity().is_none();
        match (found, &named.id) {
            (None, Some(id)) => self.find_named(named, id, None),
            (None, None) => {
                let counted = self.count_run(named)?;
                let run = Run::open_single();
                registry.adopt(&run, named.owner, None, named.session.clone(), self.idle);
                Ok(Resolved::new(run, counted))
            }
            (Some(found), Some(id)) if nameless(found) => {
                if registry.is_taken(named.owner, id) {
                    return self.find_named(named, id, Some(found));
                }
                let counted = match self.count_run(named) {
                    Ok(counted) => counted,
                    // Another request of it came at the same time.
                    Err(_) if registry.is_taken(named.owner, id) => None,
                    Err(cap) => return Err(cap),
                };
                let (name, session) = (Some(id.clone()), named.session.clone());
                if registry.adopt(found, named.owner, name, session, self.idle) {
                    return Ok(Resolved::new(found.clone(), counted));
                }
                drop(counted);
                self.find_named(named, id, Some(found))
            }
            (Some(found), None) if nameless(found) => {
                let counted = self.count_run(named)?;
                registry.adopt(found, named.owner, None, named.session.clone(), self.idle);
                Ok(Resolved::new(found.clone(), counted))
            }
            (Some(found), _) => Ok(Resolved::new(found.clone(), None)),
        }
    }

    /// Finds a run by its name, or opens it.
    fn find_named<'a>(
        &self,
        named: &NamedRun,
        id: &RunId,
        outer: Option<&'a Run>,
    ) -> Result<Resolved<'a>, LimitHit> {
        let (id, session) = (id.clone(), named.session.clone());
        let count = || self.count_run(named);
        let (run, counted) =
            self.registry
                .enter_with(named.owner, id, session, self.idle, count)?;
        Ok(Resolved {
            run,
            outer,
            entered: true,
            counted,
        })
    }
}

impl Resolved<'_> {
    fn new(run: Run, counted: Option<OpenRun>) -> Self {
        let is_counted = counted.is_some();
        if let Some(counted) = counted {
            run.count_as(Box::new(counted));
        }
        Self {
            run,
            outer: None,
            entered: false,
            counted: is_counted,
        }
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for RunService<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    S::Error: Into<BoxError>,
    ResBody: Body<Data = Bytes>,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<RunBody<ResBody>>;
    type Error = BoxError;
    type Future = RunFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let (named, mut request) = match self.layer.read(request) {
            Ok(read) => read,
            Err(error) => return SupervisedFuture::refused(error.into()),
        };
        let found = request.extensions().get::<Run>().cloned();
        let (call, owns) = self.layer.enter(named, found);
        if let Some(hook) = &self.layer.on_end {
            call.on_end(hook);
        }
        if self.layer.keep_partial > 0 {
            call.keep_partial(self.layer.keep_partial);
        }
        request.extensions_mut().insert(call.clone());
        let entry = Claim::new(call, owns);
        SupervisedFuture::new(entry, RunPolicy, request, |request| {
            self.inner.call(request)
        })
    }
}

/// Measures nothing; tells the caller which run it was.
#[derive(Debug)]
pub struct RunPolicy;

impl Policy for RunPolicy {
    const READS: bool = true;

    fn head(&mut self, found: &Run, headers: &mut HeaderMap) {
        // An id is made of characters that a header may hold.
        if let Ok(id) = HeaderValue::try_from(found.id().to_string()) {
            headers.insert(HeaderName::from_static("x-run-id"), id);
        }
    }

    fn error(&self, found: &Run, error: BoxError) -> BoxError {
        // An end says itself which run it is of.
        if Terminated::find(&*error).is_some_and(|end| end.is_kin_of(found)) {
            return error;
        }
        CallFailed::new(found.id(), error).into()
    }
}

/// A call failed for a reason that is not the end of its run; it says which
/// run that was, and has the failure as its source.
#[non_exhaustive]
#[derive(Debug)]
pub struct CallFailed {
    /// The run that the call belongs to.
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
        RunService::new(inner, self.clone())
    }
}
