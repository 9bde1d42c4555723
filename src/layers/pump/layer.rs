//! The builder and the service of the pump, and the hook that starts a drain.

use std::{
    future::Future,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, SizeHint};
use tokio::sync::{mpsc, oneshot};
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument;

use super::{
    channel::{AbortOnDrop, HeadWaiter, PumpOutcome, PumpReader},
    task::{PumpTask, Writer, pump},
};
use crate::{
    error::BoxError,
    run::{Run, Scope, TaskGuard, TerminalReason},
    supervise::{Claim, LayerHooks, LayerSettings, SupervisedBody, SupervisedFuture},
};

/// Polls each request to the model, and its answer, in a task of its own.
///
/// The deadlines then hold while the caller does not read: see the [module](super).
#[derive(Clone, Copy, Debug)]
pub struct PumpLayer {
    frames: usize,
    drain: Option<Duration>,
}

impl PumpLayer {
    /// Makes a layer that buffers at most `frames` frames between the task and the reader.
    ///
    /// # Panics
    ///
    /// If `frames` is zero.
    #[must_use]
    pub const fn new(frames: usize) -> Self {
        assert!(frames > 0, "a pump must hold at least one frame");
        Self {
            frames,
            drain: None,
        }
    }

    /// Sets how long the task goes on after the caller has left, to learn the usage.
    ///
    /// With `None`, the default, a drop by the caller ends the call, and drops its attempt at once.
    ///
    /// # Panics
    ///
    /// If `limit` is `Some` and zero.
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

/// The response future of [`Pump`]: the reader's end of its task.
pub type PumpFuture = SupervisedFuture<HeadWaiter>;

/// The response body of [`Pump`]: the reader's end of its task.
pub type PumpBody = SupervisedBody<PumpReader>;

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Pump<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + 'static,
    ResBody: Body<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<PumpBody>;
    type Error = BoxError;
    type Future = PumpFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        let entry = Claim::of(&mut request);
        let PumpLayer { frames, drain } = self.layer;
        // The node that a drop by the caller ends or closes, and whose end stops the task.
        let run = entry.run.clone();
        let settings = match drain {
            Some(limit) => LayerSettings::hooks(Drain(limit)),
            None => LayerSettings::disconnect(Scope::Found),
        };
        let drains = drain.is_some();
        SupervisedFuture::new(entry, settings.reading(), request, |request| {
            if !drains {
                return start(self.inner.call(request), run, frames, drains);
            }
            let within = Claim {
                run: run.clone(),
                owns: false,
            };
            let inner = &mut self.inner;
            // Observes the answer within the task: once the reader has left, the outer part does
            // not.
            let settings = LayerSettings::passive().reading().untold();
            let call =
                SupervisedFuture::new(within, settings, request, |request| inner.call(request));
            start(call, run, frames, drains)
        })
    }
}

fn start<F, B, E>(call: F, run: Run, capacity: usize, drains: bool) -> HeadWaiter
where
    F: Future<Output = Result<Response<B>, E>> + Send + 'static,
    E: Into<BoxError> + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (head, waiting) = oneshot::channel();
    let (frames, reader) = mpsc::channel(capacity);
    let outcome = PumpOutcome::default();
    let working = TaskGuard::new(run.clone());
    let reading = drains.then(|| run.clone());
    let writer = Writer {
        run,
        drains,
        head,
        frames,
        outcome: outcome.clone(),
    };
    #[allow(
        clippy::disallowed_methods,
        reason = "the pump is the layer that spawns"
    )]
    let task = tokio::spawn(PumpTask::new(pump(call, writer), working).in_current_span());
    HeadWaiter {
        head: waiting,
        reader: Some(PumpReader {
            frames: reader,
            outcome,
            size: SizeHint::default(),
            ended: false,
            _task: AbortOnDrop::new(task.abort_handle(), reading),
        }),
    }
}

/// Closes the node when the caller drops the response: the task may read on for this long.
#[derive(Debug)]
struct Drain(Duration);

impl LayerHooks for Drain {
    fn dropped(&mut self, found: &Run) {
        let now = found.now();
        let until = now.saturating_add(self.0);
        let reason = TerminalReason::ClientDisconnect;
        found.node().close(&reason, until, now);
    }
}
