use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use tokio::time::{Instant, Sleep};
use tower_service::Service;

use super::{
    body::{ProbedBody, Silence},
    gate::{Gate, ProbeSubscription, wait},
    reading::{Reading, is_not_ready},
};
use crate::{
    body::ReplayBody,
    error::BoxError,
    llm::failure::TransportError,
    run::{PauseGuard, Run, TaskId, Terminated, nanos},
};

/// The number of failures, each after a wait that a healthy probe ended, that ends the waiting.
///
/// A probe that is healthy each time does not cover the failure: the upstream is not restarting.
const CONTRADICTED: u32 = 3;

/// The state of a call that survives from one sending of its request to the next.
pub(super) struct Trip<S, P: Service<()>, B> {
    pub(super) service: S,
    /// Whether the service was polled ready, and has not been called since.
    is_ready: bool,
    pub(super) gate: Arc<Gate<P>>,
    pub(super) run: Run,
    /// The caller's request; `None` until its body is buffered, and once no resend can follow.
    pub(super) request: Option<Request<ReplayBody>>,
    /// Whether the request goes to the upstream that the gate watches.
    applies: bool,
    /// The time that the call has waited for the upstream, without a wait in progress.
    waited: Duration,
    /// Whether the last wait ended with a healthy probe, and the call has not failed since.
    was_healthy: bool,
    /// The number of the call's failures that followed a wait with a healthy probe.
    contradictions: u32,
    /// The failure for which the call waits; `None` once the request is sent again.
    last: Option<Failed<B>>,
    pub(super) silence: Option<Silence<P>>,
}

/// The state of a call while it waits for the upstream.
pub(super) struct Waiting<P: Service<()>> {
    subscription: Pin<Box<ProbeSubscription<P>>>,
    /// The timer for the end of the call's patience; `None` if patience is not limited.
    limit: Option<Pin<Box<Sleep>>>,
    since: Instant,
    _pause: PauseGuard,
}

/// The failure for which a call waits; the call returns it if it gives up.
pub(super) enum Failed<B> {
    Error(BoxError),
    Answer(Box<Reading<B>>),
}

/// The next step of a call.
#[allow(
    clippy::large_enum_variant,
    reason = "made and taken apart at once, on the hot path"
)]
pub(super) enum GateStep<B, P: Service<()>> {
    /// Send the request, once the service is ready.
    Call,
    /// Read the body of the answer to classify it.
    Read(Reading<B>),
    /// Wait until a probe finds the upstream healthy.
    Wait,
    Done(Result<Response<ProbedBody<B, P>>, BoxError>),
}

impl<S, P: Service<()>, B> Trip<S, P, B> {
    pub(super) fn new(service: S, gate: Arc<Gate<P>>, run: Run, applies: bool) -> Self {
        let after = gate.silence.filter(|_| applies);
        let silence = after.map(|after| Silence::new(Arc::clone(&gate), run.clone(), after));
        Self {
            service,
            is_ready: true,
            gate,
            run,
            request: None,
            applies,
            waited: Duration::ZERO,
            was_healthy: false,
            contradictions: 0,
            last: None,
            silence,
        }
    }

    /// The first step of a buffered request: it waits if the gate is closed, else it is sent.
    pub(super) fn begin(&mut self) -> GateStep<B, P>
    where
        S: Clone,
    {
        if self.applies && self.gate.rounds.is_closed() {
            self.yield_service();
            return GateStep::Wait;
        }
        GateStep::Call
    }

    /// Releases the capacity that a ready service has reserved, by a clone that is not ready.
    pub(super) fn yield_service(&mut self)
    where
        S: Clone,
    {
        if std::mem::take(&mut self.is_ready) {
            self.service = self.service.clone();
        }
    }

    pub(super) const fn ready(&mut self) -> GateStep<B, P> {
        self.is_ready = true;
        GateStep::Call
    }

    /// Sends the request; `None` if the service must be polled ready first.
    pub(super) fn call(&mut self) -> Option<S::Future>
    where
        S: Service<Request<ReplayBody>>,
    {
        if !std::mem::take(&mut self.is_ready) {
            return None;
        }
        self.last = None;
        if let Some(silence) = &mut self.silence {
            // A wait at the gate is no silence of the upstream, so silence starts anew.
            silence.reset();
        }
        let again = self.request.clone().filter(|_| self.applies);
        let request = std::mem::replace(&mut self.request, again);
        match request {
            Some(request) => Some(self.service.call(request)),
            None => panic!("a request was sent before it was there"),
        }
    }

    /// The next step after the head of an answer: return it, wait, or read it to decide.
    pub(super) fn answered(&mut self, answer: Response<B>, task: TaskId) -> GateStep<B, P> {
        let not_ready = if self.applies {
            is_not_ready(&answer)
        } else {
            Some(false)
        };
        let reading = Reading::new(answer);
        match not_ready {
            Some(false) => self.hand_on(reading),
            Some(true) => self.failed(Failed::Answer(Box::new(reading)), task),
            None => GateStep::Read(reading),
        }
    }

    /// The next step after an error of the service: wait if it refused the connection, else fail.
    pub(super) fn broken(&mut self, error: BoxError, task: TaskId) -> GateStep<B, P> {
        // A `Terminated` is the end of a node below, even if a refused connection is its source.
        let refused = TransportError::is_refused(&*error) && Terminated::find(&*error).is_none();
        if self.applies && refused {
            return self.failed(Failed::Error(error), task);
        }
        GateStep::Done(Err(error))
    }

    /// The next step after a failure that shows that the upstream is down: wait, or give up.
    pub(super) fn failed(&mut self, failed: Failed<B>, task: TaskId) -> GateStep<B, P> {
        self.last = Some(failed);
        if let Some(done) = self.stopped(task) {
            return done;
        }
        self.contradictions += u32::from(std::mem::take(&mut self.was_healthy));
        let is_spent = self.gate.patience.is_some_and(|limit| self.waited >= limit);
        if is_spent || self.contradictions >= CONTRADICTED {
            return self.give_up();
        }
        GateStep::Wait
    }

    /// The final step, if the node has ended or is closing; `None` otherwise.
    ///
    /// The deadlines are checked first. A closing node starts no new work, so its request is not
    /// sent again.
    pub(super) fn stopped(&mut self, task: TaskId) -> Option<GateStep<B, P>> {
        let node = self.run.node();
        if node.check(self.run.now(), task).is_err() {
            let error = match self.last.take() {
                Some(Failed::Error(error)) => error,
                _ => self.run.to_terminated().into(),
            };
            return Some(GateStep::Done(Err(error)));
        }
        node.is_closing().then(|| self.give_up())
    }

    /// The final step: returns the failure for which the call waited.
    fn give_up(&mut self) -> GateStep<B, P> {
        match self.last.take() {
            Some(Failed::Error(error)) => GateStep::Done(Err(error)),
            Some(Failed::Answer(answer)) => self.hand_on(*answer),
            None => GateStep::Done(Err(self.run.to_terminated().into())),
        }
    }

    pub(super) fn hand_on(&mut self, read: Reading<B>) -> GateStep<B, P> {
        // Drop the prompt: it is not needed while the answer streams.
        self.request = None;
        if let Some(silence) = &mut self.silence {
            silence.reset();
        }
        GateStep::Done(Ok(read.into_answer(self.silence.take())))
    }
}

impl<S, P, B> Trip<S, P, B>
where
    P: Service<(), Response = bool> + Clone,
{
    /// Starts the call's wait, which closes the gate for all calls.
    pub(super) fn waiting(&self) -> Waiting<P> {
        let since = Instant::now();
        tracing::debug!(target: "tower_agent", run = %self.run.id(), "the upstream is down");
        let left = self
            .gate
            .patience
            .map(|limit| limit.saturating_sub(self.waited));
        let pause = self.run.pause();
        Waiting {
            subscription: Box::pin(ProbeSubscription::for_wait(Arc::clone(&self.gate))),
            limit: left.map(|left| Box::pin(tokio::time::sleep_until(since + left))),
            since,
            _pause: pause,
        }
    }

    pub(super) fn wait(
        &mut self,
        waiting: &mut Waiting<P>,
        task: TaskId,
        cx: &mut Context<'_>,
    ) -> Poll<GateStep<B, P>> {
        let healthy = loop {
            match waiting.subscription.as_mut().poll(cx) {
                Poll::Ready(false) => {}
                Poll::Ready(true) => break true,
                Poll::Pending => break false,
            }
        };
        let due = self.run.node().next_deadline();
        let passed = due.is_some_and(|at| at <= nanos(self.run.now()));
        if healthy || passed || self.run.node().is_closing() {
            if let Some(done) = self.stopped(task) {
                return Poll::Ready(done);
            }
        }
        if healthy {
            self.waited += waiting.since.elapsed();
            self.was_healthy = true;
            return Poll::Ready(GateStep::Call);
        }
        let Some(limit) = &mut waiting.limit else {
            return Poll::Pending;
        };
        let until = limit.deadline();
        if wait(limit.as_mut(), until, cx).is_pending() {
            return Poll::Pending;
        }
        self.waited += waiting.since.elapsed();
        Poll::Ready(match self.last {
            Some(_) => self.give_up(),
            // The call was never sent, so there is no failure to return.
            None => GateStep::Call,
        })
    }
}
