use std::{mem, sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, Request, response::Parts};

use super::{
    cooldown::{CooldownWatch, Cooled},
    order::CandidateOrder,
    request::OriginalRequest,
    route::Route,
    sticky::StickySessions,
};
use crate::{
    attempt::{AttemptPolicy, Candidate, Denial, Permit, RetryBudget, Serving, strip_hop},
    body::ReplayBody,
    error::BoxError,
    llm::failure::{Classifier, Failure, FailureClass, TryOther},
    run::{Clock, ErrorAllowance, Limits, Run},
};

const X_SERVED_MODEL: HeaderName = HeaderName::from_static("x-served-model");

/// On an answer: it says which candidate served.
#[derive(Clone, Copy, Debug)]
struct Served;

/// One request, made out to one candidate after the other.
#[derive(Debug)]
pub struct FallbackPolicy {
    pub(super) choices: Arc<FallbackSettings>,
    pub(super) own: Option<Run>,
    asked: PreparedRequest,
    pub(super) route: Route,
    /// Where the one stands that is being tried.
    pub(super) current: usize,
    /// Where the one stands that is next, once it was found.
    next: Option<usize>,
    /// What the request is remembered as, if its session stays with whom it is
    /// served by.
    pub(super) session: Option<u64>,
}

#[derive(Debug)]
enum PreparedRequest {
    /// Not read yet, or not needed any more.
    Nothing,
    /// There is no candidate: it passes as it is.
    Plain(Box<Request<ReplayBody>>),
    Original(Box<OriginalRequest>),
}

impl FallbackPolicy {
    pub(super) fn new(choices: Arc<FallbackSettings>) -> Self {
        Self {
            choices,
            own: None,
            asked: PreparedRequest::Nothing,
            route: Route::default(),
            current: 0,
            next: None,
            session: None,
        }
    }

    pub(super) const fn original(&self) -> Option<&OriginalRequest> {
        match &self.asked {
            PreparedRequest::Original(original) => Some(original),
            _ => None,
        }
    }
}

impl AttemptPolicy for FallbackPolicy {
    const MOVES: bool = true;

    fn begin(&mut self, own: &Run, mut request: Request<ReplayBody>) -> Result<(), BoxError> {
        self.choices.budget.limit_errors_of_call(own);
        let candidates = &self.choices.candidates;
        if candidates.is_empty() {
            self.asked = PreparedRequest::Plain(Box::new(request));
            return Ok(());
        }
        // It is this layer's: another further in knows other names.
        let listed = request.extensions_mut().remove::<CandidateOrder>();
        let listed = listed.map(|order| order.find(candidates)).transpose()?;
        self.asked = PreparedRequest::Original(Box::new(OriginalRequest::read(request)?));
        self.own = Some(own.clone());
        self.plan(own, listed);
        let first = self.stops().next();
        let first = first.ok_or_else(|| self.unspoken())?;
        self.set_out(first).map_err(Into::into)
    }

    fn request(&mut self, attempt: &Run) -> Result<Request<ReplayBody>, BoxError> {
        let candidate = self.route.at(self.current);
        let candidate = candidate.and_then(|at| self.choices.candidates.get(at));
        let (PreparedRequest::Original(original), Some(candidate)) = (&mut self.asked, candidate)
        else {
            return match mem::replace(&mut self.asked, PreparedRequest::Nothing) {
                PreparedRequest::Plain(request) => Ok(*request),
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
        attempt.set_candidate(Arc::clone(candidate), self.able().next().is_some());
        Ok(request)
    }

    /// The time that is left, shared among this candidate and those after it.
    fn limit(&self, attempt: &Run) {
        let Some(until) = attempt.node().next_deadline() else {
            return;
        };
        let others = self.able().count() as u64;
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
        let prompt = self.original().and_then(OriginalRequest::prompt);
        prompt.is_some_and(|prompt| prompt.stream())
    }

    fn trusts(&self) -> bool {
        self.candidate(self.current)
            .is_some_and(|candidate| candidate.is_trusted())
    }

    fn is_elsewhere(&self) -> bool {
        self.candidate(self.current)
            .is_some_and(|candidate| candidate.is_elsewhere())
    }

    fn subject(&self) -> Option<&str> {
        self.candidate(self.current)
            .map(|candidate| candidate.label())
    }

    fn next_subject(&self) -> Option<&str> {
        self.candidate(self.next?)
            .map(|candidate| candidate.label())
    }

    fn budget(&self) -> &RetryBudget {
        &self.choices.budget
    }

    fn judgement(&self) -> &Classifier {
        &self.choices.judgement
    }

    fn worth(&mut self, failure: &Failure) -> Result<Duration, Denial> {
        match failure.class.other() {
            TryOther::No => Err(Denial::Class),
            TryOther::IfAllowed if !self.choices.allowed.contains(&failure.class) => {
                Err(Denial::Class)
            }
            _ => Ok(Duration::ZERO),
        }
    }

    fn left(&mut self, failure: &Failure) -> Result<(), Denial> {
        let current = self.candidate(self.current).ok_or(Denial::Spent)?;
        let suits = |stop: &usize| {
            let other = self.candidate(*stop);
            other.is_some_and(|other| match failure.class.other() {
                TryOther::Credential => !current.same_credential(other),
                TryOther::Provider => !current.same_provider(other),
                // One whose window is not known may be as small.
                TryOther::LargerWindow => {
                    other.window() > current.window() && current.window().is_some()
                }
                _ => true,
            })
        };
        let suitable = || self.following().filter(suits);
        let next = suitable().find(|stop| self.claim(*stop));
        let denial = match suitable().next() {
            Some(_) => Denial::Cooldown,
            None => Denial::Spent,
        };
        self.next = next;
        next.map(drop).ok_or(denial)
    }

    fn spend(
        &mut self,
        failure: &Failure,
        verdict: ErrorAllowance,
    ) -> Result<Option<Permit<'static>>, Denial> {
        // A key that is spent is spent with the candidate that failed so.
        if matches!(
            verdict,
            ErrorAllowance::RunSpent | ErrorAllowance::BothSpent
        ) {
            return Err(Denial::Run);
        }
        let next = self.next.take().ok_or(Denial::Spent)?;
        self.report(self.current, next, failure.class.as_str());
        self.current = next;
        Ok(None)
    }

    fn failed(&mut self, failure: &Failure) {
        if let (Some(cooled), Some(keys)) = (&self.choices.cooled, self.keys(self.current)) {
            cooled.cooldowns.fail(&keys, failure);
        }
    }

    fn serves(&self, attempt: &Run) -> Option<Box<dyn Serving>> {
        self.tell_served();
        if let (Some(sessions), Some(session)) = (&self.choices.sessions, self.session) {
            if let Some(served) = self.route.at(self.current) {
                sessions.stay(session, served);
            }
        }
        let cooldowns = self.choices.cooled.as_ref()?.cooldowns.clone();
        let keys = self.keys(self.current)?;
        Some(Box::new(CooldownWatch::new(
            cooldowns,
            keys,
            attempt.elapsed(),
        )))
    }

    fn soonest(&self) -> Option<Duration> {
        let cooling = self.cooling();
        (!cooling.candidates.is_empty()).then(|| cooling.soonest())
    }

    fn answered(&self, answer: &mut Parts) {
        let Some(candidate) = self.candidate(self.current) else {
            // There is none: what the inner service says is the program's own.
            return strip_hop(&mut answer.headers);
        };
        candidate.strip_answer(&mut answer.headers);
        // A layer further in chose last.
        if answer.extensions.insert(Served).is_some() {
            return;
        }
        let at = self.route.at(self.current);
        match at.and_then(|at| self.choices.served.get(at)) {
            Some(Some(model)) => drop(answer.headers.insert(X_SERVED_MODEL, model.clone())),
            // Its name is none that a header can hold.
            _ => drop(answer.headers.remove(X_SERVED_MODEL)),
        }
    }

    fn release(&mut self) {
        self.asked = PreparedRequest::Nothing;
    }
}

/// What every call of a layer chooses from.
#[derive(Clone, Debug)]
pub(super) struct FallbackSettings {
    pub(super) candidates: Vec<Arc<Candidate>>,
    /// What callers are told of each, where a header can hold it.
    pub(super) served: Vec<Option<HeaderValue>>,
    pub(super) budget: RetryBudget,
    pub(super) judgement: Classifier,
    pub(super) hold: Option<Duration>,
    pub(super) allowed: Vec<FailureClass>,
    pub(super) cooled: Option<Cooled>,
    pub(super) sessions: Option<Arc<StickySessions>>,
}
