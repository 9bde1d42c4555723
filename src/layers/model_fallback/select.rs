//! Plans the order of a request's candidates, and selects those that may be tried.
//!
//! Candidates in a cooldown are skipped, except for probes.

use std::sync::Arc;

use super::{
    cooldown::{CooldownState, Cooldowns, Keys},
    policy::FallbackPolicy,
    request::OriginalRequest,
    route::Route,
    sticky_sessions::digest_session,
};
#[cfg(feature = "metrics")]
use crate::run::AttemptTarget;
use crate::{
    attempt::{AttemptPolicy, Candidate, CandidateDialect, Denial},
    error::{BoxError, InvalidRequest},
    llm::failure::{ActiveCooldown, AllCandidatesCoolingDown, TryOther},
    run::{Run, RunId},
};

/// The maximum number of characters of a caller's model name in the log.
const MAX_LOGGED: usize = 256;

impl FallbackPolicy {
    /// Sets the route: the session's candidate, the named one, then the listed or all others.
    pub(super) fn plan(&mut self, own: &Run, listed: Option<Vec<usize>>) {
        let Some(original) = self.original() else {
            return;
        };
        let candidates = &self.settings.candidates;
        let (operation, model) = (original.operation(), self.model());
        let speaks = |at: &usize| candidates[*at].speaks(operation);
        let mut all = 0..candidates.len();
        let is_named = |at: &usize| model == Some(candidates[*at].label()) && speaks(at);
        let named = match &listed {
            // An empty list allows the named candidate only, or else the first that can serve.
            Some(listed) if listed.is_empty() => {
                let named = all.clone().find(is_named);
                named.or_else(|| all.find(speaks))
            }
            _ => all.find(is_named),
        };
        let sessions = self.settings.sessions.as_ref();
        // A form without a model that the layer can read is not sticky.
        let sessions = sessions.filter(|_| original.may_move());
        let session = sessions.and_then(|_| digest_session(own, model));
        let served = sessions.and_then(|sessions| sessions.find(session?));
        let mut route = Route::new(candidates.len(), listed);
        if let Some(named) = named {
            route.name(named);
        }
        if let Some(served) = served.filter(speaks) {
            route.prefer(served);
        }
        self.route = route;
        self.session = session;
    }

    pub(super) fn no_candidate_error(&self) -> BoxError {
        match self.original() {
            Some(original) if original.operation().is_some() => {
                let stops = self.route.stops();
                let asked: Vec<_> = stops.filter_map(|stop| self.candidate(stop)).collect();
                unspoken_dialect_error(original, &asked).into()
            }
            Some(original) => original.unknown_operation_error(),
            None => "a request was not read".into(),
        }
    }

    /// The candidate at a stop of the route.
    pub(super) fn candidate(&self, stop: usize) -> Option<&Arc<Candidate>> {
        self.settings.candidates.get(self.route.at(stop)?)
    }

    /// The stops with candidates that accept the request's dialect.
    pub(super) fn stops(&self) -> impl Iterator<Item = usize> {
        let operation = self.original().and_then(OriginalRequest::operation);
        let speaks = move |stop: &usize| {
            let candidate = self.candidate(*stop);
            candidate.is_some_and(|candidate| candidate.speaks(operation))
        };
        self.route.stops().filter(speaks)
    }

    /// The stops that may be tried; only the first of them if the body is a form of unknown model.
    fn suitable_stops(&self) -> impl Iterator<Item = usize> {
        let may_move = self.original().is_some_and(OriginalRequest::may_move);
        self.stops().take(if may_move { usize::MAX } else { 1 })
    }

    /// Whether only one candidate can serve the request.
    pub(super) fn is_sole(&self) -> bool {
        self.suitable_stops().nth(1).is_none()
    }

    /// The later stops that may be tried after the current one.
    pub(super) fn following(&self) -> impl Iterator<Item = usize> {
        self.suitable_stops()
            .filter(|stop| *stop > self.current && !self.is_ruled_out(*stop))
    }

    /// Whether a failure in this call showed that the stop's host or account, or a window of its
    /// size, cannot serve the call.
    fn is_ruled_out(&self, stop: usize) -> bool {
        self.failed.iter().any(|(failed, other)| {
            let pair = self.candidate(*failed).zip(self.candidate(stop));
            pair.is_some_and(|(failed, next)| match other {
                TryOther::Provider => failed.same_provider(next),
                TryOther::Credential => failed.same_credential(next),
                // A candidate without a known window may have one as small, so it is not tried.
                TryOther::LargerWindow => {
                    failed.window().is_none() || next.window() <= failed.window()
                }
                TryOther::OtherModel => failed.model() == next.model(),
                _ => false,
            })
        })
    }

    /// The later stops with candidates that are not in a cooldown, or are due for a probe.
    pub(super) fn able(&self) -> impl Iterator<Item = usize> {
        let is_cooling = |stop: &usize| matches!(self.state(*stop), CooldownState::Cooling { .. });
        self.following().filter(move |stop| !is_cooling(stop))
    }

    /// Selects the first stop that cooldowns allow; `first` is the first stop of all.
    ///
    /// # Errors
    ///
    /// A [`AllCandidatesCoolingDown`] if all candidates that could serve are in a cooldown, and no probe is due.
    pub(super) fn select_first(&mut self, first: usize) -> Result<(), AllCandidatesCoolingDown> {
        let open = self.suitable_stops().find(|stop| self.claim(*stop));
        let cooling = open.is_none().then(|| self.cooling());
        // A window may end between `claim` and `cooling`; the call then tries the first stop.
        let cooling = cooling.filter(|cooling| !cooling.candidates.is_empty());
        if let Some(cooling) = cooling {
            tracing::warn!(
                target: "tower_agent",
                run = self.run_id(),
                denied = Denial::Cooldown.as_str(),
                %cooling,
                "no further attempt"
            );
            return Err(cooling);
        }
        let open = open.unwrap_or(first);
        if open != first {
            self.report(first, open, "cooldown", "");
        }
        self.current = open;
        Ok(())
    }

    /// Whether the candidate at a stop may be tried now; a probe that is due is claimed.
    pub(super) fn claim(&self, stop: usize) -> bool {
        self.cooling_keys(stop)
            .is_none_or(|(cooldowns, keys)| cooldowns.claim(&keys))
    }

    fn state(&self, stop: usize) -> CooldownState {
        self.cooling_keys(stop)
            .map_or(CooldownState::Open, |(cooldowns, keys)| {
                cooldowns.state(&keys)
            })
    }

    /// The cooldowns, and the keys of the candidate at a stop; `None` if the layer has no cooldowns
    /// or no window is stored.
    fn cooling_keys(&self, stop: usize) -> Option<(&Cooldowns, Keys)> {
        let cooldowns = &self.settings.cooldowns.as_ref()?.handle;
        if cooldowns.is_empty() {
            return None;
        }
        Some((cooldowns, self.keys(stop)?))
    }

    /// The cooldown keys of the candidate at a stop; `None` without cooldowns, or at an empty stop.
    pub(super) fn keys(&self, stop: usize) -> Option<Keys> {
        let cooldowns = self.settings.cooldowns.as_ref()?;
        let original = self.original()?;
        cooldowns.keys(self.route.at(stop)?, original.head(), original.operation())
    }

    /// The candidates that could serve but are in a cooldown without a due probe, each with the
    /// time left.
    pub(super) fn cooling(&self) -> AllCandidatesCoolingDown {
        let cooling = self.suitable_stops().filter_map(|stop| {
            let CooldownState::Cooling { left, class } = self.state(stop) else {
                return None;
            };
            let candidate = self.candidate(stop)?.label().to_owned();
            Some(ActiveCooldown::new(candidate, left, class))
        });
        AllCandidatesCoolingDown::new(cooling.collect())
    }

    /// The model for logs, cut to `MAX_LOGGED` characters, as callers choose its length.
    fn logged_model(&self) -> Option<&str> {
        let model = self.model()?;
        let end = model.char_indices().nth(MAX_LOGGED).map(|(at, _)| at);
        Some(&model[..end.unwrap_or(model.len())])
    }

    /// Logs one event for a step from one candidate to another.
    pub(super) fn report(&self, from: usize, to: usize, why: &'static str, signal: &str) {
        #[cfg(feature = "metrics")]
        {
            let label = |stop| Some(AttemptTarget::label(&**self.candidate(stop)?));
            crate::metrics::fallback(label(from), label(to), why);
        }
        let label = |stop| self.candidate(stop).map(|candidate| candidate.label());
        let sent = self.candidate(to).map(|candidate| candidate.model());
        tracing::info!(
            target: "tower_agent",
            run = self.run_id(),
            from = label(from),
            to = label(to),
            why,
            signal,
            gen_ai.original.model = self.logged_model(),
            gen_ai.request.model = sent,
            "falling back"
        );
    }

    /// Logs, at debug level, which candidate serves the call.
    pub(super) fn log_served(&self) {
        let served = self.candidate(self.current);
        tracing::debug!(
            target: "tower_agent",
            run = self.run_id(),
            candidate = served.map(|served| served.label()),
            gen_ai.original.model = self.logged_model(),
            gen_ai.response.model = served.map(|served| served.model()),
            "candidate serves"
        );
    }

    fn run_id(&self) -> Option<tracing::field::DisplayValue<RunId>> {
        self.own
            .as_ref()
            .map(|own| tracing::field::display(own.id()))
    }
}

fn unspoken_dialect_error(
    original: &OriginalRequest,
    candidates: &[&Arc<Candidate>],
) -> InvalidRequest {
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

#[cfg(test)]
mod tests {
    use super::Route;

    fn order(route: &Route) -> Vec<usize> {
        let stops = route.stops();
        stops.filter_map(|stop| route.at(stop)).collect()
    }

    #[test]
    fn without_more_they_come_as_they_are_listed() {
        assert_eq!(order(&Route::new(3, None)), [0, 1, 2]);
        assert_eq!(order(&Route::new(0, None)), [0; 0]);
    }

    #[test]
    fn the_named_one_comes_first_and_once() {
        let mut route = Route::new(3, None);
        route.name(1);
        assert_eq!(order(&route), [1, 0, 2]);
    }

    #[test]
    fn the_preferred_one_comes_before_the_named_one() {
        let mut route = Route::new(3, None);
        route.name(1);
        route.prefer(2);
        assert_eq!(order(&route), [2, 1, 0]);
        route.prefer(1);
        assert_eq!(order(&route), [1, 0, 2]);
    }

    #[test]
    fn a_list_of_its_own_leaves_out_the_others() {
        let mut route = Route::new(4, Some(vec![3, 1]));
        route.prefer(0);
        assert_eq!(order(&route), [3, 1], "it is not on the way");
        route.name(0);
        route.prefer(0);
        assert_eq!(order(&route), [0, 3, 1]);
    }

    #[test]
    fn an_empty_list_leaves_the_named_one_alone() {
        let mut route = Route::new(4, Some(Vec::new()));
        assert_eq!(order(&route), [0; 0]);
        route.name(2);
        assert_eq!(order(&route), [2]);
    }
}
