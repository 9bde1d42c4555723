//! Decides what follows an attempt: hand its answer on, repeat it, or stop.

use bytes::Bytes;
use http::{Response, response::Parts};
use http_body::Body;

use super::{
    Committed, X_ATTEMPT,
    body::{AttemptBody, Ownership, Watched},
    decide::{RetryPermit, RetryQuery, decide, is_wanted},
    driver::{AttemptDriver, Next},
    peek::{self, AttemptOutcome, PeekedAnswer, Spent},
    policy::{AttemptPolicy, Denial},
    request_template,
};
use crate::{
    llm::failure::{Failure, FailureClass},
    run::{ErrorAllowance, ErrorKey, Failing, NodeKind, Run, TaskId, TerminalReason, nanos},
};

impl<S, C: AttemptPolicy> AttemptDriver<S, C> {
    pub(super) fn conclude<B: Body<Data = Bytes>>(
        &mut self,
        outcome: AttemptOutcome<B>,
        attempt: &Run,
        task: TaskId,
    ) -> Next<B> {
        match outcome {
            AttemptOutcome::Served(mut answer) => {
                if let Some(ended) = self.ended() {
                    return ended;
                }
                answer.parts.extensions.insert(Committed);
                Next::Done(Ok(self.hand_on(answer, attempt, None)))
            }
            AttemptOutcome::Failed(failure, spent) => self.failed(failure, spent, attempt, task),
            AttemptOutcome::Broken { error, streams } => {
                let streams = streams || self.chain.streams();
                let failure = peek::broken(&error, &self.own, streams);
                self.failed(failure, Spent::Error(error), attempt, task)
            }
        }
    }

    /// A try failed: another follows, or what there is of it is handed on.
    #[cold]
    pub(super) fn failed<B: Body<Data = Bytes>>(
        &mut self,
        failure: Failure,
        spent: Spent<B>,
        attempt: &Run,
        task: TaskId,
    ) -> Next<B> {
        let now = self.own.now();
        if !is_wanted(&self.own, now, task) {
            // Nobody's failure any more: not counted, not told.
            let error = spent.into_error();
            return Next::Done(Err(self.over(error)));
        }
        let counted = self.note(&failure, &spent, attempt);
        let verdict = counted.unwrap_or(ErrorAllowance::Within);
        match self.ask(&failure, &spent, attempt, verdict) {
            Ok(leave) => self.again(&failure, spent, attempt, leave),
            // The hook may have ended it, or somebody else meanwhile.
            Err(_) if self.own.node().is_over() => {
                let error = spent.into_error();
                Next::Done(Err(self.over(error)))
            }
            Err(denied) => self.stop(denied, counted, failure, spent, attempt),
        }
    }

    fn ask<B: Body>(
        &mut self,
        failure: &Failure,
        spent: &Spent<B>,
        attempt: &Run,
        verdict: ErrorAllowance,
    ) -> Result<RetryPermit, Denial> {
        let terminal = match spent {
            Spent::Answer(answer) => {
                self.chain.trusts() && peek::is_terminal(&answer.parts.headers, &self.own)
            }
            Spent::Error(error) => peek::is_over_elsewhere(error, &self.own),
        };
        if terminal {
            return Err(Denial::Terminal);
        }
        let is_upstreams = match spent {
            Spent::Answer(_) => true,
            Spent::Error(error) => peek::is_upstreams(error, &self.own),
        };
        if is_upstreams && attempt.has_server() {
            self.chain.failed(failure);
        }
        self.count_silence_of(spent, attempt)?;
        let asked = RetryQuery {
            own: &self.own,
            failure,
            verdict,
            attempts: self.own.tries(),
            now: self.own.now(),
        };
        decide(&mut self.chain, &asked)
    }

    /// Gives the try up for another.
    fn again<B: Body<Data = Bytes>>(
        &mut self,
        failure: &Failure,
        spent: Spent<B>,
        attempt: &Run,
        leave: RetryPermit,
    ) -> Next<B> {
        let now = self.own.now();
        // A layer further in may have given up for a reason of its own.
        let reason = attempt.failing().and_then(|failing| failing.reason);
        let reason = reason.unwrap_or(TerminalReason::Failed(failure.class));
        drop(attempt.node().settle(reason, now));
        self.last = spent.into_error();
        tracing::debug!(
            target: "tower_agent",
            run = %self.own.id(),
            failed = self.tries.last(),
            class = failure.class.as_str(),
            next = self.chain.subject(),
            wait = ?leave.wait,
            "another try follows"
        );
        if leave.wait.is_zero() {
            return self.start(leave.grant);
        }
        Next::Wait {
            at: nanos(now.saturating_add(leave.wait)),
            grant: leave.grant,
        }
    }

    /// No other try follows.
    fn stop<B: Body<Data = Bytes>>(
        &mut self,
        denied: Denial,
        counted: Option<ErrorAllowance>,
        failure: Failure,
        spent: Spent<B>,
        attempt: &Run,
    ) -> Next<B> {
        if denied == Denial::Terminal {
            // Told by whom we believe: it is over here too.
            self.own.end_call(peek::reason_elsewhere(&spent));
            let error = spent.into_error();
            return Next::Done(Err(self.over(error)));
        }
        if denied == Denial::Idle && self.chain.budget().ends_idle_runs() {
            self.report(denied, &failure);
            self.own.run().end(TerminalReason::IdleCircuitOpen);
            let error = spent.into_error();
            return Next::Done(Err(self.over(error)));
        }
        let key = self.chain.key(&failure);
        let failed = TerminalReason::Failed(failure.class);
        let reason = match denied {
            Denial::Key => TerminalReason::RetryBudget,
            _ => failed.clone(),
        };
        // The event comes before anything is latched.
        if self.own.kind() != NodeKind::Attempt {
            self.report(denied, &failure);
        }
        if attempt.failing().is_none() {
            attempt.fail_as(Failing {
                key,
                reason: Some(failed),
                counted,
                unasked: false,
            });
        }
        self.own.fail_as(Failing {
            key,
            reason: Some(reason.clone()),
            counted,
            unasked: false,
        });
        match spent {
            Spent::Answer(mut answer) => {
                let mut tries = std::mem::take(&mut self.tries);
                tries.cool_until(self.chain.soonest());
                answer.parts.extensions.insert(tries);
                answer.parts.extensions.insert(failure);
                Next::Done(Ok(self.hand_on(*answer, attempt, Some(reason))))
            }
            Spent::Error(error) => {
                self.chain.release();
                self.settle(match peek::reason_of(&error, &self.own) {
                    TerminalReason::Failed(_) => reason,
                    ended => ended,
                });
                Next::Done(Err(error))
            }
        }
    }

    fn report(&self, denied: Denial, failure: &Failure) {
        let Self { own, tries, .. } = self;
        macro_rules! event {
            ($level:ident) => {
                tracing::$level!(
                    target: "tower_agent",
                    run = %own.id(),
                    denied = denied.as_str(),
                    class = failure.class.as_str(),
                    attempts = own.tries(),
                    tried = %tries.listed(),
                    "chain_stopped"
                )
            };
        }
        // What the caller did wrong concerns nobody else.
        if failure.class == FailureClass::Caller {
            event!(debug);
        } else {
            event!(warn);
        }
    }

    /// Should it fail yet, it is not as another did before; who wants to know.
    fn serves(&self, attempt: &Run, parts: &Parts) -> Option<Box<Watched>> {
        self.own.forget_silence();
        if self.own.counts_errors() {
            let subject = self.chain.subject().unwrap_or_default();
            self.own.fail_as(Failing {
                key: ErrorKey::new(subject, "failed after its first content"),
                reason: None,
                counted: None,
                unasked: false,
            });
        } else {
            self.own.forget_failing();
        }
        let serving = self.chain.serves(attempt)?;
        Some(Box::new(Watched {
            attempt: attempt.clone(),
            serving,
            judged: parts.extensions.get().cloned(),
            judgement: self.chain.judgement().clone(),
        }))
    }

    /// The answer of the try that serves the call, or that was the last.
    fn hand_on<B: Body<Data = Bytes>>(
        &mut self,
        answer: PeekedAnswer<B>,
        attempt: &Run,
        judged: Option<TerminalReason>,
    ) -> Response<AttemptBody<B>> {
        let PeekedAnswer {
            mut parts,
            held,
            body,
            document,
        } = answer;
        // A share of the time was a limit to the commit.
        attempt.node().clocks.lapse();
        let watched = match judged {
            Some(_) => None,
            None => self.serves(attempt, &parts),
        };
        self.chain.release();
        self.chain.answered(&mut parts);
        if self.own.kind() != NodeKind::Attempt {
            let tries = request_template::number(self.own.tries());
            parts.headers.insert(X_ATTEMPT, tries);
        }
        let ownership = self.owner.take().map(|owner| {
            // For layers further out, which never open a node.
            parts.extensions.insert(self.own.clone());
            Ownership {
                owner,
                attempt: attempt.clone(),
                judged,
            }
        });
        Response::from_parts(
            parts,
            AttemptBody::new(held, body, self.own.clone(), ownership, watched)
                .of_document(document),
        )
    }
}
