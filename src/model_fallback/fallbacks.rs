use std::{mem, sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, Request, response::Parts};

use super::{Candidate, CandidateDialect, Original, headers::strip_hop, layer::Choices};
use crate::{
    BoxError,
    attempt::{Chain, Denial},
    body::ReplayBody,
    retry_budget::{Grant, RetryBudget, Verdict},
    run::{Clock, Limits, Run},
    terminal_response::InvalidRequest,
    upstream::{Failure, Other},
};

const X_SERVED_MODEL: HeaderName = HeaderName::from_static("x-served-model");

/// On an answer: it says which candidate served.
#[derive(Clone, Copy, Debug)]
struct Served;

/// One request, made out to one candidate after the other.
#[derive(Debug)]
pub struct Fallbacks {
    choices: Arc<Choices>,
    asked: Asked,
    /// The candidate that the caller asked for, or the first that can serve.
    first: usize,
    /// The one that is being tried.
    current: usize,
    /// The one that is next, once it was found.
    next: Option<usize>,
}

#[derive(Debug)]
enum Asked {
    /// Not read yet, or not needed any more.
    Nothing,
    /// There is no candidate: it passes as it is.
    Plain(Box<Request<ReplayBody>>),
    Original(Box<Original>),
}

impl Fallbacks {
    pub(super) const fn new(choices: Arc<Choices>) -> Self {
        Self {
            choices,
            asked: Asked::Nothing,
            first: 0,
            current: 0,
            next: None,
        }
    }

    fn candidate(&self) -> Option<&Arc<Candidate>> {
        self.choices.candidates.get(self.current)
    }

    const fn original(&self) -> Option<&Original> {
        match &self.asked {
            Asked::Original(original) => Some(original),
            _ => None,
        }
    }

    /// The candidates that come after the current one: the first, then the
    /// others as they are listed.
    fn following(&self) -> impl Iterator<Item = usize> {
        let (first, current) = (self.first, self.current);
        let from = if current == first { 0 } else { current + 1 };
        let operation = self.original().and_then(Original::operation);
        let candidates = &self.choices.candidates;
        // What names its model itself can be asked of one candidate alone.
        let patchable = self.original().is_some_and(Original::patchable);
        (from..candidates.len())
            .filter(move |&at| patchable && at != first && candidates[at].speaks(operation))
    }
}

impl Chain for Fallbacks {
    fn begin(&mut self, own: &Run, request: Request<ReplayBody>) -> Result<(), BoxError> {
        own.limit_errors_of_call(&self.choices.budget);
        let candidates = &self.choices.candidates;
        if candidates.is_empty() {
            self.asked = Asked::Plain(Box::new(request));
            return Ok(());
        }
        let original = Original::read(request)?;
        let operation = original.operation();
        let model = original.prompt().and_then(|prompt| prompt.model());
        let named = |candidate: &Arc<Candidate>| model == Some(candidate.label());
        let speaks = |candidate: &Arc<Candidate>| candidate.speaks(operation);
        let asked_for = candidates.iter().position(|it| named(it) && speaks(it));
        let Some(first) = asked_for.or_else(|| candidates.iter().position(speaks)) else {
            return Err(match operation {
                Some(_) => unspoken(&original, candidates).into(),
                None => original.unknown().into(),
            });
        };
        (self.first, self.current) = (first, first);
        self.asked = Asked::Original(Box::new(original));
        Ok(())
    }

    fn request(&mut self, attempt: &Run) -> Result<Request<ReplayBody>, BoxError> {
        let candidate = self.choices.candidates.get(self.current);
        let (Asked::Original(original), Some(candidate)) = (&mut self.asked, candidate) else {
            return match mem::replace(&mut self.asked, Asked::Nothing) {
                Asked::Plain(request) => Ok(*request),
                _ => Err("a request was sent more often than it was kept for".into()),
            };
        };
        let run_id = || HeaderValue::try_from(attempt.id().to_string()).ok();
        let run_id = candidate.is_trusted().then(run_id).flatten();
        let mut request = candidate.request(original, run_id)?;
        if let Some(limits) = candidate.own_limits() {
            // What the program says of this very request goes first.
            let of_request = request.extensions().get::<Limits>().copied();
            let limits = of_request.unwrap_or_default().or(limits);
            request.extensions_mut().insert(limits);
        }
        attempt.serve_by(Arc::clone(candidate), self.following().next().is_some());
        Ok(request)
    }

    /// The time that is left, shared among this candidate and those after it.
    fn limit(&self, attempt: &Run) {
        let Some(until) = attempt.node().next_deadline() else {
            return;
        };
        let others = self.following().count() as u64;
        if others > 0 {
            let opened = attempt.node().opened();
            let left = Duration::from_nanos(until).saturating_sub(opened);
            let share = left / u32::try_from(others + 1).unwrap_or(u32::MAX);
            attempt.node().clocks.tighten(Clock::Share, opened + share);
        }
    }

    fn hold(&self) -> Option<Duration> {
        self.choices.hold
    }

    fn streams(&self) -> bool {
        let prompt = self.original().and_then(Original::prompt);
        prompt.is_some_and(|prompt| prompt.stream())
    }

    fn trusts(&self) -> bool {
        self.candidate()
            .is_some_and(|candidate| candidate.is_trusted())
    }

    fn subject(&self) -> Option<&str> {
        self.candidate().map(|candidate| candidate.label())
    }

    fn next_subject(&self) -> Option<&str> {
        Some(self.choices.candidates.get(self.next?)?.label())
    }

    fn budget(&self) -> &RetryBudget {
        &self.choices.budget
    }

    fn worth(&mut self, failure: &Failure) -> Result<Duration, Denial> {
        match failure.class.other() {
            Other::No => Err(Denial::Class),
            Other::IfAllowed if !self.choices.allowed.contains(&failure.class) => {
                Err(Denial::Class)
            }
            _ => Ok(Duration::ZERO),
        }
    }

    fn left(&mut self, failure: &Failure) -> Result<(), Denial> {
        let current = self.candidate().ok_or(Denial::Spent)?;
        let suits = |other: &Candidate| match failure.class.other() {
            Other::Credential => !current.same_credential(other),
            Other::Provider => !current.same_provider(other),
            // One whose window is not known may be as small.
            Other::LargerWindow => other.window() > current.window() && current.window().is_some(),
            _ => true,
        };
        let next = self
            .following()
            .find(|&at| suits(&self.choices.candidates[at]));
        self.next = next;
        next.map(drop).ok_or(Denial::Spent)
    }

    fn spend(&mut self, _: &Failure, verdict: Verdict) -> Result<Option<Grant<'static>>, Denial> {
        // A key that is spent is spent with the candidate that failed so.
        if matches!(verdict, Verdict::RunSpent | Verdict::BothSpent) {
            return Err(Denial::Run);
        }
        self.current = self.next.take().ok_or(Denial::Spent)?;
        Ok(None)
    }

    fn answered(&self, answer: &mut Parts) {
        strip_hop(&mut answer.headers);
        let Some(served) = self.choices.served.get(self.current) else {
            return;
        };
        // A layer further in chose last.
        let is_told = answer.extensions.insert(Served).is_some();
        if let Some(model) = served.as_ref().filter(|_| !is_told) {
            answer.headers.insert(X_SERVED_MODEL, model.clone());
        }
    }

    fn release(&mut self) {
        self.asked = Asked::Nothing;
    }
}

fn unspoken(original: &Original, candidates: &[Arc<Candidate>]) -> InvalidRequest {
    let asked = original
        .operation()
        .map_or("any", |operation| CandidateDialect::of(operation).name());
    let mut spoken: Vec<_> = candidates.iter().map(|it| it.spoken().name()).collect();
    spoken.dedup();
    let names: Vec<_> = candidates.iter().map(|it| it.label()).collect();
    InvalidRequest::new(format!(
        "the request is in the {asked} dialect, and every candidate ({}) speaks {}",
        names.join(", "),
        spoken.join(" or ")
    ))
}
