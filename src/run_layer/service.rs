use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{RunLayer, policy::RunPolicy};
use crate::{
    BoxError,
    body::{Entry, SupervisedBody, SupervisedFuture},
    run::{InvalidRunId, NodeKind, Owner, Run, RunId},
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
struct Named {
    owner: Owner,
    id: Option<RunId>,
    session: Option<Arc<str>>,
}

impl RunLayer {
    fn read<B>(&self, request: Request<B>) -> Result<(Named, Request<B>), InvalidRunId> {
        let (parts, body) = request.into_parts();
        let session = self.session.read(&parts)?;
        let named = Named {
            owner: self.owner.read(&parts),
            id: self.id.read(&parts)?,
            session: session.map(|session| session.to_string().into()),
        };
        Ok((named, Request::from_parts(parts, body)))
    }

    /// Opens the call of a request, or finds the one that the program put into
    /// it; the caller settles it if the second is true.
    fn enter(&self, named: Named, found: Option<Run>) -> (Run, bool) {
        let Named { owner, id, session } = named;
        let (run, outer) = match found {
            // Put there by the program, for a run that it knows.
            Some(call) if call.kind() != NodeKind::Run => {
                let owns = call.node().payload.claim();
                return (call, owns);
            }
            Some(run) => {
                let nameless = run.node().payload.identity().is_none();
                match id {
                    Some(id) if nameless => {
                        if self
                            .registry
                            .adopt(&run, owner, id.clone(), session.clone())
                        {
                            (run, None)
                        } else {
                            (
                                self.registry.open_with(owner, id, session, self.idle),
                                Some(run),
                            )
                        }
                    }
                    _ => {
                        if nameless {
                            self.registry.adopt(&run, owner, run.id(), session);
                        }
                        (run, None)
                    }
                }
            }
            None => match id {
                Some(id) => (self.registry.open_with(owner, id, session, self.idle), None),
                None => {
                    let run = Run::open_single();
                    self.registry.adopt(&run, owner, run.id(), session);
                    (run, None)
                }
            },
        };
        // A deadline that has come is stored here; the call inherits it.
        drop(run.check());
        let call = run.open_below(NodeKind::Call);
        if let Some(outer) = outer {
            call.node().follow(outer.node());
        }
        call.node().enter();
        (call, true)
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
        request.extensions_mut().insert(call.clone());
        let entry = Entry::new(call, owns);
        SupervisedFuture::new(entry, RunPolicy, request, |request| {
            self.inner.call(request)
        })
    }
}
