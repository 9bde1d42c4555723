//! Handles that keep nothing alive.

use std::sync::{Arc, Weak};

use super::Run;
use crate::run::{state::Info, tree::Node};

/// A run that somebody else keeps.
#[derive(Clone, Debug)]
pub(crate) struct WeakRun(Weak<Node<Info>>);

impl Run {
    pub(crate) fn downgrade(&self) -> WeakRun {
        WeakRun(Arc::downgrade(self.node()))
    }

    /// Tells one run from another.
    pub(crate) fn number(&self) -> u64 {
        self.node().number()
    }
}

impl WeakRun {
    /// The run, if it is there and goes on.
    pub(crate) fn live(&self) -> Option<Run> {
        let run = Run::of(self.0.upgrade()?);
        run.terminal_reason().is_none().then_some(run)
    }
}
