//! Who on the way may be asked, and who is left alone.

use std::sync::Arc;

use super::{
    cooldown::{CooldownState, Keys},
    policy::FallbackPolicy,
    request::OriginalRequest,
};
use crate::{
    attempt::{Candidate, Denial},
    llm::failure::{Cooling, CoolingDown},
    run::RunId,
};

/// How many characters of a model's name are logged.
const LONGEST: usize = 256;

impl FallbackPolicy {
    /// Who stands at a stop of the route.
    pub(super) fn candidate(&self, stop: usize) -> Option<&Arc<Candidate>> {
        self.choices.candidates.get(self.route.at(stop)?)
    }

    /// The stops whose candidates understand the request.
    pub(super) fn stops(&self) -> impl Iterator<Item = usize> {
        let operation = self.original().and_then(OriginalRequest::operation);
        let speaks = move |stop: &usize| {
            let candidate = self.candidate(*stop);
            candidate.is_some_and(|candidate| candidate.speaks(operation))
        };
        self.route.stops().filter(speaks)
    }

    /// The same for all who may be asked at all: of a body that names its model
    /// itself, the first alone.
    fn open_to(&self) -> impl Iterator<Item = usize> {
        let most = if self.is_patchable() { usize::MAX } else { 1 };
        self.stops().take(most)
    }

    /// The stops behind the current one.
    pub(super) fn following(&self) -> impl Iterator<Item = usize> {
        self.open_to().filter(|stop| *stop > self.current)
    }

    /// The same, without those that are left alone.
    pub(super) fn able(&self) -> impl Iterator<Item = usize> {
        let is_left_alone =
            |stop: &usize| matches!(self.state(*stop), CooldownState::Cooling { .. });
        self.following().filter(move |stop| !is_left_alone(stop))
    }

    /// Goes to the first who is not left alone.
    pub(super) fn set_out(&mut self, first: usize) -> Result<(), CoolingDown> {
        let open = self.open_to().find(|stop| self.claim(*stop));
        let cooling = open.is_none().then(|| self.cooling());
        // A window may have ended between the two looks.
        let cooling = cooling.filter(|cooling| !cooling.candidates.is_empty());
        if let Some(cooling) = cooling {
            tracing::warn!(
                target: "tower_agent",
                run = self.run_id(),
                denied = Denial::Cooldown.as_str(),
                %cooling,
                "chain_stopped"
            );
            return Err(cooling);
        }
        let open = open.unwrap_or(first);
        if open != first {
            self.report(first, open, "cooldown");
        }
        self.current = open;
        Ok(())
    }

    /// Whether who stands at a stop may be asked now.
    pub(super) fn claim(&self, stop: usize) -> bool {
        let cooled = self.choices.cooled.as_ref();
        cooled.is_none_or(|cooled| {
            // Mostly nobody is left alone.
            let keys = (!cooled.cooldowns.is_empty()).then(|| self.keys(stop));
            let keys = keys.flatten();
            keys.is_none_or(|keys| cooled.cooldowns.claim(&keys))
        })
    }

    fn state(&self, stop: usize) -> CooldownState {
        let state = self.choices.cooled.as_ref().and_then(|cooled| {
            let keys = (!cooled.cooldowns.is_empty()).then(|| self.keys(stop));
            Some(cooled.cooldowns.state(&keys??))
        });
        state.unwrap_or(CooldownState::Open)
    }

    /// What who stands at a stop is called by the cooldowns.
    pub(super) fn keys(&self, stop: usize) -> Option<Keys> {
        let cooled = self.choices.cooled.as_ref()?;
        cooled.keys(self.route.at(stop)?, self.original()?.head())
    }

    /// All that could serve and are left alone.
    pub(super) fn cooling(&self) -> CoolingDown {
        let cooling = self.open_to().filter_map(|stop| {
            let CooldownState::Cooling { left, class } = self.state(stop) else {
                return None;
            };
            Some(Cooling {
                candidate: self.candidate(stop)?.label().to_owned(),
                left,
                class,
            })
        });
        let candidates = cooling.collect();
        CoolingDown { candidates }
    }

    /// What the caller asked for.
    pub(super) fn model(&self) -> Option<&str> {
        self.original()?.prompt()?.model()
    }

    /// The same for logs: a caller may write what it likes.
    fn logged_model(&self) -> Option<&str> {
        let model = self.model()?;
        let end = model.char_indices().nth(LONGEST).map(|(at, _)| at);
        Some(&model[..end.unwrap_or(model.len())])
    }

    /// One event for each step from one candidate to another.
    pub(super) fn report(&self, from: usize, to: usize, why: &str) {
        let label = |stop| self.candidate(stop).map(|candidate| candidate.label());
        let sent = self.candidate(to).map(|candidate| candidate.model());
        tracing::info!(
            target: "tower_agent",
            run = self.run_id(),
            from = label(from),
            to = label(to),
            why,
            gen_ai.original.model = self.logged_model(),
            gen_ai.request.model = sent,
            "model_fallback"
        );
    }

    /// One event for each call that is served.
    pub(super) fn tell_served(&self) {
        let served = self.candidate(self.current);
        tracing::debug!(
            target: "tower_agent",
            run = self.run_id(),
            candidate = served.map(|served| served.label()),
            gen_ai.original.model = self.logged_model(),
            gen_ai.response.model = served.map(|served| served.model()),
            "model_served"
        );
    }

    fn run_id(&self) -> Option<tracing::field::DisplayValue<RunId>> {
        self.own
            .as_ref()
            .map(|own| tracing::field::display(own.id()))
    }

    /// Whether the request can be made out to another model.
    fn is_patchable(&self) -> bool {
        self.original().is_some_and(OriginalRequest::patchable)
    }
}
