use std::{
    error::Error,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, StatusCode};

use super::{
    cause,
    class::{FailureClass, RetrySame},
    classifier::Classifier,
    errors::{CoolingDown, Redirected},
    stop,
};
use crate::{error::chain, llm::dialect::StreamFailure};

/// One judged failure of an upstream.
///
/// It says nothing about the run: whoever retries looks first whether its own
/// node is over.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What kind of failure it is.
    pub class: FailureClass,
    /// The answer's status; for an error under 200, the one that it names as
    /// its code. `None` if there is neither.
    pub status: Option<StatusCode>,
    /// The upstream's own words, at most 1 KiB; empty if it had none.
    pub message: String,
    /// How long the upstream asks to be left alone, at most 30 days. Its head
    /// goes before its words, which count only where waiting helps.
    pub retry_after: Option<Duration>,
    /// The upstream's `x-should-retry`.
    pub should_retry: Option<bool>,
}

impl Failure {
    /// A failure of which the upstream itself said nothing.
    #[must_use]
    pub const fn new(class: FailureClass) -> Self {
        Self {
            class,
            status: None,
            message: String::new(),
            retry_after: None,
            should_retry: None,
        }
    }

    /// Judges an answer; `None` if it is healthy.
    ///
    /// `body` is the whole body of an error, or of an answer that is no event
    /// stream: some upstreams report an error, or that the model refused, under
    /// 200. Where it was not read, is compressed or longer than 64 KiB, the head
    /// alone decides. `now` is the wall clock's, for a `retry-after` that names
    /// a date.
    ///
    /// An `x-terminal-reason` is taken for that of a run which is not ours.
    /// A [`Classifier`] puts a program's own rules in front.
    #[must_use]
    pub fn of_answer(
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        now: SystemTime,
    ) -> Option<Self> {
        Classifier::new().of_answer(status, headers, body, now)
    }

    /// Judges the event by which a stream reported that it failed.
    #[must_use]
    pub fn of_stream(failure: &StreamFailure) -> Self {
        Classifier::new().of_stream(failure)
    }

    /// Judges why a model stopped, in the words of
    /// [`StreamReader::stop_reason`](crate::llm::stream::StreamReader::stop_reason); `None` unless it
    /// refused or its context was full.
    ///
    /// Another model is of use only as long as the caller has seen nothing.
    #[must_use]
    pub fn of_stop(reason: &str) -> Option<Self> {
        stop::class_of(reason).map(Self::new)
    }

    /// Judges an error that came in place of an answer, or of the rest of one.
    ///
    /// Where [nobody was asked](CoolingDown), it is what failed before, and is
    /// worth no try before the first may be asked again.
    ///
    /// Its message stays empty: an error's text is not the upstream's, and may
    /// name hosts that are nobody's business.
    #[must_use]
    pub fn of_error(error: &(dyn Error + 'static)) -> Self {
        let cooling = chain(error).find_map(|error| error.downcast_ref::<CoolingDown>());
        match cooling {
            Some(cooling) => Self {
                retry_after: Some(cooling.soonest()),
                ..Self::new(cooling.class())
            },
            None => Self {
                status: chain(error)
                    .find_map(|error| error.downcast_ref::<Redirected>())
                    .map(|redirected| redirected.status),
                ..Self::new(cause::class_of(error))
            },
        }
    }

    /// Whether the same candidate may be asked again, as far as the failure is
    /// concerned; budgets come on top.
    ///
    /// The upstream may forbid what the class allows, never allow what it forbids.
    #[must_use]
    pub fn is_worth_repeating(&self) -> bool {
        self.class.same() != RetrySame::No && self.should_retry != Some(false)
    }
}
