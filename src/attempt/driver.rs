//! Starts the attempts of a call, and keeps the state that survives from one attempt to the
//! next.

use std::{
    mem,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{
    body::AttemptBody,
    budget::Permit,
    candidate::Candidate,
    decision::{Admitted, SideEffects},
    failed_attempts::FailedAttempts,
    hidden_failures::HiddenFailures,
    peek::{self, FailedAttempt},
    policy::AttemptPolicy,
    prompt_count::PromptCount,
    report::AttemptReport,
    settle::SettleGuard,
};
use crate::{
    body::ReplayBody,
    error::BoxError,
    llm::failure::{AllCandidatesCoolingDown, TransportError},
    run::{
        ErrorAllowance, ErrorKey, Failing, Nanos, NodeKind, PollScope, Run, TaskId, TerminalReason,
        Terminated, is_traced, nanos,
    },
    supervise::{Claim, LayerSettings, SupervisedFuture, TaskTimer},
};

/// The state of a call that survives from one attempt to the next.
#[derive(Debug)]
pub(super) struct AttemptDriver<S, C> {
    service: S,
    pub(super) policy: C,
    /// The node that the layer acts on, below which it opens the attempts.
    pub(super) own: Run,
    timer: TaskTimer,
    /// Whether the service is still ready from the caller's `poll_ready`: no attempt has used that
    /// readiness, and `yield_service` has not given it up.
    is_ready: bool,
    has_called: bool,
    pub(super) last_error: Option<BoxError>,
    /// The call's failed answers that a later failure may hide; `None` without any.
    pub(super) hidden: Option<Box<HiddenFailures>>,
    /// The report of the current attempt, for the program's hook and the attempt's span. `None` if
    /// there is neither, or if the report was made or handed over already.
    pub(super) report: Option<Box<AttemptReport>>,
    /// Whether this layer has recorded a failed attempt.
    pub(super) has_failed: bool,
    /// Whether a warning of this layer in the log has listed the call's failed attempts.
    pub(super) is_logged: bool,
    // This field drops last: the node settles once the rest is dropped.
    pub(super) settle_guard: Option<SettleGuard>,
}

/// The next step of the call's future.
#[allow(
    clippy::large_enum_variant,
    reason = "made and taken apart at once, on the hot path"
)]
pub(super) enum Next<B: Body> {
    /// Poll the same state again.
    Again,
    /// Start the attempt: the service is ready.
    Call(Admitted),
    /// Poll the service until it is ready for the attempt.
    Ready(Admitted),
    /// Wait before another attempt.
    Wait {
        until: Nanos,
        permit: Option<Permit<'static>>,
    },
    Done(Result<Response<AttemptBody<B>>, BoxError>),
}

impl<S, C> AttemptDriver<S, C> {
    /// Makes the driver of a call; `service` has been polled ready.
    #[inline]
    pub(super) fn new(service: S, policy: C, claim: Claim) -> Self {
        let Claim { run: own, settles } = claim;
        Self {
            service,
            policy,
            timer: TaskTimer::default(),
            is_ready: true,
            has_called: false,
            last_error: None,
            hidden: None,
            report: None,
            has_failed: false,
            is_logged: false,
            settle_guard: settles.then(|| SettleGuard::new(own.clone())),
            own,
        }
    }

    /// Drops the driver's timer, and removes its waiter from the layer's node. Reports the last
    /// attempt, which has ended, unless that attempt is reported already or serves the call.
    pub(super) fn release(&mut self) {
        self.timer.release(&self.own);
        self.report = None;
    }

    /// Replaces the ready service by a clone that is not ready, while the upload is pending. The
    /// ready service may hold a concurrency permit, which other calls need.
    pub(super) fn yield_service(&mut self)
    where
        S: Clone,
    {
        if mem::take(&mut self.is_ready) {
            self.service = self.service.clone();
        }
    }

    /// Schedules a wake of the task at `due`, and at the end of the layer's node. The node's
    /// deadlines wake the task only if `due` includes them: during an attempt the supervised call
    /// watches them.
    pub(super) fn wait(&mut self, due: Option<Nanos>, scope: &PollScope, cx: &mut Context<'_>) {
        self.timer.wait(scope, &self.own, due, cx);
    }

    /// Schedules a wake of the task at `at`, and at the next deadline or the end of a node, while
    /// no supervised call watches that node.
    ///
    /// The node is `attempt`, or without one the layer's own. If a deadline of the node or of a
    /// node above has passed already, the method checks the clocks and returns `Again`.
    pub(super) fn watch<B: Body>(
        &mut self,
        attempt: Option<&Run>,
        at: Option<Nanos>,
        scope: &PollScope,
        cx: &mut Context<'_>,
    ) -> Poll<Next<B>> {
        let node = attempt.unwrap_or(&self.own).node();
        let deadline = node.next_deadline();
        let now = PollScope::now(&self.own);
        if deadline.is_some_and(|at| at <= nanos(now)) {
            drop(node.check(now, TaskId::of(cx.waker())));
            return Poll::Ready(Next::Again);
        }
        self.wait(deadline.into_iter().chain(at).min(), scope, cx);
        Poll::Pending
    }

    /// The step that ends the call with an error, if the layer's node or a node above it has ended.
    pub(super) fn ended<B: Body>(&mut self) -> Option<Next<B>> {
        let over = self.own.node().is_over();
        over.then(|| Next::Done(Err(self.end_error(None))))
    }

    /// The step that ends the call with an error, if the layer's node has ended or is closing.
    ///
    /// The driver calls this method while no attempt runs: a closing node lets a running attempt
    /// finish, but admits no new one.
    pub(super) fn ended_or_closing<B: Body>(&mut self) -> Option<Next<B>> {
        let stops = self.own.node().is_over() || self.own.node().refuses_work();
        stops.then(|| Next::Done(Err(self.end_error(None))))
    }

    /// Makes the error for the end of the layer's node, and then drops the settle guard.
    ///
    /// The error's source is `error`, or else the last attempt's error, if there is one. A source
    /// that reports this same end already is returned unchanged.
    pub(super) fn end_error(&mut self, error: Option<BoxError>) -> BoxError {
        let ended = match error.or_else(|| self.last_error.take()) {
            Some(error) => self.own.end_error(error),
            None => self.own.to_terminated().into(),
        };
        drop(self.settle_guard.take());
        ended
    }

    /// Wraps the error of the call in one that carries the failed attempts, if there are any.
    #[cold]
    pub(super) fn wrap(&self, error: BoxError) -> BoxError {
        FailedAttempts::wrap(&self.own, error, self.is_logged)
    }

    /// Settles the layer's node for a request that cannot be sent to any upstream; returns the
    /// error. If the node has ended before, returns the error of that end.
    pub(super) fn refuse(&mut self, error: BoxError) -> BoxError {
        if self.own.node().is_over() {
            return self.end_error(Some(error));
        }
        let reason = peek::reason_of(&error, &self.own);
        if error.is::<AllCandidatesCoolingDown>() {
            self.own.errors().fail_as(Failing {
                key: ErrorKey::new("", "nobody was asked"),
                reason: Some(reason.clone()),
                counted: Some(ErrorAllowance::Within),
                unasked: true,
            });
        }
        self.settle(reason);
        error
    }

    /// Settles the layer's node for `reason`, if this layer has to settle it.
    pub(super) fn settle(&mut self, reason: TerminalReason) {
        if let Some(guard) = self.settle_guard.take() {
            guard.settle(reason);
        }
    }
}

impl<S, C: AttemptPolicy> AttemptDriver<S, C> {
    /// Starts the first attempt with the buffered request. If the policy refuses the request, ends
    /// the call instead.
    #[inline]
    pub(super) fn begin<B: Body>(&mut self, request: Request<ReplayBody>) -> Next<B> {
        self.own.attempts().begin();
        if request.extensions().get::<SideEffects>().is_some() {
            self.own.mark_side_effects();
        }
        let begun = self.policy.begin(&self.own, request);
        if is_traced() {
            self.trace_asked();
        }
        match begun {
            Ok(()) => self.start(None),
            Err(error) => Next::Done(Err(self.refuse(error))),
        }
    }

    /// Opens an attempt below the layer's node. Ends the call instead if that node has ended or is
    /// closing.
    #[inline]
    pub(super) fn start<B: Body>(&mut self, permit: Option<Permit<'static>>) -> Next<B> {
        let Some(attempt) = self.own.admit(NodeKind::Attempt) else {
            // The permit was not spent: its drop gives the repeat back.
            return Next::Done(Err(self.end_error(None)));
        };
        self.policy.limit(&attempt);
        let is_traced = is_traced() && self.trace(&attempt);
        let hook = &self.policy.settings().budget.settings().after_attempt;
        if hook.is_some() || is_traced {
            let (hook, attempt) = (hook.clone(), attempt.clone());
            self.report = Some(AttemptReport::new(hook, attempt, self.policy.subject()));
        }
        let attempt = SettleGuard::new(attempt);
        let admitted = Admitted { attempt, permit };
        if mem::take(&mut self.is_ready) {
            Next::Call(admitted)
        } else {
            Next::Ready(admitted)
        }
    }

    /// Records the model that the caller's request names in the call's span. Does nothing if the
    /// model is not known, or if the layer's node is an attempt.
    #[cold]
    fn trace_asked(&self) {
        if self.own.kind() != NodeKind::Attempt {
            if let Some(model) = self.policy.model() {
                self.own.spans().record_asked_model(model);
            }
        }
    }

    /// Makes the span of an attempt. Returns whether a subscriber wants it.
    #[cold]
    fn trace(&self, attempt: &Run) -> bool {
        let candidate = self.policy.current_candidate().map(Candidate::model);
        let model = candidate.or_else(|| self.policy.model());
        attempt.spans().make_attempt(model, true)
    }

    /// Calls the service's `poll_ready` for an opened attempt. The attempt starts once the service
    /// is ready.
    ///
    /// An error of `poll_ready`, and an end of the attempt meanwhile, fail the attempt. If the
    /// layer's node has ended or is closing, the call ends with that end instead.
    pub(super) fn ready<B>(
        &mut self,
        slot: &mut Option<Admitted>,
        scope: &PollScope,
        cx: &mut Context<'_>,
    ) -> Poll<Next<B>>
    where
        S: Service<Request<ReplayBody>>,
        S::Error: Into<BoxError>,
        B: Body<Data = Bytes> + Unpin,
    {
        if let Some(ended) = self.ended_or_closing() {
            return Poll::Ready(ended);
        }
        let Some(admitted) = slot.take() else {
            panic!("polled after completion");
        };
        let attempt = admitted.attempt.run().clone();
        let readiness = self.service.poll_ready(cx);
        // This check reads the clock, because the service may become ready in the poll in which the
        // attempt's deadline passes.
        let task = TaskId::of(cx.waker());
        let alive = attempt.node().check(self.own.now(), task).is_ok();
        if let Some(ended) = self.ended() {
            return Poll::Ready(ended);
        }
        let error = match readiness {
            Poll::Ready(Err(error)) => readiness_error(error.into()),
            // The attempt has ended but the layer's node has not. Mostly the attempt's share of the
            // time has passed.
            _ if !alive => attempt.to_terminated().into(),
            Poll::Ready(Ok(())) => return Poll::Ready(Next::Call(admitted)),
            Poll::Pending => {
                *slot = Some(admitted);
                return self.watch(Some(&attempt), None, scope, cx);
            }
        };
        #[cfg(feature = "metrics")]
        attempt
            .node()
            .count_outcome(|| TerminalReason::outcome_of(&error));
        let failure = peek::classify_error(&error, &self.own, self.policy.streams());
        let Admitted {
            attempt: guard,
            permit,
        } = admitted;
        guard.settle(TerminalReason::Failed(failure.class));
        // The repeat goes back before `failed` asks for another one.
        drop(permit);
        let failed = FailedAttempt::Error(error);
        Poll::Ready(self.failed(failure, failed, &attempt, task))
    }

    /// Makes the attempt's request, and calls the ready service with it if the attempt lives.
    ///
    /// # Errors
    ///
    /// If the request cannot be made.
    #[inline]
    pub(super) fn call(
        &mut self,
        admitted: Admitted,
    ) -> Result<(SupervisedFuture<S::Future>, Run), BoxError>
    where
        S: Service<Request<ReplayBody>>,
    {
        let number = self.own.attempts().next_number(self.has_called);
        let mut request = self.policy.request(admitted.attempt.run(), number)?;
        if let Some(permit) = admitted.permit {
            permit.spend();
        }
        // From here on the supervised call settles the attempt.
        let attempt = admitted.attempt.release();
        if self.own.attempts().asks_for_stream() || self.policy.asks_for_stream() {
            attempt.attempts().mark_stream_asked();
        }
        if self.report.is_some() {
            attempt.spans().describe_attempt(number, request.uri());
        }
        let again = mem::replace(&mut self.has_called, true);
        self.own.attempts().count(again);
        let extensions = request.extensions_mut();
        match extensions.get_mut::<Run>() {
            Some(run) => run.clone_from(&attempt),
            None => drop(extensions.insert(attempt.clone())),
        }
        let claim = Claim {
            run: attempt.clone(),
            settles: true,
        };
        let service = &mut self.service;
        // The supervised call enforces the attempt's deadlines, such as its share of the time.
        // `hiding_node` keeps the attempt out of the answer's extensions, where outer layers
        // look for the call. `deferring` lets the end of a whole body settle the attempt only when
        // the body drops, because the answer may still be classified as a failure.
        let settings = LayerSettings::passive();
        let settings = settings.counting().hiding_node().deferring();
        let counts = attempt.tokens().are_counted();
        let prompt = counts.then(|| PromptCount::of(&request));
        let call = SupervisedFuture::new(claim, settings, request, |request| service.call(request));
        let call = match prompt.flatten() {
            Some(prompt) => call.with_hooks(prompt),
            None => call,
        };
        Ok((call, attempt))
    }

    /// The time at which a held answer commits without content: `hold` after the attempt was
    /// opened. A held answer with a head that shows a failure does not commit then. `None` if no
    /// `hold` is set.
    pub(super) fn commit_deadline(&self, attempt: &Run) -> Option<Nanos> {
        let hold = self.policy.settings().hold?;
        Some(nanos(attempt.node().opened().saturating_add(hold)))
    }
}

/// Wraps an error of `poll_ready` in a `TransportError`, because the service got no request. Leaves
/// an error with a `Terminated` or a `TransportError` in its chain.
fn readiness_error(error: BoxError) -> BoxError {
    if Terminated::find(&*error).is_some() || TransportError::is_in(&*error) {
        return error;
    }
    TransportError::new(error).into()
}
