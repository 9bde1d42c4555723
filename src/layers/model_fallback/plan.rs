//! Plans the candidates of a request before the first is asked.

use std::sync::Arc;

use super::{policy::FallbackPolicy, request::OriginalRequest, route::Route};
use crate::{
    attempt::{Candidate, CandidateDialect},
    error::{BoxError, InvalidRequest},
    run::Run,
};

impl FallbackPolicy {
    /// Sets the route: the session's candidate, the named one, then the others.
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
            // An empty list leaves the named candidate, or the first that can serve.
            Some(listed) if listed.is_empty() => {
                let named = all.clone().find(is_named);
                named.or_else(|| all.find(speaks))
            }
            _ => all.find(is_named),
        };
        let sessions = self.settings.sessions.as_ref();
        // The model in a form is not read, so a form has no session.
        let sessions = sessions.filter(|_| original.patchable());
        let session = sessions.and_then(|sessions| sessions.of(own, model));
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

    pub(super) fn unspoken(&self) -> BoxError {
        match self.original() {
            Some(original) if original.operation().is_some() => {
                let stops = self.route.stops();
                let asked: Vec<_> = stops.filter_map(|stop| self.candidate(stop)).collect();
                unspoken(original, &asked).into()
            }
            Some(original) => original.unknown().into(),
            None => "a request was not read".into(),
        }
    }
}

fn unspoken(original: &OriginalRequest, candidates: &[&Arc<Candidate>]) -> InvalidRequest {
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
