//! The trace context in the headers of requests, from the caller and to the upstream.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::{HeaderMap, Request, header::Entry};
use opentelemetry::{
    Context as TraceContext, propagation::TextMapPropagator, trace::TraceContextExt,
};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use pin_project_lite::pin_project;
use tower::Service;
use tower_agent::Run;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Makes the span that the caller names in `traceparent` the parent of the call's span.
#[derive(Clone, Debug)]
pub(crate) struct TraceParent<S> {
    inner: S,
    is_traced: bool,
}

pin_project! {
    /// The future of [`TraceParent`].
    pub(crate) struct TraceParentFuture<F> {
        #[pin]
        inner: F,
        // The parent is attached in each poll, because the call's span is made in one of the polls.
        parent: Option<TraceContext>,
    }
}

impl<S> TraceParent<S> {
    pub(crate) const fn new(inner: S, is_traced: bool) -> Self {
        Self { inner, is_traced }
    }
}

impl<S, B> Service<Request<B>> for TraceParent<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = TraceParentFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let parent = self.is_traced.then(|| remote(request.headers())).flatten();
        let _scope = parent.clone().map(TraceContext::attach);
        TraceParentFuture {
            inner: self.inner.call(request),
            parent,
        }
    }
}

impl<F: Future> Future for TraceParentFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _scope = this.parent.clone().map(TraceContext::attach);
        this.inner.poll(cx)
    }
}

/// The caller's span; `None` without a valid `traceparent`.
fn remote(headers: &HeaderMap) -> Option<TraceContext> {
    let none = TraceContext::new();
    let read = TraceContextPropagator::new().extract_with_context(&none, &HeaderExtractor(headers));
    read.has_active_span().then_some(read)
}

/// Names in `traceparent` the span of the attempt; without a span the caller's header stays.
pub(crate) fn name_attempt<B>(mut request: Request<B>) -> Request<B> {
    let span = request.extensions().get::<Run>().map(Run::span);
    if let Some(span) = span.filter(|span| !span.is_disabled()) {
        let headers = request.headers_mut();
        let context = span.context();
        TraceContextPropagator::new().inject_context(&context, &mut HeaderInjector(headers));
        if let Entry::Occupied(state) = headers.entry("tracestate") {
            if state.get().is_empty() {
                state.remove();
            }
        }
    }
    request
}
