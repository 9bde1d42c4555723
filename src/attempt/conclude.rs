//! Decides what follows an attempt: return its answer, make another attempt, or stop.

use std::slice;

use bytes::Bytes;
use http::{Response, response::Parts};
use http_body::Body;

use super::{
    Committed,
    body::AttemptBody,
    budget::{Count, IdleBreaker},
    candidate::Candidate,
    decision::{RetryPermit, decide, is_wanted},
    denial::Denial,
    driver::{AttemptDriver, Next},
    failed_attempts::{AttemptSummary, FailedAttempts},
    hidden_failures::KeptAnswer,
    peek::{self, AttemptOutcome, FailedAttempt, PeekedAnswer},
    policy::AttemptPolicy,
    request_template::number_value,
    settle::{Completion, Ownership},
};
use crate::{
    headers::X_ATTEMPT,
    llm::{
        AfterFinish,
        failure::{Failure, FailureClass},
    },
    run::{ErrorAllowance, Failing, NodeKind, Run, TaskId, TerminalReason, nanos},
    supervise::{ResponseMarks, SupervisedBody},
};

impl<S, C: AttemptPolicy> AttemptDriver<S, C> {
    pub(super) fn conclude<B: Body<Data = Bytes> + Unpin>(
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
                if self.has_failed {
                    let extensions = &mut answer.parts.extensions;
                    if let Some(inner) = extensions.get::<FailedAttempts>() {
                        inner.merge(&self.own);
                    }
                    extensions.insert(FailedAttempts::of(&self.own).unwrap_or_default());
                }
                Next::Done(Ok(self.answer_caller(answer, attempt, None)))
            }
            AttemptOutcome::Failed(failure, failed) => self.failed(failure, failed, attempt, task),
        }
    }

    /// Decides what follows a failed attempt: another attempt, or the result of this layer.
    #[cold]
    pub(super) fn failed<B: Body<Data = Bytes> + Unpin>(
        &mut self,
        failure: Failure,
        failed: FailedAttempt<B>,
        attempt: &Run,
        task: TaskId,
    ) -> Next<B> {
        let now = self.own.now();
        if !is_wanted(&self.own, now, task) {
            // The layer's node has ended or is closing: its end is the call's result, and the
            // failure is neither counted nor logged.
            return self.give_up(failed);
        }
        let counted = self.note(&failure, &failed, attempt);
        let candidate = self.policy.current_candidate();
        let trusted = candidate.is_some_and(Candidate::is_trusted);
        if let Some(reason) = failed.reason_elsewhere(&self.own, trusted) {
            if !self.own.node().is_over() {
                self.own.attempts().end_call(reason);
            }
            return self.give_up(failed);
        }
        if failed.is_of_upstream(&self.own) && attempt.attempts().has_target() {
            self.policy.note_failure(&failure);
        }
        let kept = match C::MOVES {
            true => KeptAnswer::of(&failure, &failed, attempt, counted, &self.policy),
            false => None,
        };
        let allowance = counted.unwrap_or(ErrorAllowance::Within);
        let permit = self
            .count_silent_attempt(&failed, attempt)
            .and_then(|()| decide(&mut self.policy, &self.own, &failure, allowance));
        match permit {
            Ok(permit) => {
                if let Some(kept) = kept {
                    self.hidden.get_or_insert_default().keep(kept);
                }
                self.start_next(&failure, failed, attempt, permit)
            }
            // The hook or another thread may have ended the node meanwhile.
            Err(_) if self.own.node().is_over() => self.give_up(failed),
            Err(denied) => self.stop(denied, counted, failure, failed, attempt),
        }
    }

    /// Drops a failed attempt, and ends the call with the end of the layer's node as its error.
    fn give_up<B: Body>(&mut self, failed: FailedAttempt<B>) -> Next<B> {
        let error = failed.into_error();
        Next::Done(Err(self.end_error(error)))
    }

    /// Records a failed attempt in the call's list, and closes the attempt's report. A failure that
    /// an inner layer has recorded is not recorded again.
    ///
    /// Counts the failure as an error of the run if the budget counts every attempt, unless a layer
    /// further in has counted it. Returns the result of that count, whichever layer made it; `None`
    /// if no layer did.
    fn note<B: Body>(
        &mut self,
        failure: &Failure,
        failed: &FailedAttempt<B>,
        attempt: &Run,
    ) -> Option<ErrorAllowance> {
        let (inner, answer) = match failed {
            FailedAttempt::Answer(answer) => (
                answer.parts.extensions.get::<FailedAttempts>(),
                Ok(&answer.parts),
            ),
            FailedAttempt::Error(error) => (FailedAttempts::of_layer(&**error), Err(error)),
        };
        let tried = AttemptSummary::failed(self.policy.subject(), failure, answer, attempt);
        match inner {
            Some(inner) => inner.merge(&self.own),
            None => FailedAttempts::add(&self.own, slice::from_ref(&tried)),
        }
        if let Some(report) = self.report.take() {
            report.fail(tried);
        }
        self.has_failed = true;
        let failing = attempt.errors().failing();
        let counted = failing.and_then(|failing| failing.counted);
        let every = self.policy.settings().budget.settings().count == Count::Every;
        let every = every && !failure.is_put_off();
        counted.or_else(|| every.then(|| self.own.errors().count_attempt(self.policy.key(failure))))
    }

    /// Counts a silent attempt among the run's silent attempts in a row. Any other failure resets
    /// their number. The method does neither if an inner layer has recorded the failure.
    ///
    /// After a silent attempt, the method denies another one once the silent attempts in a row have
    /// reached the idle breaker's limit. A fallback layer is not denied if the breaker is set to
    /// fail over.
    fn count_silent_attempt<B: Body>(
        &mut self,
        failed: &FailedAttempt<B>,
        attempt: &Run,
    ) -> Result<(), Denial> {
        // An inner layer that recorded the failure has also counted the silence.
        let is_counted = attempt.errors().failing().is_some();
        if !failed.is_step_timeout(&self.own) {
            if !is_counted {
                self.own.attempts().reset_silent();
            }
            return Ok(());
        }
        let silent = match is_counted {
            true => self.own.attempts().silent(),
            false => self.own.attempts().count_silent(),
        };
        match self.policy.settings().budget.settings().idle_breaker {
            Some((limit, then)) if silent >= limit && (then == IdleBreaker::End || !C::MOVES) => {
                Err(Denial::Idle)
            }
            _ => Ok(()),
        }
    }

    /// Settles a failed attempt, and returns the next step. The step is the permit's wait; if
    /// the wait is zero, it is the step of `start`.
    fn start_next<B: Body<Data = Bytes> + Unpin>(
        &mut self,
        failure: &Failure,
        failed: FailedAttempt<B>,
        attempt: &Run,
        RetryPermit { wait, permit }: RetryPermit,
    ) -> Next<B> {
        let now = self.own.now();
        // If an inner layer has recorded a terminal reason for the attempt, that reason wins.
        let reason = attempt.errors().classified();
        let reason = reason.unwrap_or(TerminalReason::Failed(failure.class));
        drop(attempt.node().settle(reason, now));
        self.last_error = failed.into_error();
        FailedAttempts::allow(&self.own);
        tracing::debug!(
            target: "tower_agent",
            run = %self.own.id(),
            failed = FailedAttempts::of(&self.own).as_ref().and_then(FailedAttempts::last),
            class = failure.class.as_str(),
            signal = failure.signal(),
            next = self.policy.subject(),
            ?wait,
            "retrying"
        );
        if wait.is_zero() {
            return self.start(permit);
        }
        Next::Wait {
            until: nanos(now.saturating_add(wait)),
            permit,
        }
    }

    /// Makes the failed answer or error the layer's result: no attempt of this layer follows. If
    /// the idle breaker denied one and is set to end idle runs, the method ends the run instead.
    fn stop<B: Body<Data = Bytes> + Unpin>(
        &mut self,
        denied: Denial,
        counted: Option<ErrorAllowance>,
        failure: Failure,
        failed: FailedAttempt<B>,
        attempt: &Run,
    ) -> Next<B> {
        FailedAttempts::deny(&self.own, denied, C::MOVES);
        let ends_run = denied == Denial::Idle && self.policy.settings().budget.ends_idle_runs();
        // The event is logged before a node ends by the denial. If the layer's node is an attempt,
        // this layer logs no event unless it ends the run: an outer layer may still go on.
        if ends_run || self.own.kind() != NodeKind::Attempt {
            self.log_denial(denied, &failure);
        }
        if ends_run {
            self.own.run().end(TerminalReason::IdleCircuitOpen);
            return self.give_up(failed);
        }
        #[cfg(feature = "metrics")]
        if let Some(budget) = denied
            .budget()
            .filter(|_| attempt.errors().failing().is_none())
        {
            crate::metrics::repeat_denied(budget);
        }
        let key = self.policy.key(&failure);
        // What an operator elsewhere puts off is not an error.
        let unasked = failure.is_put_off();
        let failing = |reason: &TerminalReason| Failing {
            key,
            reason: Some(reason.clone()),
            counted,
            unasked,
        };
        let class = TerminalReason::Failed(failure.class);
        if attempt.errors().failing().is_none() {
            attempt.errors().fail_as(failing(&class));
        }
        let hidden = self.hidden.as_mut();
        if let Some(kept) = hidden.and_then(|hidden| hidden.take(&failure, &failed)) {
            return self.hand_up(kept, &failure, failed, attempt);
        }
        let reason = match denied {
            Denial::Key => TerminalReason::RetryBudget,
            _ => class,
        };
        self.own.errors().fail_as(failing(&reason));
        match failed {
            FailedAttempt::Answer(mut answer) => {
                if self.own.kind() != NodeKind::Attempt {
                    answer.state_stream_error(&failure);
                }
                self.set_right_status(&mut answer.parts, &failure);
                let mut tries = FailedAttempts::of(&self.own).unwrap_or_default();
                tries.set_soonest(self.policy.earliest_retry());
                answer.parts.extensions.insert(tries);
                answer.parts.extensions.insert(failure);
                Next::Done(Ok(self.answer_caller(*answer, attempt, Some(reason))))
            }
            FailedAttempt::Error(error) => {
                self.policy.release();
                self.settle(match peek::reason_of(&error, &self.own) {
                    TerminalReason::Failed(_) => reason,
                    ended => ended,
                });
                // `note` has listed the attempts of an inner layer.
                let (_, error) = FailedAttempts::unwrap(error);
                Next::Done(Err(FailedAttempts::explain(&self.own, error)))
            }
        }
    }

    /// Makes an earlier failed answer the layer's result, instead of the last attempt.
    fn hand_up<B: Body<Data = Bytes> + Unpin>(
        &mut self,
        mut kept: KeptAnswer,
        last: &Failure,
        failed: FailedAttempt<B>,
        attempt: &Run,
    ) -> Next<B> {
        let ended = attempt.errors().classified();
        let ended = ended.unwrap_or(TerminalReason::Failed(last.class));
        drop(attempt.node().settle(ended, self.own.now()));
        drop(failed);
        self.own.errors().fail_as(Failing {
            key: kept.key,
            reason: Some(kept.reason.clone()),
            counted: kept.counted,
            unasked: false,
        });
        self.set_right_status(&mut kept.parts, &kept.failure);
        let mut tries = FailedAttempts::of(&self.own).unwrap_or_default();
        tries.set_soonest(self.policy.earliest_retry());
        let extensions = &mut kept.parts.extensions;
        extensions.insert(tries);
        extensions.insert(kept.failure.clone());
        let (attempt, reason) = (kept.attempt.clone(), kept.reason.clone());
        let answer = kept.into_answer();
        Next::Done(Ok(self.answer_caller(answer, &attempt, Some(reason))))
    }

    /// Gives an error under a good status the status that it should have had: clients take any
    /// other for an answer. An outer layer may still go on, so that only the outermost does so.
    fn set_right_status(&self, parts: &mut Parts, failure: &Failure) {
        if self.own.kind() != NodeKind::Attempt && parts.status.is_success() {
            parts.status = failure.right_status.unwrap_or(parts.status);
        }
    }

    fn log_denial(&mut self, denied: Denial, failure: &Failure) {
        let own = &self.own;
        let tries = FailedAttempts::of(own).unwrap_or_default();
        // An inner layer decides on repeats, and the event of a fallback layer tells of both.
        let not_repeated = tries.not_repeated().map(Denial::as_str);
        macro_rules! event {
            ($level:ident) => {
                tracing::$level!(
                    target: "tower_agent",
                    run = %own.id(),
                    denied = denied.as_str(),
                    not_repeated,
                    class = failure.class.as_str(),
                    signal = failure.signal(),
                    attempts = own.attempts().made(),
                    tried = %tries,
                    "no further attempt"
                )
            };
        }
        // A caller's own fault and an expired session are not warnings for the operator.
        if matches!(
            failure.class,
            FailureClass::Caller | FailureClass::SessionExpired
        ) {
            event!(debug);
        } else {
            event!(warn);
            self.is_logged = true;
        }
    }

    /// Records that the attempt serves the call.
    ///
    /// The run's silent attempts in a row are counted from 0 again. A failure that was recorded for
    /// the layer's node is removed.
    ///
    /// The returned [`Completion`] later reports how the attempt ends: to the policy's observer, to
    /// the program's hook, and in the attempt's span. The result is `None` if the attempt has none
    /// of the three.
    fn note_served(&mut self, attempt: &Run, parts: &Parts) -> Option<Box<Completion>> {
        self.own.attempts().reset_silent();
        self.own.errors().fail_as(None);
        let observer = self.policy.note_served(attempt);
        let mut report = self.report.take();
        if let Some(report) = &mut report {
            report.serve(parts);
            self.trace_served(parts);
        }
        if observer.is_none() && report.is_none() {
            return None;
        }
        Some(Box::new(Completion {
            attempt: attempt.clone(),
            observer,
            report,
            marks: parts.extensions.get().cloned(),
            classifier: self.policy.settings().classifier.clone(),
        }))
    }

    /// Records in the call's span the model of the candidate that serves it. Without a candidate no
    /// model is recorded. If content has come, also records the time to the first content. Does
    /// nothing if the layer's node is an attempt.
    #[cold]
    fn trace_served(&self, parts: &Parts) {
        if self.own.kind() != NodeKind::Attempt {
            let model = self.policy.current_candidate().map(Candidate::model);
            let marks = parts.extensions.get::<ResponseMarks>();
            let has_content = marks.is_some_and(|marks| marks.commit().is_some());
            self.own.spans().record_served(model, has_content);
        }
    }

    /// Tells the reader of a stream what may follow the finish of its answer.
    fn expect_end(&self, parts: &Parts) {
        if let Some(marks) = parts.extensions.get::<ResponseMarks>() {
            match self.policy.after_finish() {
                // An inner layer may have read the request.
                AfterFinish::Unknown => {}
                known => marks.expect(known),
            }
        }
    }

    /// Makes the layer's answer from that of the last attempt; `failed` is the terminal reason of a
    /// failed answer.
    fn answer_caller<B: Body<Data = Bytes> + Unpin>(
        &mut self,
        answer: PeekedAnswer<SupervisedBody<B>>,
        attempt: &Run,
        failed: Option<TerminalReason>,
    ) -> Response<AttemptBody<B>> {
        let PeekedAnswer {
            mut parts, content, ..
        } = answer;
        // An attempt's share of the time limits the attempt only until the commit.
        attempt.node().lapse_share();
        let completion = match failed {
            Some(_) => None,
            None => self.note_served(attempt, &parts),
        };
        if attempt.attempts().asks_for_stream() {
            self.expect_end(&parts);
        }
        self.policy.release();
        self.policy.rewrite_answer(&mut parts);
        if self.own.kind() != NodeKind::Attempt {
            let number = number_value(self.own.attempts().made());
            parts.headers.insert(X_ATTEMPT, number);
        }
        let ownership = self.settle_guard.take().map(|guard| {
            // An outer layer that opens no node finds this layer's node here.
            parts.extensions.insert(self.own.clone());
            Ownership {
                guard,
                attempt: attempt.clone(),
                failed,
            }
        });
        let body = AttemptBody {
            content: Some(Box::into_pin(content)),
            own: self.own.clone(),
            ownership,
            completion,
        };
        Response::from_parts(parts, body)
    }
}
