use super::Serving;
use crate::run::Run;

/// The attempt that serves a call, and who wants to know what it comes to.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) attempt: Run,
    pub(super) serving: Box<dyn Serving>,
}

impl Watched {
    /// It was dropped. What was ended from further out tells nothing of it.
    pub(super) fn over(self) {
        let node = self.attempt.node();
        let end = node.own_end().filter(|end| end.origin == node.number());
        if let Some(end) = end {
            self.serving.over(&end.reason);
        }
    }
}
