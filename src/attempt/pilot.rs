use std::{
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{
    AttemptBody, AttemptPolicy, Chain, SideEffects, Tries, X_ATTEMPT, admitted::Admitted, judge,
    kept, owner::Owner, trial::Spent,
};
use crate::{
    BoxError,
    body::{Entry, ReplayBody, SupervisedFuture},
    budget::Grant,
    run::{
        Drive, Failing, Nanos, NodeKind, Run, TaskId, TerminalReason, Terminated, Turn,
        errors::{ErrorKey, Verdict},
        nanos,
    },
    upstream::{TransportError, cooling::CoolingDown},
};

/// Everything of a call that outlives a try of it.
#[derive(Debug)]
pub(super) struct Pilot<S, C> {
    pub(super) service: S,
    pub(super) chain: C,
    pub(super) own: Run,
    drive: Drive,
    /// Whether the service was asked and is ready.
    is_ready: bool,
    /// Whether this layer has started a try.
    started: bool,
    /// What the last try broke with.
    pub(super) last: Option<BoxError>,
    pub(super) tries: Tries,
    // Last: it settles the node once all else is gone.
    pub(super) owner: Option<Owner>,
}

/// Where a call goes from here.
#[allow(
    clippy::large_enum_variant,
    reason = "made and taken apart at once, on the hot path"
)]
pub(super) enum Turned<B: Body> {
    /// Something changed: the stage is to be polled again.
    Again,
    /// A try may start, and the service is ready.
    Try(Admitted),
    /// A try may start once the service is ready.
    Ready(Admitted),
    /// A try may start later.
    Wait {
        at: Nanos,
        grant: Option<Grant<'static>>,
    },
    Done(Result<Response<AttemptBody<B>>, BoxError>),
}

/// A try that was started.
pub(super) struct Started<F> {
    pub(super) call: SupervisedFuture<F, AttemptPolicy>,
    pub(super) attempt: Run,
    /// When what is held counts as committed.
    pub(super) hold: Option<Nanos>,
}

impl<S, C> Pilot<S, C> {
    pub(super) fn new(service: S, chain: C, entry: Entry) -> Self {
        let Entry { run: own, owns } = entry;
        Self {
            service,
            chain,
            drive: Drive::default(),
            is_ready: true,
            started: false,
            last: None,
            tries: Tries::default(),
            owner: owns.then(|| Owner::new(own.clone())),
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
    pub(super) fn wait(&mut self, due: Option<Nanos>, turn: &Turn, cx: &mut Context<'_>) {
        self.drive.wait(turn, &self.own, due, cx);
    }

    /// Waits for something that no layer further in looks after: the end of the
    /// node, its deadlines, and `at`.
    pub(super) fn watch<B: Body>(
        &mut self,
        attempt: Option<&Run>,
        at: Option<Nanos>,
        turn: &Turn,
        cx: &mut Context<'_>,
    ) -> Poll<Turned<B>> {
        let node = attempt.unwrap_or(&self.own).node();
        let deadline = node.next_deadline();
        let now = self.own.at(turn.now());
        if deadline.is_some_and(|at| at <= nanos(now)) {
            drop(node.check(now, turn.task()));
            return Poll::Ready(Turned::Again);
        }
        let due = deadline.into_iter().chain(at).min();
        self.drive.wait(turn, &self.own, due, cx);
        Poll::Pending
    }

    /// The answer of a call whose node is over.
    pub(super) fn ended<B: Body>(&mut self) -> Option<Turned<B>> {
        self.own.node().own_end()?;
        Some(Turned::Done(Err(self.over(None))))
    }

    /// The same between two tries, where nothing is under way that could go on
    /// for a caller who is gone.
    pub(super) fn idle<B: Body>(&mut self) -> Option<Turned<B>> {
        let node = self.own.node();
        if node.own_end().is_none() && !node.is_closing() {
            return None;
        }
        Some(Turned::Done(Err(self.over(None))))
    }

    /// The error of a node that is over; `error` is the last try's.
    pub(super) fn over(&mut self, error: Option<BoxError>) -> BoxError {
        let ended = self.own.to_terminated();
        drop(self.owner.take());
        match error.or_else(|| self.last.take()) {
            // It says already why this node ended.
            Some(error) if judge::is_end_of(&error, &self.own) => error,
            Some(error) => ended.because(error).into(),
            None => ended.into(),
        }
    }

    /// The request cannot be sent to anybody.
    pub(super) fn refuse(&mut self, error: BoxError) -> BoxError {
        if self.own.node().own_end().is_some() {
            return self.over(Some(error));
        }
        let reason = judge::reason_of(&error, &self.own);
        if error.is::<CoolingDown>() {
            // Nobody was asked, so nothing has failed once more.
            self.own.fail_as(Failing {
                key: ErrorKey::new("", "nobody was asked"),
                reason: Some(reason.clone()),
                counted: Some(Verdict::Within),
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

impl<S, C: Chain> Pilot<S, C> {
    /// The request is there, whole.
    #[inline]
    pub(super) fn begin<B: Body>(&mut self, request: Request<ReplayBody>) -> Turned<B> {
        self.own.begin_tries();
        if request.extensions().get::<SideEffects>().is_some() {
            self.own.mark_side_effects();
        }
        match self.chain.begin(&self.own, request) {
            Ok(()) => self.start(None),
            Err(error) => Turned::Done(Err(self.refuse(error))),
        }
    }

    /// Opens a try, unless the node is over.
    #[inline]
    pub(super) fn start<B: Body>(&mut self, grant: Option<Grant<'static>>) -> Turned<B> {
        let Some(attempt) = self.own.admit(NodeKind::Attempt) else {
            // The grant was not used, and goes back.
            return Turned::Done(Err(self.over(None)));
        };
        self.chain.limit(&attempt);
        let admitted = Admitted::new(attempt, grant);
        // Whoever called has seen to it that the service is ready, once.
        if std::mem::take(&mut self.is_ready) {
            Turned::Try(admitted)
        } else {
            Turned::Ready(admitted)
        }
    }

    /// Asks the service whether it is ready for the try.
    pub(super) fn ready<B>(
        &mut self,
        admitted: &mut Option<Admitted>,
        task: TaskId,
        cx: &mut Context<'_>,
    ) -> Poll<Turned<B>>
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
            Poll::Ready(Ok(())) => return Poll::Ready(Turned::Try(begun)),
            Poll::Pending => {
                *admitted = Some(begun);
                return Poll::Pending;
            }
        };
        let failure = judge::broken(&error, &self.own, self.chain.streams());
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
            .insert(X_ATTEMPT, kept::number(number));
        let extensions = request.extensions_mut();
        match extensions.get_mut::<Run>() {
            Some(run) => run.clone_from(&attempt),
            None => drop(extensions.insert(attempt.clone())),
        }
        let held_to = |hold: Duration| nanos(attempt.node().opened().saturating_add(hold));
        let hold = self.chain.hold().map(held_to);
        let entry = Entry {
            run: attempt.clone(),
            owns: true,
        };
        let service = &mut self.service;
        Ok(Started {
            call: SupervisedFuture::new(entry, AttemptPolicy, request, |request| {
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
