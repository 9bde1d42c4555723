//! Starts the attempts of a call, and keeps the state that survives from one attempt to the next.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{
    X_ATTEMPT,
    body::{AttemptBody, AttemptSupervision, SettleGuard},
    budget::{Count, IdleBreaker, Permit},
    decide::Admitted,
    peek::{self, Spent},
    policy::{AttemptPolicy, Denial, SideEffects},
    request_template,
    tries::Tries,
};
use crate::{
    body::ReplayBody,
    error::BoxError,
    llm::failure::{CoolingDown, Failure, TransportError},
    run::{
        ErrorAllowance, ErrorKey, Failing, Nanos, NodeKind, PollScope, Run, TaskId, TerminalReason,
        Terminated, nanos,
    },
    supervise::{Claim, SupervisedFuture, TaskTimer},
};

/// State that survives from one attempt to the next.
#[derive(Debug)]
pub(super) struct AttemptDriver<S, C> {
    pub(super) service: S,
    pub(super) chain: C,
    pub(super) own: Run,
    drive: TaskTimer,
    /// Whether the service was asked and is ready.
    pub(super) is_ready: bool,
    /// Whether this layer has started a try.
    pub(super) started: bool,
    /// What the last try broke with.
    pub(super) last: Option<BoxError>,
    pub(super) tries: Tries,
    // Last: it settles the node once all else is gone.
    pub(super) owner: Option<SettleGuard>,
}

/// Where a call goes from here.
#[allow(
    clippy::large_enum_variant,
    reason = "made and taken apart at once, on the hot path"
)]
pub(super) enum Next<B: Body> {
    /// Something changed: the stage is to be polled again.
    Again,
    /// A try may start, and the service is ready.
    Try(Admitted),
    /// A try may start once the service is ready.
    Ready(Admitted),
    /// A try may start later.
    Wait {
        at: Nanos,
        grant: Option<Permit<'static>>,
    },
    Done(Result<Response<AttemptBody<B>>, BoxError>),
}

/// A try that was started.
pub(super) struct Started<F> {
    pub(super) call: SupervisedFuture<F, AttemptSupervision>,
    pub(super) attempt: Run,
    /// When what is held counts as committed.
    pub(super) hold: Option<Nanos>,
}

impl<S, C> AttemptDriver<S, C> {
    pub(super) fn new(service: S, chain: C, entry: Claim) -> Self {
        let Claim { run: own, owns } = entry;
        Self {
            service,
            chain,
            drive: TaskTimer::default(),
            is_ready: true,
            started: false,
            last: None,
            tries: Tries::default(),
            owner: owns.then(|| SettleGuard::new(own.clone())),
            own,
        }
    }

    pub(super) const fn own(&self) -> &Run {
        &self.own
    }

    /// Gives back what is registered.
    pub(super) fn finish(&mut self) {
        self.drive.release(&self.own);
    }

    /// Lets another have what the service holds for this call: the request is
    /// long in coming.
    pub(super) fn yield_service(&mut self)
    where
        S: Clone,
    {
        if std::mem::take(&mut self.is_ready) {
            self.service = self.service.clone();
        }
    }

    /// Sees to the next poll.
    pub(super) fn wait(&mut self, due: Option<Nanos>, turn: &PollScope, cx: &mut Context<'_>) {
        self.drive.wait(turn, &self.own, due, cx);
    }

    /// Waits for something that no layer further in looks after: the end of the
    /// node, its deadlines, and `at`.
    pub(super) fn watch<B: Body>(
        &mut self,
        attempt: Option<&Run>,
        at: Option<Nanos>,
        turn: &PollScope,
        cx: &mut Context<'_>,
    ) -> Poll<Next<B>> {
        let node = attempt.unwrap_or(&self.own).node();
        let deadline = node.next_deadline();
        let now = self.own.at(turn.now());
        if deadline.is_some_and(|at| at <= nanos(now)) {
            drop(node.check(now, turn.task()));
            return Poll::Ready(Next::Again);
        }
        let due = deadline.into_iter().chain(at).min();
        self.drive.wait(turn, &self.own, due, cx);
        Poll::Pending
    }

    /// The answer of a call whose node is over.
    pub(super) fn ended<B: Body>(&mut self) -> Option<Next<B>> {
        let over = self.own.node().is_over();
        over.then(|| Next::Done(Err(self.over(None))))
    }

    /// The same between two tries, where nothing is under way that could go on
    /// for a caller who is gone.
    pub(super) fn idle<B: Body>(&mut self) -> Option<Next<B>> {
        let node = self.own.node();
        if !node.is_over() && !node.is_closing() {
            return None;
        }
        Some(Next::Done(Err(self.over(None))))
    }

    /// The error of a node that is over; `error` is the last try's.
    pub(super) fn over(&mut self, error: Option<BoxError>) -> BoxError {
        let ended = self.own.to_terminated();
        drop(self.owner.take());
        match error.or_else(|| self.last.take()) {
            // It says already why this node ended.
            Some(error) if peek::is_end_of(&error, &self.own) => error,
            Some(error) => ended.because(error).into(),
            None => ended.into(),
        }
    }

    /// The request cannot be sent to anybody.
    pub(super) fn refuse(&mut self, error: BoxError) -> BoxError {
        if self.own.node().is_over() {
            return self.over(Some(error));
        }
        let reason = peek::reason_of(&error, &self.own);
        if error.is::<CoolingDown>() {
            self.own.fail_as(Failing {
                key: ErrorKey::new("", "nobody was asked"),
                reason: Some(reason.clone()),
                counted: Some(ErrorAllowance::Within),
                unasked: true,
            });
        }
        self.settle(reason);
        error
    }

    /// What the node comes to, if it is this layer's to say.
    pub(super) fn settle(&mut self, reason: TerminalReason) {
        if let Some(mut owner) = self.owner.take() {
            owner.decide(Some(reason));
        }
    }
}

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
        let failure = peek::broken(&error, &self.own, self.chain.streams());
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

impl<S, C: AttemptPolicy> AttemptDriver<S, C> {
    /// Counts attempts that were silent, one after another: the caller has
    /// received nothing for all that time.
    pub(super) fn count_silence_of<B: Body>(
        &mut self,
        spent: &Spent<B>,
        attempt: &Run,
    ) -> Result<(), Denial> {
        // A layer further in has listened, if any.
        let is_counted = attempt.failing().is_some();
        let is_silent = match spent {
            Spent::Error(error) => peek::is_silence(error, &self.own),
            Spent::Answer(_) => false,
        };
        if !is_silent {
            if !is_counted {
                self.own.forget_silence();
            }
            return Ok(());
        }
        let silent = match is_counted {
            true => self.own.silence(),
            false => self.own.count_silence(),
        };
        let Some((limit, then)) = self.chain.budget().settings().idle_breaker else {
            return Ok(());
        };
        if silent >= limit && (then == IdleBreaker::End || !C::MOVES) {
            return Err(Denial::Idle);
        }
        Ok(())
    }

    /// Remembers a try that failed, and counts it if every one counts and no
    /// layer further in has counted it.
    pub(super) fn note<B: Body>(
        &mut self,
        failure: &Failure,
        spent: &Spent<B>,
        attempt: &Run,
    ) -> Option<ErrorAllowance> {
        let inner = match spent {
            Spent::Answer(answer) => answer.parts.extensions.get::<Tries>(),
            Spent::Error(_) => None,
        };
        match inner {
            Some(inner) => self.tries.append(inner),
            None => self.tries.push(self.chain.subject(), failure),
        }
        let counted = attempt.failing().and_then(|failing| failing.counted);
        let every = || self.chain.budget().settings().count == Count::Every;
        counted.or_else(|| every().then(|| self.own.count_error(self.chain.key(failure))))
    }
}
