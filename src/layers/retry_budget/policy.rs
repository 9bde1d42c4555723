use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use http::{HeaderMap, Request};

use super::layer::RetryBudgetLayer;
use crate::{
    attempt::{
        AttemptPolicy, Backoff, Candidate, Denial, Permit, RequestTemplate, RetryBudget, words,
    },
    body::ReplayBody,
    error::BoxError,
    llm::{
        Prompt,
        failure::{Classifier, Failure, FailureClass, RetrySame},
    },
    run::{ErrorAllowance, ErrorKey, Run},
};

/// The same request again and again, to the same candidate.
#[derive(Debug)]
pub struct RetryPolicy {
    budget: RetryBudget,
    judgement: Classifier,
    hold: Option<Duration>,
    own: Option<Run>,
    /// The request; none before it came and once no try follows.
    asked: Option<Box<RetryRequest>>,
    /// Whether the first try was paid in.
    paid: bool,
    /// How many tries of one candidate a call may make, whoever makes them.
    most: u32,
    /// How many more this layer may make after the current one.
    left: u32,
}

/// Boxed: what is in a future is moved once a layer.
#[derive(Debug)]
struct RetryRequest {
    kept: Option<RequestTemplate>,
    body: ReplayBody,
    backoff: Option<Backoff>,
    prompt: OnceLock<Prompt>,
}

impl RetryPolicy {
    pub(super) fn new(layer: &RetryBudgetLayer) -> Self {
        Self {
            budget: layer.budget.clone(),
            judgement: layer.judgement.clone(),
            hold: layer.hold,
            own: None,
            asked: None,
            paid: false,
            most: 1,
            left: 0,
        }
    }

    /// Whom the request goes to, if a layer further out chose one.
    fn candidate(&self) -> Option<&Candidate> {
        self.own.as_ref()?.served_by()
    }

    /// Pays for a part of a repeat, unless a layer further out did it.
    fn deposit(&self) {
        let (Some(own), Some(bucket)) = (&self.own, self.budget.bucket(self.subject())) else {
            return;
        };
        if own.first_deposit(Arc::as_ptr(bucket).addr()) {
            bucket.deposit();
        }
    }

    fn has_others(&self) -> bool {
        self.own.as_ref().is_some_and(Run::has_others)
    }

    fn wait(&mut self, slowly: bool) -> Duration {
        let Self {
            budget, own, asked, ..
        } = self;
        let (Some(own), Some(asked)) = (own, asked) else {
            return Duration::ZERO;
        };
        // Calls of one run that fail together do not come back together.
        let seed = || own.seed().wrapping_add(own.node().number());
        let backoff = asked.backoff.get_or_insert_with(|| budget.backoff(seed()));
        backoff.next(slowly)
    }

    fn prompt(&self) -> Option<&Prompt> {
        Some(self.asked.as_ref()?.prompt())
    }
}

impl RetryRequest {
    /// What the body says of itself; read only once something failed.
    fn prompt(&self) -> &Prompt {
        self.prompt
            .get_or_init(|| Prompt::read(&self.body.gathered()).unwrap_or_default())
    }
}

impl AttemptPolicy for RetryPolicy {
    const MOVES: bool = false;

    fn begin(&mut self, own: &Run, request: Request<ReplayBody>) -> Result<(), BoxError> {
        self.own = Some(own.clone());
        let most = self.budget.settings().max_attempts_per_candidate;
        self.most = most.saturating_sub(repeated(request.headers())).max(1);
        self.left = self.most - 1;
        let (head, body) = request.into_parts();
        self.asked = Some(Box::new(RetryRequest {
            kept: Some(RequestTemplate::new(head)),
            body,
            backoff: None,
            prompt: OnceLock::new(),
        }));
        self.budget.limit_errors_of_call(own);
        Ok(())
    }

    fn request(&mut self, _: &Run) -> Result<Request<ReplayBody>, BoxError> {
        if !std::mem::replace(&mut self.paid, true) {
            // Here and not before: a node that is over makes no attempt.
            self.deposit();
        }
        let request = self.asked.as_mut().and_then(|asked| {
            let body = asked.body.clone();
            match self.left {
                0 => Some(asked.kept.take()?.last(body)),
                _ => Some(asked.kept.as_mut()?.again(body)),
            }
        });
        request.ok_or_else(|| "a request was sent more often than it was kept for".into())
    }

    fn hold(&self) -> Option<Duration> {
        self.hold
    }

    fn streams(&self) -> bool {
        self.prompt().is_some_and(Prompt::stream)
    }

    fn trusts(&self) -> bool {
        self.candidate().is_some_and(Candidate::is_trusted)
    }

    fn is_elsewhere(&self) -> bool {
        self.candidate().is_some_and(Candidate::is_elsewhere)
    }

    fn subject(&self) -> Option<&str> {
        self.candidate().map(Candidate::label)
    }

    fn budget(&self) -> &RetryBudget {
        &self.budget
    }

    fn judgement(&self) -> &Classifier {
        &self.judgement
    }

    fn worth(&mut self, failure: &Failure) -> Result<Duration, Denial> {
        let same = failure.class.same();
        let is_used_up = || self.own.as_ref().is_some_and(Run::has_repeated_silence);
        if !failure.is_worth_repeating() || (same == RetrySame::Once && is_used_up()) {
            return Err(Denial::Class);
        }
        if failure.class == FailureClass::Overloaded && self.has_others() {
            // It is left alone where somebody else can serve.
            return Err(Denial::Class);
        }
        match failure.retry_after {
            // Waited exactly, or not at all; never earlier than asked.
            Some(asked) if asked > self.budget.settings().max_retry_after => {
                Err(Denial::RetryAfter)
            }
            Some(asked) => Ok(asked),
            None => Ok(self.wait(same == RetrySame::Slowly)),
        }
    }

    fn left(&mut self, _: &Failure) -> Result<(), Denial> {
        let tried = self.own.as_ref().map_or(0, Run::tries_of_candidate);
        if self.left == 0 || tried >= self.most {
            Err(Denial::Spent)
        } else {
            Ok(())
        }
    }

    fn spend(
        &mut self,
        failure: &Failure,
        verdict: ErrorAllowance,
    ) -> Result<Option<Permit<'static>>, Denial> {
        match verdict {
            // In a row are those that reached the harness.
            ErrorAllowance::Within | ErrorAllowance::RowSpent => {}
            ErrorAllowance::KeySpent | ErrorAllowance::BothSpent => return Err(Denial::Key),
            ErrorAllowance::RunSpent => return Err(Denial::Run),
        }
        let grant = self.budget.withdraw(self.subject());
        let grant = grant.ok_or(Denial::Bucket)?.into_owned();
        if let (RetrySame::Once, Some(own)) = (failure.class.same(), &self.own) {
            own.repeat_silence();
        }
        // Also for a try that the service then is not ready for.
        self.left = self.left.saturating_sub(1);
        Ok(Some(grant))
    }

    fn key(&self, failure: &Failure) -> ErrorKey {
        let subject = self.subject().or_else(|| self.prompt()?.model());
        ErrorKey::new(subject.unwrap_or_default(), words(failure))
    }

    fn release(&mut self) {
        self.asked = None;
    }
}

/// How often the caller's own client has sent this request before. It can lower
/// what is repeated here, and raise nothing.
fn repeated(headers: &HeaderMap) -> u32 {
    let count = headers.get("x-stainless-retry-count");
    let count = count.and_then(|count| count.to_str().ok()?.trim().parse().ok());
    count.unwrap_or(0)
}
