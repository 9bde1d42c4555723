//! The service of the layer, and the future of its answer.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    body::ProgressBody,
    early::{self, Early, wants_stream},
    layer::ProgressLayer,
    outlet::Outlet,
    pulse::Pulse,
};
use crate::{
    error::BoxError,
    run::{NodeKind, PollScope, Run},
    supervise::ResponseFacts,
};

/// The service of a [`ProgressLayer`].
#[derive(Clone, Copy, Debug)]
pub struct Progress<S> {
    inner: S,
    layer: ProgressLayer,
}

impl<S> Progress<S> {
    pub(super) const fn new(inner: S, layer: ProgressLayer) -> Self {
        Self { inner, layer }
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Progress<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    S::Error: Into<BoxError>,
    // `'static` for the downcast of the body to `ReplayBody`.
    ReqBody: 'static,
    ResBody: Body<Data = Bytes>,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<ProgressBody<S::Future, ResBody>>;
    type Error = BoxError;
    type Future = ProgressFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let layer = &self.layer;
        let run = request.extensions().get::<Run>().cloned();
        // For an attempt there is no early head: the retry layer needs the upstream's own head.
        let is_attempt = run
            .as_ref()
            .is_some_and(|run| run.kind() == NodeKind::Attempt);
        let (early, request) = match layer.early_head {
            Some(after) if !is_attempt => {
                let (wanted, request) = wants_stream(request, layer.streams);
                (wanted.then(|| Early::new(after)), request)
            }
            _ => (None, request),
        };
        let pulse = Pulse::new(run, layer);
        let facts = ResponseFacts::of(&request);
        ProgressFuture::new(self.inner.call(request), pulse, facts, early)
    }
}

impl<S> Layer<S> for ProgressLayer {
    type Service = Progress<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Progress::new(inner, *self)
    }
}

pin_project! {
    /// The response future of [`Progress`](crate::layers::progress::Progress).
    ///
    /// # Errors
    ///
    /// The error is that of the inner service.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct ProgressFuture<F> {
        // `None` once the future is ready.
        #[pin]
        call: Option<Calling<F>>,
        state: Option<ProgressState>,
    }

    impl<F> PinnedDrop for ProgressFuture<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            this.call.set(None);
            if let Some(state) = this.state {
                state.pulse.release();
            }
        }
    }
}

pin_project! {
    #[project = CallingProj]
    #[derive(Debug)]
    enum Calling<F> {
        Here { #[pin] call: F },
        // Boxed, because after an early head the body continues the call.
        Boxed { call: Option<Pin<Box<F>>>, early: Early },
    }
}

/// The state that moves from the response future into the response body.
#[derive(Debug)]
struct ProgressState {
    pulse: Pulse,
    facts: ResponseFacts,
}

impl<F> ProgressFuture<F> {
    pub(super) fn new(call: F, pulse: Pulse, facts: ResponseFacts, early: Option<Early>) -> Self {
        let call = match early {
            None => Calling::Here { call },
            Some(early) => Calling::Boxed {
                call: Some(Box::pin(call)),
                early,
            },
        };
        Self {
            call: Some(call),
            state: Some(ProgressState { pulse, facts }),
        }
    }
}

impl ProgressState {
    /// Returns an early head, whose body continues the call.
    fn answer_early<F, B: Body>(self, call: Pin<Box<F>>) -> Response<ProgressBody<F, B>> {
        let Self { pulse, facts } = self;
        let outlet = Outlet::early(&pulse.layer);
        let marks = outlet.marks().clone();
        let run = pulse.call().cloned();
        let mut answer = early::head(ProgressBody::calling(call, pulse, facts, outlet));
        answer.extensions_mut().insert(marks);
        if let Some(run) = run {
            answer.extensions_mut().insert(run);
        }
        answer
    }
}

impl<F, B, E> Future for ProgressFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Output = Result<Response<ProgressBody<F, B>>, BoxError>;

    /// # Panics
    ///
    /// If it is polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let (Some(calling), Some(state)) = (this.call.as_mut().as_pin_mut(), this.state.as_mut())
        else {
            panic!("a response future was polled after it was ready");
        };
        let pulse = &mut state.pulse;
        let scope = PollScope::enter(cx.waker(), pulse.clock());
        let mut early = None;
        let polled = match calling.project() {
            CallingProj::Here { call } => call.poll(cx),
            CallingProj::Boxed {
                call: slot,
                early: head,
            } => {
                let polled = match slot {
                    Some(call) => call.as_mut().poll(cx),
                    None => Poll::Pending,
                };
                early = Some((slot, head));
                polled
            }
        };
        let answer = match polled {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                let now = pulse.now();
                let at = early.as_mut().map(|(_, head)| head.at(now));
                let is_due = at.is_some_and(|at| at <= now) && pulse.is_live(&scope);
                let call = early.and_then(|(slot, _)| slot.take_if(|_| is_due));
                let Some(call) = call else {
                    // Before a head there is no stream to insert a comment into.
                    let _ = pulse.pending(&scope, None, at, cx);
                    return Poll::Pending;
                };
                drop(scope);
                this.call.set(None);
                let Some(state) = this.state.take() else {
                    return Poll::Pending;
                };
                return Poll::Ready(Ok(state.answer_early(call)));
            }
        };
        drop(scope);
        this.call.set(None);
        let Some(ProgressState { mut pulse, facts }) = this.state.take() else {
            panic!("a response future was polled after it was ready");
        };
        match answer {
            Ok(answer) => Poll::Ready(Ok(ProgressBody::wrap(answer, pulse, facts))),
            Err(error) => {
                pulse.release();
                Poll::Ready(Err(error.into()))
            }
        }
    }
}
