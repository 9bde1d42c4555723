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
    body::Passed,
    gate::Gate,
    reading::{Reading, is_loading},
    seat::{Seat, wait},
    silence::Silence,
};
use crate::{
    body::ReplayBody,
    error::BoxError,
    llm::failure::TransportError,
    run::{PauseGuard, Run, TaskId, Terminated, nanos},
};

/// So many failures that each followed a healthy probe say that the probe does not
/// know: the upstream is not restarting.
const CONTRADICTED: u32 = 3;

/// Everything of a call that outlives one sending of it.
pub(super) struct Trip<S, P: Service<()>, B> {
    pub(super) service: S,
    /// Whether it was asked and is ready.
    is_ready: bool,
    pub(super) gate: Arc<Gate<P>>,
    pub(super) found: Run,
    /// What is sent, once it is there.
    pub(super) request: Option<Request<ReplayBody>>,
    /// Whether the gate is meant for it.
    applies: bool,
    /// How long it has waited, all waits together.
    waited: Duration,
    /// Whether a probe said that the upstream is healthy since it failed.
    was_well: bool,
    /// How often it failed in spite of that.
    contradicted: u32,
    /// What it failed with last.
    last: Option<Failed<B>>,
    pub(super) silence: Option<Silence<P>>,
}

/// A wait for the upstream.
pub(super) struct Waiting<P: Service<()>> {
    seat: Pin<Box<Seat<P>>>,
    /// When patience ends.
    limit: Option<Pin<Box<Sleep>>>,
    since: Instant,
    _pause: PauseGuard,
}

/// Why a call waits: handed on if it waits in vain.
pub(super) enum Failed<B> {
    Error(BoxError),
    Answer(Box<Reading<B>>),
}

/// Where a call goes from here.
#[allow(
    clippy::large_enum_variant,
    reason = "made and taken apart at once, on the hot path"
)]
pub(super) enum Turned<B, P: Service<()>> {
    /// It may be sent.
    Call,
    /// Its answer has to be read to know.
    Read(Reading<B>),
    /// It waits for the upstream.
    Wait,
    Done(Result<Response<Passed<B, P>>, BoxError>),
}

impl<S, P: Service<()>, B> Trip<S, P, B> {
    pub(super) fn new(service: S, gate: Arc<Gate<P>>, found: Run, applies: bool) -> Self {
        let after = gate.silence.filter(|_| applies);
        let silence = after.map(|after| Silence::new(Arc::clone(&gate), found.clone(), after));
        Self {
            service,
            is_ready: true,
            gate,
            found,
            request: None,
            applies,
            waited: Duration::ZERO,
            was_well: false,
            contradicted: 0,
            last: None,
            silence,
        }
    }

    /// The request is there, whole.
    pub(super) fn begin(&mut self) -> Turned<B, P>
    where
        S: Clone,
    {
        if self.applies && self.gate.rounds.is_closed() {
            self.yield_service();
            return Turned::Wait;
        }
        Turned::Call
    }

    /// Lets another have what the service holds for this call: it is long in
    /// coming.
    pub(super) fn yield_service(&mut self)
    where
        S: Clone,
    {
        if std::mem::take(&mut self.is_ready) {
            self.service = self.service.clone();
        }
    }

    pub(super) const fn ready(&mut self) -> Turned<B, P> {
        self.is_ready = true;
        Turned::Call
    }

    /// Sends the request; none if the service has to be asked first whether it is
    /// ready.
    pub(super) fn call(&mut self) -> Option<S::Future>
    where
        S: Service<Request<ReplayBody>>,
    {
        if !std::mem::take(&mut self.is_ready) {
            return None;
        }
        self.last = None;
        if let Some(silence) = &mut self.silence {
            // What it waited before was no silence.
            silence.heard();
        }
        let again = self.request.clone().filter(|_| self.applies);
        let request = std::mem::replace(&mut self.request, again);
        match request {
            Some(request) => Some(self.service.call(request)),
            None => panic!("a request was sent before it was there"),
        }
    }

    /// The head of an answer has come.
    pub(super) fn answered(&mut self, answer: Response<B>, task: TaskId) -> Turned<B, P> {
        let loading = if self.applies {
            is_loading(&answer)
        } else {
            Some(false)
        };
        let reading = Reading::new(answer);
        match loading {
            Some(false) => self.hand_on(reading),
            Some(true) => self.failed(Failed::Answer(Box::new(reading)), task),
            None => Turned::Read(reading),
        }
    }

    /// It came to no answer.
    pub(super) fn broken(&mut self, error: BoxError, task: TaskId) -> Turned<B, P> {
        // What a node below ended with is that node's, whatever was behind it.
        let refused = TransportError::is_refused(&*error) && Terminated::find(&*error).is_none();
        if self.applies && refused {
            return self.failed(Failed::Error(error), task);
        }
        Turned::Done(Err(error))
    }

    /// The upstream is down, and nothing of the request has reached it.
    pub(super) fn failed(&mut self, failed: Failed<B>, task: TaskId) -> Turned<B, P> {
        self.last = Some(failed);
        if let Some(done) = self.stopped(task) {
            return done;
        }
        self.contradicted += u32::from(std::mem::take(&mut self.was_well));
        let is_spent = self.gate.patience.is_some_and(|limit| self.waited >= limit);
        if is_spent || self.contradicted >= CONTRADICTED {
            return self.give_up();
        }
        Turned::Wait
    }

    /// Nothing is sent any more for a node that is over, by the clocks, or whose
    /// caller is gone.
    pub(super) fn stopped(&mut self, task: TaskId) -> Option<Turned<B, P>> {
        let node = self.found.node();
        if node.check(self.found.now(), task).is_err() {
            let error = match self.last.take() {
                Some(Failed::Error(error)) => error,
                _ => self.found.to_terminated().into(),
            };
            return Some(Turned::Done(Err(error)));
        }
        node.is_closing().then(|| self.give_up())
    }

    /// Hands on what it failed with.
    fn give_up(&mut self) -> Turned<B, P> {
        match self.last.take() {
            Some(Failed::Error(error)) => Turned::Done(Err(error)),
            Some(Failed::Answer(answer)) => self.hand_on(*answer),
            None => Turned::Done(Err(self.found.to_terminated().into())),
        }
    }

    pub(super) fn hand_on(&mut self, read: Reading<B>) -> Turned<B, P> {
        // A prompt is not kept as long as its answer streams.
        self.request = None;
        if let Some(silence) = &mut self.silence {
            silence.heard();
        }
        Turned::Done(Ok(read.into_answer(self.silence.take())))
    }
}

impl<S, P, B> Trip<S, P, B>
where
    P: Service<(), Response = bool> + Clone,
{
    /// Closes the gate behind others, and waits at it.
    pub(super) fn waiting(&self) -> Waiting<P> {
        let since = Instant::now();
        tracing::debug!(target: "tower_agent", run = %self.found.id(), "the upstream is down");
        let left = self
            .gate
            .patience
            .map(|limit| limit.saturating_sub(self.waited));
        let pause = self.found.pause();
        Waiting {
            seat: Box::pin(Seat::waiting(Arc::clone(&self.gate))),
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
    ) -> Poll<Turned<B, P>> {
        let healthy = loop {
            match waiting.seat.as_mut().poll(cx) {
                Poll::Ready(false) => {}
                Poll::Ready(true) => break true,
                Poll::Pending => break false,
            }
        };
        let due = self.found.node().next_deadline();
        let passed = due.is_some_and(|at| at <= nanos(self.found.now()));
        if healthy || passed || self.found.node().is_closing() {
            if let Some(done) = self.stopped(task) {
                return Poll::Ready(done);
            }
        }
        if healthy {
            self.waited += waiting.since.elapsed();
            self.was_well = true;
            return Poll::Ready(Turned::Call);
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
            // It has nothing yet to hand on.
            None => Turned::Call,
        })
    }
}
