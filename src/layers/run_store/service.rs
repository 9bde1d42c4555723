//! The service of a [`RunStoreLayer`](super::RunStoreLayer): asks, then calls.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::{Timeout, timeout};
use tower_service::Service;

use super::{
    RunStoreLayer,
    question::{Asked, RunAsk},
};
use crate::{
    error::BoxError,
    registry::{
        AskedOwner, OwnerAsk,
        store::{Recalled, StoreFuture, StoreLost},
    },
};

/// The service of a [`RunStoreLayer`]; a clone of it shares the settings.
#[derive(Clone, Debug)]
pub struct SharedRuns<S> {
    inner: S,
    layer: Arc<RunStoreLayer>,
}

impl<S> SharedRuns<S> {
    pub(super) const fn new(inner: S, layer: Arc<RunStoreLayer>) -> Self {
        Self { inner, layer }
    }
}

impl<S, Q, B> Service<Request<Q>> for SharedRuns<S>
where
    S: Service<Request<Q>, Response = Response<B>, Error: Into<BoxError>> + Clone,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = SharedRunsFuture<S, Q>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        if !self.layer.is_shared() {
            let future = self.inner.call(request);
            return SharedRunsFuture {
                stage: Stage::Calling { future },
            };
        }
        let registry = self.layer.runs.registry();
        let store = registry.store().cloned();
        let (question, request) = self.layer.question(request);
        let Some((asked, store)) = question.zip(store) else {
            let future = self.inner.call(request);
            return SharedRunsFuture {
                stage: Stage::Calling { future },
            };
        };
        // The service that was polled ready takes the call; a clone of it stays for later calls.
        let next = self.inner.clone();
        let service = mem::replace(&mut self.inner, next);
        let Asked {
            question,
            run,
            owner,
        } = asked;
        let call = Call {
            service,
            request,
            layer: Arc::clone(&self.layer),
            run,
            owner,
        };
        let answer = timeout(self.layer.wait, question.ask(store));
        SharedRunsFuture {
            stage: Stage::Asking {
                answer,
                call: Some(call),
            },
        }
    }
}

/// A request that waits for the store.
#[derive(Debug)]
struct Call<S, Q> {
    service: S,
    request: Request<Q>,
    layer: Arc<RunStoreLayer>,
    run: Option<RunAsk>,
    owner: Option<OwnerAsk>,
}

impl<S, Q> Call<S, Q>
where
    S: Service<Request<Q>>,
{
    /// Calls the inner service with what the store answered.
    ///
    /// # Errors
    ///
    /// The end of the run, or of its parent, if it has ended elsewhere.
    fn make(mut self, answer: Result<Recalled, StoreLost>) -> Result<S::Future, BoxError> {
        if let Some(mut ask) = self.owner {
            if let Some((counts, recalled)) =
                answer.as_ref().ok().and_then(|it| Some((it.owner?, it)))
            {
                ask.learn(counts, recalled.is_held_elsewhere);
            }
            // Beyond this function the ask is the caps', or is given back.
            self.request.extensions_mut().insert(AskedOwner::new(ask));
        }
        if let (Some(sessions), Ok(recalled)) = (&self.layer.sessions, &answer) {
            sessions.learn(&recalled.candidates);
        }
        if let Some(ask) = self.run {
            let registry = self.layer.runs.registry();
            let asked = ask.answered(answer, registry, self.layer.refuses)?;
            self.request.extensions_mut().insert(asked);
        }
        Ok(self.service.call(self.request))
    }
}

pin_project! {
    /// The response future of [`SharedRuns`].
    ///
    /// # Errors
    ///
    /// The future returns a [`Terminated`](crate::Terminated) if the run has ended elsewhere, and
    /// else the inner error.
    #[must_use = "futures do nothing unless polled"]
    pub struct SharedRunsFuture<S, Q>
    where
        S: Service<Request<Q>>,
    {
        #[pin]
        stage: Stage<S, Q, S::Future>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<S, Q, F> {
        Asking {
            #[pin]
            answer: Timeout<StoreFuture<Result<Recalled, StoreLost>>>,
            call: Option<Call<S, Q>>,
        },
        Calling {
            #[pin]
            future: F,
        },
    }
}

impl<S, Q, B> Future for SharedRunsFuture<S, Q>
where
    S: Service<Request<Q>, Response = Response<B>, Error: Into<BoxError>>,
{
    type Output = Result<Response<B>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            match stage.as_mut().project() {
                StageProj::Asking { answer, call } => {
                    let answer = ready!(answer.poll(cx)).unwrap_or(Err(StoreLost));
                    let Some(call) = call.take() else {
                        panic!("polled after completion")
                    };
                    let future = match call.make(answer) {
                        Ok(future) => future,
                        Err(end) => return Poll::Ready(Err(end)),
                    };
                    stage.set(Stage::Calling { future });
                }
                StageProj::Calling { future } => return future.poll(cx).map_err(Into::into),
            }
        }
    }
}
