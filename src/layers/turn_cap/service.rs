use std::{
    sync::{Arc, atomic::AtomicU32},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{layer::TurnCapLayer, policy::TurnPolicy};
use crate::{
    attempt::generates,
    error::BoxError,
    run::{Run, Terminated, TurnLimit},
    supervise::{Claim, SupervisedBody, SupervisedFuture},
};

/// The service of a [`TurnCapLayer`].
#[derive(Clone, Debug)]
pub struct TurnCap<S> {
    inner: S,
    // Shared, so that a service that is cloned per request clones cheaply.
    layer: Arc<TurnCapLayer>,
}

/// The response future of [`TurnCap`].
pub type TurnCapFuture<F> = SupervisedFuture<F, TurnPolicy>;

/// The response body of [`TurnCap`].
pub type TurnCapBody<B> = SupervisedBody<B, TurnPolicy>;

/// Which turn a request is whose run makes no calls of its own.
#[derive(Clone, Copy)]
struct RequestTurn {
    run: u64,
    number: u32,
}

impl<S> TurnCap<S> {
    pub(super) fn new(inner: S, layer: TurnCapLayer) -> Self {
        Self {
            inner,
            layer: Arc::new(layer),
        }
    }
}

impl TurnCapLayer {
    /// The cap that this request counts towards; none if it does not count.
    fn of<B>(&self, request: Request<B>) -> (Option<TurnLimit>, Request<B>) {
        if self.counts.is_none() && self.per_agent.is_none() {
            let counts = self.turns.is_some() && generates(&request);
            let cap = self.turns.filter(|_| counts);
            return (self.cap(cap), request);
        }
        let known = self.counts.is_none().then(|| generates(&request));
        let (parts, body) = request.into_parts();
        let counts = match &self.counts {
            Some(counts) => counts(&parts),
            None => known.unwrap_or(true),
        };
        let turns = counts.then(|| {
            let own = self.per_agent.as_ref().and_then(|turns| turns(&parts));
            own.filter(|turns| *turns > 0).or(self.turns)
        });
        let cap = self.cap(turns.flatten());
        (cap, Request::from_parts(parts, body))
    }

    fn cap(&self, turns: Option<u32>) -> Option<TurnLimit> {
        let finaliser = self.finaliser;
        turns.map(|turns| TurnLimit { turns, finaliser })
    }
}

/// Counts the request, unless a layer further out has.
#[allow(
    clippy::result_large_err,
    reason = "the cold path, and the type of every layer"
)]
fn admit<B>(found: &Run, cap: TurnLimit, request: &mut Request<B>) -> Result<(), Terminated> {
    let run = found.node().number();
    let known = request.extensions().get::<RequestTurn>();
    let known = known.filter(|turn| turn.run == run);
    let number = AtomicU32::new(known.map_or(0, |turn| turn.number));
    found.take_turn(cap, &number)?;
    let number = number.into_inner();
    if number > 0 {
        request.extensions_mut().insert(RequestTurn { run, number });
    }
    Ok(())
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for TurnCap<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    S::Error: Into<BoxError>,
    ResBody: Body<Data = Bytes>,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<TurnCapBody<ResBody>>;
    type Error = BoxError;
    type Future = TurnCapFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let (cap, mut request) = self.layer.of(request);
        let Some(cap) = cap else {
            return SupervisedFuture::inert(self.inner.call(request));
        };
        let entry = Claim::of(&mut request);
        let found = entry.run.clone();
        if let Err(end) = admit(&found, cap, &mut request) {
            if !found.node().is_over() {
                // A run that is found as it is, and is closing, lives on.
                return SupervisedFuture::refused(end.into());
            }
        }
        let policy = TurnPolicy::new(cap.finaliser.is_some());
        SupervisedFuture::new(entry, policy, request, |request| self.inner.call(request))
    }
}
