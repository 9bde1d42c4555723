//! Counts attempts by candidate and outcome.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower::{BoxError, Layer, Service};
use tower_agent::{Candidate, Run, TerminalReason, run::ReasonClass};

use super::{Metrics, reason};

/// Counts the attempts that pass through it, by outcome. It stands around all layers of one
/// attempt.
#[derive(Clone, Debug)]
pub(crate) struct AttemptsLayer(pub(crate) Metrics);

#[derive(Clone, Debug)]
pub(crate) struct Attempts<S> {
    inner: S,
    metrics: Metrics,
}

pin_project! {
    #[derive(Debug)]
    pub(crate) struct Attempt<F> {
        // Dropped before `counted`, so that the work has ended when the count shows it.
        #[pin]
        future: F,
        counted: Option<Counted>,
    }
}

/// One attempt. Its drop counts it: by its outcome, by the limit that ended it, or as `given_up`.
///
/// A limit drops the future of the attempt, and the future returns no error.
#[derive(Debug)]
struct Counted {
    metrics: Metrics,
    attempt: Option<Run>,
    candidate: String,
    outcome: Option<String>,
}

impl<S> Layer<S> for AttemptsLayer {
    type Service = Attempts<S>;

    fn layer(&self, inner: S) -> Attempts<S> {
        let metrics = self.0.clone();
        Attempts { inner, metrics }
    }
}

impl<S, Q, B> Service<Request<Q>> for Attempts<S>
where
    S: Service<Request<Q>, Response = Response<B>, Error = BoxError>,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = Attempt<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let candidate = Candidate::of(&request).map(Candidate::label);
        let counted = Counted {
            candidate: self.metrics.candidate(candidate),
            metrics: self.metrics.clone(),
            attempt: request.extensions().get::<Run>().cloned(),
            outcome: None,
        };
        Attempt {
            future: self.inner.call(request),
            counted: Some(counted),
        }
    }
}

impl<F, B> Future for Attempt<F>
where
    F: Future<Output = Result<Response<B>, BoxError>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let result = ready!(this.future.poll(cx));
        // Counted before the answer is returned: a caller with the answer finds it in
        // `/metrics`.
        if let Some(mut counted) = this.counted.take() {
            counted.outcome = Some(match &result {
                Ok(answer) => format!("{}xx", answer.status().as_u16() / 100),
                Err(error) => TerminalReason::find(&**error).map_or_else(|| "error".into(), reason),
            });
        }
        Poll::Ready(result)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let ended = || self.attempt.as_ref()?.terminal_reason();
        let limit = || ended().filter(|why| why.class() == ReasonClass::Timeout);
        let outcome = self.outcome.take();
        let outcome = outcome.or_else(|| limit().as_ref().map(reason));
        let outcome = outcome.unwrap_or_else(|| "given_up".to_owned());
        self.metrics
            .attempt(std::mem::take(&mut self.candidate), outcome);
    }
}
