//! The tries of a call: how many there were, and whom each went to.

use std::{
    any::Any,
    sync::{Arc, PoisonError, atomic::Ordering},
};

use crate::run::state::NodeState;

/// The upstream that an attempt goes to.
pub(crate) trait AttemptTarget: Any + Send + Sync + std::fmt::Debug {
    fn label(&self) -> &str;

    /// What it is, for those who know.
    fn as_any(&self) -> &dyn Any;
}

impl NodeState {
    /// How many tries this call has made.
    pub(in crate::run) fn tried(&self) -> u32 {
        self.tries().load(Ordering::Acquire)
    }

    /// Whom the last try of this call went to.
    pub(in crate::run) fn last_asked(&self) -> Option<Arc<str>> {
        let asked = self.asked().lock().unwrap_or_else(PoisonError::into_inner);
        asked.as_ref().map(|server| server.label().into())
    }
}
