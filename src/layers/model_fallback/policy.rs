use std::{mem, sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, Request, StatusCode, response::Parts};

use super::{
    cooldown::{CooldownWatch, Witness, digest_owner, digest_prompt},
    quoted_words,
    request::OriginalRequest,
    route::{CandidateOrder, Route},
    settings::FallbackSettings,
};
use crate::{
    attempt::{
        AttemptPolicy, AttemptSettings, Candidate, CompletionObserver, Denial, Operation, Permit,
        number_value, strip_hop,
    },
    body::ReplayBody,
    error::BoxError,
    headers::X_ATTEMPT,
    llm::{
        AfterFinish,
        failure::{Failure, FailureClass, TryOther},
        may_be_empty,
    },
    run::{ErrorAllowance, Limits, Run},
};

/// The headers that name the model and the candidate that served.
const SERVED: [HeaderName; 2] = [
    HeaderName::from_static("x-served-model"),
    HeaderName::from_static("x-served-candidate"),
];

/// An extension of an answer: a fallback layer has set or removed the headers of [`SERVED`].
#[derive(Clone, Copy, Debug)]
struct Served;

/// The attempt policy that sends one request to one candidate after another.
#[derive(Debug)]
pub struct FallbackPolicy {
    pub(super) settings: Arc<FallbackSettings>,
    pub(super) own: Option<Run>,
    request: PreparedRequest,
    pub(super) route: Route,
    /// The stop of the route with the candidate that is being tried.
    pub(super) current: usize,
    /// The route's stop that `find_next` chose for the next attempt; else `None`.
    next: Option<usize>,
    /// The stops that failed in this call, each with the kind of stops that may follow it.
    pub(super) failed: Vec<(usize, TryOther)>,
    /// The digest of the request's session; `None` without a session, or if the layer is not
    /// sticky.
    pub(super) session: Option<u64>,
}

#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "a box would be one more allocation of each call"
)]
enum PreparedRequest {
    /// The policy holds no request.
    ///
    /// None is held before `begin`, after a `begin` that failed before it stored one, and after
    /// `release`. A call of `request` without a candidate leaves none either: it hands out a plain
    /// request, and drops any other.
    Nothing,
    /// The unchanged request, if the layer has no candidates.
    Plain(Request<ReplayBody>),
    Original(OriginalRequest),
}

impl FallbackPolicy {
    pub(super) fn new(settings: Arc<FallbackSettings>) -> Self {
        Self {
            settings,
            own: None,
            request: PreparedRequest::Nothing,
            route: Route::default(),
            current: 0,
            next: None,
            failed: Vec::new(),
            session: None,
        }
    }

    pub(super) const fn original(&self) -> Option<&OriginalRequest> {
        match &self.request {
            PreparedRequest::Original(original) => Some(original),
            _ => None,
        }
    }
}

impl FallbackPolicy {
    /// Which other candidate is worth a try after this failure of this call.
    fn other(&self, failure: &Failure) -> TryOther {
        let operation = self.original().and_then(OriginalRequest::operation);
        let is_optional = matches!(
            operation,
            Some(Operation::CountTokens | Operation::Embeddings)
        );
        // Many upstreams offer no such operation, and answer as they do at any unknown path.
        match failure.class {
            FailureClass::Caller
                if is_optional && failure.status == Some(StatusCode::NOT_FOUND) =>
            {
                TryOther::Yes
            }
            _ => failure.fallback(),
        }
    }

    /// The call as a witness of what its upstream says; `None` if these words may be quoted from
    /// the call's request.
    fn witness(&self, words: &str) -> Option<Witness> {
        let original = self.original()?;
        let (head, body) = (original.head(), original.body());
        if quoted_words::may_contain(head, body, words) {
            return None;
        }
        let owner = self.own.as_ref().and_then(Run::owner_digest);
        Some(Witness {
            owner: owner.unwrap_or_else(|| digest_owner(&head.headers)),
            prompt: digest_prompt(body),
        })
    }
}

impl AttemptPolicy for FallbackPolicy {
    const MOVES: bool = true;

    fn settings(&self) -> &AttemptSettings {
        &self.settings.attempts
    }

    fn begin(&mut self, own: &Run, mut request: Request<ReplayBody>) -> Result<(), BoxError> {
        self.settings.attempts.budget.limit_errors_of_call(own);
        let candidates = &self.settings.candidates;
        if candidates.is_empty() {
            self.request = PreparedRequest::Plain(request);
            return Ok(());
        }
        // Remove the order: a fallback layer further in has candidates of other names.
        let listed = request.extensions_mut().remove::<CandidateOrder>();
        let listed = listed.map(|order| order.find(candidates)).transpose()?;
        let mut original = OriginalRequest::read(request, self.settings.operation)?;
        original.set_names_model(self.settings.default_model);
        if self.settings.json_only {
            original.check_body()?;
        }
        if let Some(cooldowns) = &self.settings.cooldowns {
            let owner = own.owner_digest();
            let owner = owner.unwrap_or_else(|| digest_owner(&original.head().headers));
            cooldowns.handle.note_owner(owner);
        }
        self.request = PreparedRequest::Original(original);
        self.own = Some(own.clone());
        self.plan(own, listed);
        let first = self.stops().next();
        let first = first.ok_or_else(|| self.no_candidate_error())?;
        self.select_first(first).map_err(Into::into)
    }

    fn request(&mut self, attempt: &Run, number: u32) -> Result<Request<ReplayBody>, BoxError> {
        let has_others = self.able().next().is_some();
        // With cooldowns the head stays: after the attempt, cooldown keys are made from it.
        let is_last = self.settings.cooldowns.is_none() && !has_others;
        let candidate = self.route.at(self.current);
        let candidate = candidate.and_then(|at| self.settings.candidates.get(at));
        let (PreparedRequest::Original(original), Some(candidate)) = (&mut self.request, candidate)
        else {
            return match mem::replace(&mut self.request, PreparedRequest::Nothing) {
                PreparedRequest::Plain(mut request) => {
                    let number = number_value(number);
                    request.headers_mut().insert(X_ATTEMPT, number);
                    Ok(request)
                }
                _ => Err("request was already consumed".into()),
            };
        };
        let run_id = || HeaderValue::try_from(attempt.id().to_string()).ok();
        let run_id = candidate.is_trusted().then(run_id).flatten();
        original.prepare(number, is_last);
        let mut request = candidate.request(original, run_id)?;
        if let Some(limits) = candidate.own_limits() {
            // The program's limits for this request take precedence over those of the candidate.
            let of_request = request.extensions().get::<Limits>().copied();
            let limits = of_request.unwrap_or_default().or(limits);
            request.extensions_mut().insert(limits);
        }
        attempt
            .attempts()
            .set_candidate(Arc::clone(candidate), has_others);
        Ok(request)
    }

    /// Limits the attempt to its share of the time left, if there is a deadline and another
    /// candidate.
    fn limit(&self, attempt: &Run) {
        if !self.settings.shares {
            return;
        }
        let Some(until) = attempt.node().next_deadline() else {
            return;
        };
        let others = self.able().count() as u64;
        if others > 0 {
            let opened = attempt.node().opened();
            let left = Duration::from_nanos(until).saturating_sub(opened);
            let share = left / u32::try_from(others + 1).unwrap_or(u32::MAX);
            attempt.node().limit_share(opened + share);
        }
    }

    fn streams(&self) -> bool {
        self.original().is_some_and(OriginalRequest::streams)
    }

    fn after_finish(&self) -> AfterFinish {
        let original = self.original();
        original.map_or(AfterFinish::Unknown, |it| AfterFinish::of([it.body()]))
    }

    fn asks_for_content(&self) -> bool {
        let original = self.original();
        original.is_some_and(|original| original.is_post() && !may_be_empty(original.body()))
    }

    fn model(&self) -> Option<&str> {
        self.original()?.model()
    }

    fn current_candidate(&self) -> Option<&Candidate> {
        self.candidate(self.current).map(|candidate| &**candidate)
    }

    fn next_subject(&self) -> Option<&str> {
        self.candidate(self.next?)
            .map(|candidate| candidate.label())
    }

    fn retry_delay(&mut self, failure: &Failure) -> Result<Duration, Denial> {
        match self.other(failure) {
            TryOther::No => Err(Denial::Class),
            TryOther::IfAllowed if !self.settings.allowed.contains(&failure.class) => {
                Err(Denial::Class)
            }
            _ => Ok(Duration::ZERO),
        }
    }

    fn find_next(&mut self, failure: &Failure) -> Result<(), Denial> {
        let other = match (failure.class, self.other(failure)) {
            // The same model refuses the same content with any key.
            (FailureClass::ContentFilter, TryOther::IfAllowed) => TryOther::OtherModel,
            (_, other) => other,
        };
        self.failed.push((self.current, other));
        let next = self.following().find(|stop| self.claim(*stop));
        self.next = next;
        match (next, self.following().next()) {
            (Some(_), _) => Ok(()),
            (None, Some(_)) => Err(Denial::Cooldown),
            (None, None) => Err(Denial::NoCandidate),
        }
    }

    fn take_next(
        &mut self,
        failure: &Failure,
        allowance: ErrorAllowance,
    ) -> Result<Option<Permit<'static>>, Denial> {
        // `KeySpent` does not deny: the key is that of the failed candidate, and another candidate
        // follows.
        if matches!(
            allowance,
            ErrorAllowance::RunSpent | ErrorAllowance::BothSpent
        ) {
            return Err(Denial::Run);
        }
        let next = self.next.take().ok_or(Denial::NoCandidate)?;
        self.report(self.current, next, failure.class.as_str(), failure.signal());
        self.current = next;
        Ok(None)
    }

    fn note_failure(&mut self, failure: &Failure) {
        if let (Some(cooldowns), Some(keys)) = (&self.settings.cooldowns, self.keys(self.current)) {
            let witness = |words: &str| self.witness(words);
            cooldowns
                .handle
                .fail(&keys, failure, self.is_sole(), witness);
        }
    }

    fn note_served(&self, attempt: &Run) -> Option<Box<dyn CompletionObserver>> {
        self.log_served();
        if let (Some(sessions), Some(session)) = (&self.settings.sessions, self.session) {
            if let (Some(served), Some(own)) = (self.route.at(self.current), &self.own) {
                sessions.serve(session, served, own);
            }
        }
        let cooldowns = self.settings.cooldowns.as_ref()?.handle.clone();
        let keys = self.keys(self.current)?;
        Some(Box::new(CooldownWatch::new(
            cooldowns,
            keys,
            attempt.elapsed(),
            // The exact answer, which `is_sole` has, would cost each call that is served.
            self.settings.candidates.len() == 1,
        )))
    }

    fn earliest_retry(&self) -> Option<Duration> {
        let cooling = self.cooling();
        (!cooling.candidates.is_empty()).then(|| cooling.soonest())
    }

    fn rewrite_answer(&self, answer: &mut Parts) {
        let Some(candidate) = self.candidate(self.current) else {
            // Without candidates the answer comes from the program's own upstream, which may set
            // any header of the server: remove only the hop-by-hop headers.
            return strip_hop(&mut answer.headers);
        };
        candidate.strip_answer(&mut answer.headers);
        // An inner layer has chosen the candidate that served, so its headers stay.
        if answer.extensions.insert(Served).is_some() {
            return;
        }
        let at = self.route.at(self.current);
        let served = at.and_then(|at| self.settings.served.get(at));
        let [model, label] = served.map_or([None, None], |[model, label]| {
            [model.as_ref(), label.as_ref()]
        });
        let [of_model, of_candidate] = SERVED;
        match model {
            Some(model) => drop(answer.headers.insert(of_model, model.clone())),
            // The name has bytes that a header cannot hold.
            None => drop(answer.headers.remove(of_model)),
        }
        match label {
            Some(label) => drop(answer.headers.insert(of_candidate, label.clone())),
            None => drop(answer.headers.remove(of_candidate)),
        }
    }

    fn release(&mut self) {
        self.request = PreparedRequest::Nothing;
    }
}
