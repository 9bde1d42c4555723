use super::{budget::RetryBudget, settings::Count};
use crate::run::Run;

impl Run {
    /// Limits how many errors the nearest run may make, in all, in a row and of one kind:
    /// what `budget` says, and never more than a budget said before. The layers
    /// do it for a run of calls; this is for one of tools alone.
    pub fn limit_errors(&self, budget: &RetryBudget) {
        let settings = budget.settings();
        self.tighten_errors(
            settings.per_error_key,
            settings.per_run,
            settings.consecutive_errors,
        );
    }

    /// The same for a call of the run.
    pub(crate) fn limit_errors_of_call(&self, budget: &RetryBudget) {
        // A run that is one call is over with the first failure that reaches it.
        let counts = budget.settings().count == Count::Every;
        if counts || !self.is_single() {
            self.limit_errors(budget);
        }
    }
}
