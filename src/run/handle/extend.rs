//! Raises the limits of a run that goes on.

use super::Run;
use crate::run::{
    limits::{Raised, RunAdjustments, RunExtension},
    report::Terminated,
    state::NodeState,
    tree::Node,
};

impl Run {
    /// Raises the limits of the nearest run by so much: for an operator, as often as need be.
    ///
    /// A run that has reached a cap is counted from its present use: ten more turns are ten more
    /// turns, also if other replicas took some beyond the cap. What is added stands in the run, and
    /// so holds whichever layer caps the next request, and for a cap or a deadline that is set later.
    /// [`snapshot`](Self::snapshot) shows the raised caps. Limits of sub-agents, of calls and of the
    /// run's owner stay, and so do deadlines that a caller announced. A run that is
    /// [paused](crate::run::PauseAtCap) at a cap goes on if it may now do more.
    ///
    /// If the registry is [shared](crate::RunRegistry::share), the extension holds at this replica, and at
    /// others from their next request of the run on that asks the store. Turns that wait there are not
    /// woken: have each other replica take over the sums for that, by [`adjust_to`](Self::adjust_to).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use tower_agent::{Run, RunExtension, TerminalReason};
    ///
    /// let run = Run::open();
    /// run.extend(RunExtension::new().turns(10)).unwrap();
    ///
    /// run.end(TerminalReason::Aborted);
    /// let refused = run.extend(RunExtension::new().turns(10)).unwrap_err();
    /// assert_eq!(refused.reason, TerminalReason::Aborted);
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The method fails, and raises nothing, if the run has ended, if a deadline of it has passed by
    /// now, or if it is closing, as at a cap with calls under way: an extension opens it no more.
    #[allow(
        clippy::result_large_err,
        reason = "the cold path, and the type of every layer"
    )]
    pub fn extend(&self, by: RunExtension) -> Result<(), Terminated> {
        let run = self.run();
        run.check()?;
        let node = run.node();
        if let Some(turns) = by.turns.filter(|turns| *turns > 0) {
            node.extend_turns(turns);
            node.go_on_with_turns();
        }
        if by.tokens.is_some() || by.cost.is_some() {
            node.extend_tokens(&by);
            node.go_on_below_caps();
        }
        if let Some(time) = by.time {
            node.extend(time);
        }
        node.tell_adjusted();
        Ok(())
    }

    /// What was added to the limits of the nearest run so far, and whether it is
    /// [suspended](Self::suspend).
    #[must_use]
    pub fn adjustments(&self) -> RunAdjustments {
        self.run().node().adjustments()
    }

    /// Raises the limits of the nearest run until what was added comes to these sums, where it is less:
    /// for an operator who has [extended](Self::extend) the run at another replica.
    ///
    /// The replica may have got the same sums from the store already. Another `extend` would count twice
    /// then; this method may be called as often as need be. Whether the run is suspended stays as it is.
    ///
    /// ```
    /// use tower_agent::{Run, RunExtension};
    ///
    /// let (here, elsewhere) = (Run::open(), Run::open());
    /// here.extend(RunExtension::new().turns(10)).unwrap();
    ///
    /// elsewhere.adjust_to(&here.adjustments()).unwrap();
    /// elsewhere.adjust_to(&here.adjustments()).unwrap();
    /// assert_eq!(elsewhere.adjustments().turns, 10);
    /// ```
    ///
    /// # Errors
    ///
    /// As those of [`extend`](Self::extend).
    #[allow(
        clippy::result_large_err,
        reason = "the cold path, and the type of every layer"
    )]
    pub fn adjust_to(&self, sums: &RunAdjustments) -> Result<(), Terminated> {
        let run = self.run();
        run.check()?;
        run.node().adjust_to(sums);
        run.node().tell_adjusted();
        Ok(())
    }
}

impl Node<NodeState> {
    /// What was changed about this run so far.
    fn adjustments(&self) -> RunAdjustments {
        let rare = self.payload.rare_if_any();
        let tokens = self.tokens_if_any();
        RunAdjustments::of(
            self.added_turns(),
            &tokens.map_or(Raised::NONE, |tokens| tokens.raised()),
            self.extended(),
            rare.is_some_and(|rare| rare.pauses.is_suspended()),
        )
    }

    /// Takes over what was added elsewhere, beyond what was added here.
    pub(crate) fn adjust_to(&self, elsewhere: &RunAdjustments) {
        if *elsewhere == RunAdjustments::default() {
            return;
        }
        let rare = self.run_state().rare();
        if elsewhere.turns > 0 {
            let mut count = rare.turns.lock();
            let is_more = elsewhere.turns > count.added;
            count.added = count.added.max(elsewhere.turns);
            drop(count);
            if is_more {
                self.go_on_with_turns();
            }
        }
        let has_tokens = elsewhere.output_tokens > 0 || elsewhere.total_tokens > 0;
        if (has_tokens || elsewhere.cost > 0.0) && rare.tokens().extend_to(elsewhere) {
            self.go_on_below_caps();
        }
        self.extend_to(elsewhere.time);
    }

    /// Tells the other replicas what was added to the limits of this run.
    fn tell_adjusted(&self) {
        if let Some(part) = self.shared() {
            part.tell_adjusted(|| (self.adjustments(), None));
        }
    }

    /// Tells the other replicas whether this run is suspended, too.
    pub(super) fn tell_suspension(&self) {
        if let Some(part) = self.shared() {
            part.tell_adjusted(|| {
                let adjusted = self.adjustments();
                (adjusted, Some(adjusted.suspended))
            });
        }
    }

    /// Tells what was changed to a store that knows of nothing, if there is anything.
    pub(crate) fn tell_adjustments_again(&self) {
        let adjusted = self.adjustments();
        if adjusted.suspended {
            self.tell_suspension();
        } else if adjusted != RunAdjustments::default() {
            self.tell_adjusted();
        }
    }

    /// The turns that were added to the cap of this run.
    pub(crate) fn added_turns(&self) -> u32 {
        let rare = self.payload.rare_if_any();
        rare.map_or(0, |rare| rare.turns.lock().added)
    }

    /// Adds so many turns to the cap on the turns of this run.
    fn extend_turns(&self, turns: u32) {
        let rare = self.run_state().rare();
        let elsewhere = rare.shared().map_or(0, |shared| shared.turns_elsewhere());
        let mut count = rare.turns.lock();
        let taken = count.taken.saturating_add(elsewhere);
        count.extend(turns, taken);
    }
}
