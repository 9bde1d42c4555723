//! What a try that failed counts for, before another is thought of.

use http_body::Body;

use super::{
    budget::{Count, IdleBreaker},
    classify,
    driver::AttemptDriver,
    peek::Spent,
    policy::{AttemptPolicy, Denial},
    tries::Tries,
};
use crate::{
    llm::failure::Failure,
    run::{ErrorAllowance, Run},
};

impl<S, C: AttemptPolicy> AttemptDriver<S, C> {
    /// Counts attempts that were silent, one after another: whoever waits for the
    /// run has heard nothing for all that time.
    pub(super) fn count_silence_of<B: Body>(
        &mut self,
        spent: &Spent<B>,
        attempt: &Run,
    ) -> Result<(), Denial> {
        // A layer further in has listened, if any.
        let is_counted = attempt.failing().is_some();
        let is_silent = match spent {
            Spent::Error(error) => classify::is_silence(error, &self.own),
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
