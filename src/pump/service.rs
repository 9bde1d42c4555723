use std::{
    future::Future,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, SizeHint};
use tokio::sync::{mpsc, oneshot};
use tower_service::Service;
use tracing::Instrument;

use super::{
    channel::{AbortOnDrop, Outcome, Reader, Waiting},
    task::{Working, Writer, pump},
};
use crate::{
    BoxError,
    body::{Entry, SupervisedBody, SupervisedFuture},
    client_disconnect::DropPolicy,
    run::{Run, Scope, TaskGuard},
};

/// The service of a [`PumpLayer`](super::PumpLayer).
#[derive(Clone, Copy, Debug)]
pub struct Pump<S> {
    inner: S,
    frames: usize,
}

impl<S> Pump<S> {
    pub(super) const fn new(inner: S, frames: usize) -> Self {
        Self { inner, frames }
    }
}

/// The response future of [`Pump`]: the reader's end of its task.
pub type PumpFuture = SupervisedFuture<Waiting, DropPolicy>;

/// The response body of [`Pump`]: the reader's end of its task.
pub type PumpBody = SupervisedBody<Reader, DropPolicy>;

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
        let entry = Entry::of(&mut request);
        // What the task waits for is the end of the found node. What the drop
        // ends is that node too.
        let policy = DropPolicy::new(Scope::Found);
        let run = entry.run.clone();
        let frames = self.frames;
        SupervisedFuture::new(entry, policy, request, |request| {
            start(self.inner.call(request), run, frames)
        })
    }
}

fn start<F, B, E>(call: F, run: Run, capacity: usize) -> Waiting
where
    F: Future<Output = Result<Response<B>, E>> + Send + 'static,
    E: Into<BoxError> + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (head, waiting) = oneshot::channel();
    let (frames, reader) = mpsc::channel(capacity);
    let outcome = Outcome::default();
    let working = TaskGuard::new(run.clone());
    let writer = Writer {
        run,
        head,
        frames,
        outcome: outcome.clone(),
    };
    #[allow(
        clippy::disallowed_methods,
        reason = "the pump is the layer that spawns"
    )]
    let task = tokio::spawn(Working::new(pump(call, writer), working).in_current_span());
    Waiting {
        head: waiting,
        reader: Some(Reader {
            frames: reader,
            outcome,
            size: SizeHint::default(),
            ended: false,
            _task: AbortOnDrop(task.abort_handle()),
        }),
    }
}
