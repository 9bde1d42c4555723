//! Failed answers that a later failure of the call must not hide.
//!
//! What a fallback answers is mostly what the caller should hear. It is not in two cases: the
//! fallback refuses turns that only the first candidate can read, which was merely busy; and the
//! candidate with the larger window cannot be reached after an overflow. The caller's client would
//! give up on the first, and repeat the second in vain. So it gets the earlier answer, which it knows
//! how to treat.

use bytes::Bytes;
use http::response::Parts;
use http_body::Body;

use super::{
    peek::{FailedAttempt, PeekedAnswer, WholeBody},
    policy::AttemptPolicy,
};
use crate::{
    llm::failure::{Failure, FailureClass},
    run::{ErrorAllowance, ErrorKey, Run, TerminalReason},
    supervise::SupervisedBody,
};

/// The earlier failures of a call that a later one may hide. Of each kind the first one is kept.
#[derive(Debug, Default)]
pub(super) struct HiddenFailures {
    /// The failure of a candidate that may serve soon.
    passing: Option<KeptAnswer>,
    overflow: Option<KeptAnswer>,
}

/// A failed answer after which another attempt followed.
#[derive(Debug)]
pub(super) struct KeptAnswer {
    /// The head as the caller would have got it.
    pub(super) parts: Parts,
    pub(super) body: Bytes,
    pub(super) failure: Failure,
    pub(super) attempt: Run,
    pub(super) reason: TerminalReason,
    pub(super) key: ErrorKey,
    pub(super) counted: Option<ErrorAllowance>,
}

impl KeptAnswer {
    /// Copies a failed answer that a later failure may hide; `None` for any other failure, and for
    /// an answer that was not read to its end.
    ///
    /// The policy must still be at the candidate that answered.
    pub(super) fn of<B: Body>(
        failure: &Failure,
        failed: &FailedAttempt<B>,
        attempt: &Run,
        counted: Option<ErrorAllowance>,
        policy: &impl AttemptPolicy,
    ) -> Option<Self> {
        if !is_passing(failure.class) && failure.class != FailureClass::ContextOverflow {
            return None;
        }
        let FailedAttempt::Answer(answer) = failed else {
            return None;
        };
        let WholeBody(body) = answer.parts.extensions.get()?;
        let body = body.clone();
        let mut parts = answer.parts.clone();
        policy.rewrite_answer(&mut parts);
        let reason = attempt.errors().classified();
        Some(Self {
            parts,
            body,
            failure: failure.clone(),
            attempt: attempt.clone(),
            reason: reason.unwrap_or(TerminalReason::Failed(failure.class)),
            key: policy.key(failure),
            counted,
        })
    }

    /// The answer, as one that was read and failed.
    pub(super) fn into_answer<B: Body>(self) -> PeekedAnswer<SupervisedBody<B>> {
        PeekedAnswer::kept(self.parts, self.body)
    }
}

impl HiddenFailures {
    pub(super) fn keep(&mut self, kept: KeptAnswer) {
        let slot = match kept.failure.class {
            FailureClass::ContextOverflow => &mut self.overflow,
            _ => &mut self.passing,
        };
        slot.get_or_insert(kept);
    }

    /// Takes the failed answer that the caller should get instead of the call's last failure.
    pub(super) fn take<B: Body>(
        &mut self,
        last: &Failure,
        failed: &FailedAttempt<B>,
    ) -> Option<KeptAnswer> {
        let is_unreachable = matches!(failed, FailedAttempt::Error(_))
            && matches!(
                last.class,
                FailureClass::Transport | FailureClass::Certificate
            );
        if is_unreachable {
            self.overflow.take()
        } else if last.refuses_turns_of_others() {
            self.passing.take()
        } else {
            None
        }
    }
}

/// Whether a candidate that failed with this class may serve soon.
const fn is_passing(class: FailureClass) -> bool {
    matches!(
        class,
        FailureClass::RateLimit
            | FailureClass::Overloaded
            | FailureClass::NotReady
            | FailureClass::Server
    )
}
