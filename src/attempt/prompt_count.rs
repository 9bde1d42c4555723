//! Counts the prompt of an attempt whose upstream states no usage.

use http::{HeaderMap, Request, StatusCode};

use super::candidate::generates;
use crate::{
    body::ReplayBody,
    llm::{dialect::Usage, names_events, prompt_tokens},
    run::{Nanos, Run, TaskId, TerminalReason, TokenMeter},
    supervise::{LayerHooks, Observer},
};

/// The hooks of an attempt that count its prompt by an estimate, unless its upstream states usage.
///
/// The prompt counts if the answer was one of success, or if the attempt was left before an answer
/// came: the upstream has the prompt, and reads it. An error or a failed answer costs nothing, and
/// neither does a request that no upstream has got.
///
/// The prompt counts when the attempt is settled, and for a call that goes on without its caller
/// when the caller leaves: then a usage that comes later replaces the estimate.
#[derive(Debug)]
pub(super) struct PromptCount {
    prompt: Prompt,
    stage: Stage,
    /// The estimate that was counted while the attempt went on without a caller.
    counted: Option<TokenMeter>,
}

/// The prompt of an attempt: its body, or the estimate of its tokens.
#[derive(Debug)]
enum Prompt {
    Body(ReplayBody),
    Tokens(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Sent,
    Answered,
    Refused,
}

impl PromptCount {
    /// Makes the hooks of an attempt with this request; `None` if no model generates for it.
    #[cold]
    pub(super) fn of(request: &Request<ReplayBody>) -> Option<Self> {
        generates(request).then(|| Self {
            prompt: Prompt::Body(request.body().clone()),
            stage: Stage::Sent,
            counted: None,
        })
    }

    fn count(&mut self, run: &Run) {
        if self.counted.is_none() {
            self.counted = run.tokens().meter();
            if let Some(meter) = &mut self.counted {
                meter.set_prompt(self.prompt.measure());
            }
        }
    }

    /// Whether the upstream has read the prompt of this attempt, and said nothing of its tokens.
    fn is_owed(&self, run: &Run, observer: Option<&Observer>) -> bool {
        // No upstream has read a prompt of no tokens: such a number says nothing.
        let states = |usage: Usage| usage.input_tokens > 0 || usage.cached_input_tokens > 0;
        if self.stage == Stage::Refused
            || !run.attempts().has_sent_request()
            || run.usage().is_some_and(states)
        {
            return false;
        }
        let is_free = observer.is_some_and(Observer::is_free);
        let has_content = || {
            let marks = observer.and_then(Observer::marks);
            marks.is_some_and(|marks| marks.commit().is_some())
        };
        // An error under a good status is a refusal, unless a part of an answer came before it.
        !is_free && (!is_classified_as_failed(run) || has_content())
    }
}

impl LayerHooks for PromptCount {
    fn head(&mut self, _: &Run, status: StatusCode, headers: &mut HeaderMap) {
        if !status.is_success() {
            self.stage = Stage::Refused;
            self.prompt = Prompt::Tokens(0);
            return;
        }
        self.stage = Stage::Answered;
        if names_events(headers) {
            // A stream may last for long: it must not keep the body.
            self.prompt.measure();
        }
    }

    fn failed(&mut self, _: &Run, _: Nanos, _: TaskId) {
        if self.stage == Stage::Sent {
            self.stage = Stage::Refused;
        }
    }

    fn pending(
        &mut self,
        run: &Run,
        _: Option<&mut Observer>,
        _: Nanos,
        _: TaskId,
    ) -> Option<Nanos> {
        let is_left = run.node().refuses_work();
        if is_left && self.counted.is_none() && self.is_owed(run, None) {
            self.count(run);
        }
        None
    }

    fn settling(&mut self, run: &Run, observer: Option<&Observer>) {
        if self.is_owed(run, observer) {
            self.count(run);
        } else if let Some(meter) = &mut self.counted {
            meter.set_prompt(0);
        }
    }
}

impl Prompt {
    /// The estimate of the tokens; frees the body.
    fn measure(&mut self) -> u64 {
        if let Self::Body(body) = self {
            let tokens = prompt_tokens(body.segments().map(|data| &**data));
            *self = Self::Tokens(tokens);
        }
        match self {
            Self::Tokens(tokens) => *tokens,
            Self::Body(_) => 0,
        }
    }
}

/// Whether a layer has classified the answer of this attempt as a failure.
fn is_classified_as_failed(run: &Run) -> bool {
    let end = run.node().own_end().map(|end| end.reason.clone());
    let failing = || run.errors().classified();
    matches!(end.or_else(failing), Some(TerminalReason::Failed(_)))
}
