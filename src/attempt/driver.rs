use std::task::{Context, Poll};

use http::Response;
use http_body::Body;

use super::{
    admission::Admitted, body::AttemptBody, budget::Permit, classify, settle_guard::SettleGuard,
    supervision::AttemptSupervision, tries::Tries,
};
use crate::{
    error::BoxError,
    llm::failure::CoolingDown,
    run::{ErrorAllowance, ErrorKey, Failing, Nanos, PollScope, Run, TerminalReason, nanos},
    supervise::{Claim, SupervisedFuture, TaskTimer},
};

/// Everything of a call that outlives a try of it.
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
            Some(error) if classify::is_end_of(&error, &self.own) => error,
            Some(error) => ended.because(error).into(),
            None => ended.into(),
        }
    }

    /// The request cannot be sent to anybody.
    pub(super) fn refuse(&mut self, error: BoxError) -> BoxError {
        if self.own.node().is_over() {
            return self.over(Some(error));
        }
        let reason = classify::reason_of(&error, &self.own);
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
