//! How a try is started.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use http_body::Body;
use tower_service::Service;

use super::{
    X_ATTEMPT,
    admission::Admitted,
    budget::Permit,
    classify,
    driver::{AttemptDriver, Next, Started},
    effects::SideEffects,
    peek::Spent,
    policy::AttemptPolicy,
    request_template,
    supervision::AttemptSupervision,
};
use crate::{
    body::ReplayBody,
    error::BoxError,
    llm::failure::TransportError,
    run::{NodeKind, Run, TaskId, TerminalReason, Terminated, nanos},
    supervise::{Claim, SupervisedFuture},
};

impl<S, C: AttemptPolicy> AttemptDriver<S, C> {
    /// The request is there, whole.
    #[inline]
    pub(super) fn begin<B: Body>(&mut self, request: Request<ReplayBody>) -> Next<B> {
        self.own.begin_tries();
        if request.extensions().get::<SideEffects>().is_some() {
            self.own.mark_side_effects();
        }
        match self.chain.begin(&self.own, request) {
            Ok(()) => self.start(None),
            Err(error) => Next::Done(Err(self.refuse(error))),
        }
    }

    /// Opens a try, unless the node is over.
    #[inline]
    pub(super) fn start<B: Body>(&mut self, grant: Option<Permit<'static>>) -> Next<B> {
        let Some(attempt) = self.own.admit(NodeKind::Attempt) else {
            // The grant was not used, and goes back.
            return Next::Done(Err(self.over(None)));
        };
        self.chain.limit(&attempt);
        let admitted = Admitted::new(attempt, grant);
        // Whoever called has seen to it that the service is ready, once.
        if std::mem::take(&mut self.is_ready) {
            Next::Try(admitted)
        } else {
            Next::Ready(admitted)
        }
    }

    /// Asks the service whether it is ready for the try.
    pub(super) fn ready<B>(
        &mut self,
        admitted: &mut Option<Admitted>,
        task: TaskId,
        cx: &mut Context<'_>,
    ) -> Poll<Next<B>>
    where
        S: Service<Request<ReplayBody>>,
        S::Error: Into<BoxError>,
        B: Body<Data = Bytes>,
    {
        if let Some(ended) = self.idle() {
            return Poll::Ready(ended);
        }
        let attempt = admitted.as_ref().and_then(Admitted::attempt).cloned();
        let (Some(begun), Some(attempt)) = (admitted.take(), attempt) else {
            panic!("a try was started twice");
        };
        let readiness = self.service.poll_ready(cx);
        // The clocks, for the service may be ready at the very deadline.
        let alive = attempt.node().check(self.own.now(), task).is_ok();
        if let Some(ended) = self.ended() {
            return Poll::Ready(ended);
        }
        let error: BoxError = match readiness {
            // It has not seen the request.
            Poll::Ready(Err(error)) => unready(error.into()),
            // Its share of the time went by.
            _ if !alive => attempt.to_terminated().into(),
            Poll::Ready(Ok(())) => return Poll::Ready(Next::Try(begun)),
            Poll::Pending => {
                *admitted = Some(begun);
                return Poll::Pending;
            }
        };
        let failure = classify::broken(&error, &self.own, self.chain.streams());
        begun.fail(TerminalReason::Failed(failure.class));
        Poll::Ready(self.failed(failure, Spent::Error(error), &attempt, task))
    }

    /// Starts the try.
    ///
    /// # Errors
    ///
    /// If its request cannot be made.
    #[inline]
    pub(super) fn call(&mut self, admitted: Admitted) -> Result<Started<S::Future>, BoxError>
    where
        S: Service<Request<ReplayBody>>,
    {
        let Some(attempt) = admitted.attempt().cloned() else {
            panic!("a try was started twice");
        };
        let mut request = self.chain.request(&attempt)?;
        // From here on what watches it settles it.
        admitted.begin();
        let again = std::mem::replace(&mut self.started, true);
        let number = self.own.count_try(again);
        request
            .headers_mut()
            .insert(X_ATTEMPT, request_template::number(number));
        let extensions = request.extensions_mut();
        match extensions.get_mut::<Run>() {
            Some(run) => run.clone_from(&attempt),
            None => drop(extensions.insert(attempt.clone())),
        }
        let held_to = |hold: Duration| nanos(attempt.node().opened().saturating_add(hold));
        let hold = self.chain.hold().map(held_to);
        let entry = Claim {
            run: attempt.clone(),
            owns: true,
        };
        let service = &mut self.service;
        Ok(Started {
            call: SupervisedFuture::new(entry, AttemptSupervision, request, |request| {
                service.call(request)
            }),
            attempt,
            hold,
        })
    }
}

/// What a service broke with that was not ready.
fn unready(error: BoxError) -> BoxError {
    if Terminated::find(&*error).is_some() || TransportError::is_in(&*error) {
        return error;
    }
    TransportError::new(error).into()
}
