use std::sync::{MutexGuard, PoisonError, atomic::Ordering};

use super::NodeState;
use crate::run::kinds::Step;

/// What was done last, and what of it moved the run.
#[derive(Debug, Default)]
pub(in crate::run) struct Steps {
    last: Option<Step>,
    /// Whether the last one did.
    moved: bool,
    /// The latest that did, if the last one did not.
    change: Option<Step>,
}

impl NodeState {
    /// Remembers what was done last. A step that says nothing about itself
    /// leaves one that did.
    pub(crate) fn set_step(&self, step: Step) {
        self.lock_steps().set(step, false);
    }

    /// The same for a step that moved the run.
    pub(crate) fn set_change(&self, step: Step) {
        self.lock_steps().set(step, true);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Something below was done, which was said already if it was said at all.
    pub(crate) fn record_child_done(&self, done: Step) {
        let mut steps = self.lock_steps();
        match &steps.last {
            Some(last) if last.kind() == done.kind() => steps.moved = true,
            _ => {
                steps.moved = false;
                steps.change = Some(done);
            }
        }
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn step(&self) -> Option<Step> {
        self.lock_steps().last.clone()
    }

    /// What moved the run last.
    pub(crate) fn change(&self) -> Option<Step> {
        let steps = self.lock_steps();
        let change = if steps.moved {
            &steps.last
        } else {
            &steps.change
        };
        change.clone()
    }

    fn lock_steps(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Steps {
    fn set(&mut self, step: Step, moved: bool) {
        if step.has_detail() || self.last.as_ref().is_none_or(|last| !last.has_detail()) {
            let before = self.last.replace(step);
            if std::mem::replace(&mut self.moved, moved) {
                self.change = before;
            }
        } else if moved {
            self.moved = false;
            self.change = Some(step);
        }
    }
}
