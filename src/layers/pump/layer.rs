//! The builder and the service of the pump, and the hook that closes a node for a drain.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    call::{PumpedBody, PumpedCall},
    work::PumpedWork,
};
use crate::{
    error::BoxError,
    run::{Run, Scope},
    supervise::{
        Claim, LayerHooks, LayerSettings, SupervisedBody, SupervisedFuture, reason_of_drop,
    },
};

/// Ends each call at its deadlines even if its caller does not read.
///
/// The layer also ends or drains a call when its caller leaves: see the [module](super).
#[derive(Clone, Copy, Debug, Default)]
pub struct PumpLayer {
    drain: Option<Duration>,
}

impl PumpLayer {
    /// Makes a layer that ends a call when its caller leaves.
    #[must_use]
    pub const fn new() -> Self {
        Self { drain: None }
    }

    /// Sets how long a call may go on after its caller has left, to learn the usage.
    ///
    /// With `None`, the default, a drop by the caller ends the call, and drops the inner future or
    /// body at once.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is `Some` and zero.
    #[must_use]
    pub const fn drain(mut self, limit: Option<Duration>) -> Self {
        if let Some(limit) = limit {
            assert!(!limit.is_zero(), "a drain must be longer than zero");
        }
        self.drain = limit;
        self
    }
}

impl<S> Layer<S> for PumpLayer {
    type Service = Pump<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let layer = *self;
        Pump { inner, layer }
    }
}

/// The service of a [`PumpLayer`](crate::layers::pump::PumpLayer).
#[derive(Clone, Copy, Debug)]
pub struct Pump<S> {
    inner: S,
    layer: PumpLayer,
}

/// The response future of [`Pump`].
pub type PumpFuture = SupervisedFuture<PumpedCall>;

/// The response body of [`Pump`].
pub type PumpBody = SupervisedBody<PumpedBody>;

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Pump<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>, Error: Into<BoxError> + 'static>,
    S::Future: Send + 'static,
    ResBody: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<PumpBody>;
    type Error = BoxError;
    type Future = PumpFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        let entry = Claim::of(&mut request);
        // A drop by the caller ends or closes this node, and the end of the node drops the call.
        let run = entry.run.clone();
        let settings = match self.layer.drain {
            Some(limit) => LayerSettings::hooks(CloseOnDrop(limit)),
            None => LayerSettings::disconnect(Scope::Found),
        };
        let drains = self.layer.drain.is_some();
        let inner = &mut self.inner;
        SupervisedFuture::new(entry, settings.reading(), request, |request| {
            if !drains {
                return PumpedCall::new(PumpedWork::new(inner.call(request)), run, drains);
            }
            // The inner call has a second observer. The caller drops the first one together with
            // the response, and then the second one learns the usage.
            let settings = LayerSettings::passive().reading().hiding_node();
            let within = Claim {
                run: run.clone(),
                settles: false,
            };
            let call =
                SupervisedFuture::new(within, settings, request, |request| inner.call(request));
            PumpedCall::new(PumpedWork::new(call), run, drains)
        })
    }
}

/// Closes the node when the caller drops the unfinished response. The rest is then read for at most
/// this time.
#[derive(Debug)]
struct CloseOnDrop(Duration);

impl LayerHooks for CloseOnDrop {
    fn dropped(&mut self, found: &Run) {
        let now = found.now();
        let until = now.saturating_add(self.0);
        found.node().close(&reason_of_drop(), until, now);
    }

    // What panicked cannot be read on.
    fn unwound(&mut self, found: &Run) {
        drop(found.node().end(reason_of_drop(), None, found.now()));
    }
}
