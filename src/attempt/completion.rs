use std::panic::{AssertUnwindSafe, catch_unwind};

use super::policy::Serving;
use crate::{
    llm::failure::Classifier,
    run::{Run, TerminalReason},
    supervise::ResponseMarks,
};

/// The attempt that serves a call, and who wants to know what it comes to.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) attempt: Run,
    pub(super) serving: Box<dyn Serving>,
    /// What its stream says, and how that is judged.
    pub(super) judged: Option<ResponseMarks>,
    pub(super) judgement: Classifier,
}

impl Watched {
    /// It was dropped. What was ended from further out tells nothing of it.
    pub(super) fn over(self) {
        let node = self.attempt.node();
        let end = node.own_end().filter(|end| end.origin == node.number());
        if let Some(end) = end {
            let reason = match end.reason {
                TerminalReason::Failed(_) => self.ruled(),
                _ => None,
            };
            self.serving.over(reason.as_ref().unwrap_or(&end.reason));
        }
    }

    /// What it failed with if it said so itself: the program has rules for that
    /// which the attempt's node knows nothing of.
    fn ruled(&self) -> Option<TerminalReason> {
        let told = self.judged.as_ref()?.failure()?;
        // The rules are the program's, and this is a drop: one that panics must
        // not take the process along.
        let class = catch_unwind(AssertUnwindSafe(|| self.judgement.of_stream(told).class));
        Some(TerminalReason::Failed(class.ok()?))
    }
}
