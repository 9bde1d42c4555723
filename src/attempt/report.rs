//! The report of an attempt: it closes the attempt's span, and calls the program's hook.

use std::{fmt, sync::Arc};

use http::response::Parts;

use super::failed_attempts::{AttemptSummary, request_id};
use crate::{
    guarded::guarded,
    llm::failure::{Failure, FailureClass},
    run::{Run, TerminalReason, is_traced},
};

/// The program's hook after each attempt.
pub(super) type AfterAttempt = dyn Fn(&AttemptSummary) + Send + Sync;

/// The report of one attempt, which is made when this value drops. That is once the attempt is
/// over, or is classified as failed. The drop closes the attempt's span, and calls the program's
/// hook unless an inner layer has called its own.
pub(super) struct AttemptReport {
    hook: Option<Arc<AfterAttempt>>,
    attempt: Run,
    tried: AttemptSummary,
}

impl AttemptReport {
    #[cold]
    pub(super) fn new(
        hook: Option<Arc<AfterAttempt>>,
        attempt: Run,
        candidate: Option<&str>,
    ) -> Box<Self> {
        let tried = AttemptSummary::begun(candidate, &attempt);
        Box::new(Self {
            hook,
            attempt,
            tried,
        })
    }

    /// Reports the attempt as failed.
    pub(super) fn fail(mut self, tried: AttemptSummary) {
        self.tried = tried;
    }

    /// Stores the status and the request id from the head of the answer that serves the call.
    pub(super) fn serve(&mut self, parts: &Parts) {
        self.tried.status = Some(parts.status);
        self.tried.request_id = request_id(&parts.headers);
        self.tried.served_after = Some(self.attempt.elapsed());
    }

    /// Stores the class that the program's rules give to the end of the attempt.
    pub(super) fn classify(&mut self, failure: &Failure) {
        self.tried.reason = TerminalReason::Failed(failure.class);
        self.tried.class = Some(failure.class);
        self.tried.signal = failure.signal().into();
    }
}

impl Drop for AttemptReport {
    fn drop(&mut self) {
        let Self {
            hook,
            attempt,
            tried,
        } = self;
        let is_new = || !attempt.attempts().mark_reported();
        let hook = hook.as_ref().filter(|_| is_new());
        if hook.is_none() && !is_traced() {
            return;
        }
        if let (None, Some(end)) = (tried.class, attempt.node().nearest_end()) {
            tried.reason = end.reason.clone();
            tried.class = end.attempt_failure();
        }
        if is_traced() {
            let class = tried.class.map(FailureClass::as_str);
            let is_whole = tried.reason == TerminalReason::Completed;
            let cut = (!is_whole).then(|| tried.reason.as_str());
            attempt.spans().close_attempt(tried.status, class.or(cut));
        }
        let Some(hook) = hook else { return };
        tried.duration = attempt.elapsed();
        tried.usage = attempt.usage().or(tried.usage);
        if guarded(|| hook(tried)).is_none() {
            guarded(|| {
                tracing::error!(target: "tower_agent", run = %attempt.id(), "after_attempt panicked");
            });
        }
    }
}

impl fmt::Debug for AttemptReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptReport")
            .field("tried", &self.tried)
            .finish_non_exhaustive()
    }
}
