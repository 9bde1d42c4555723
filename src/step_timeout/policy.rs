use std::time::Duration;

use http::Request;

use crate::{
    body::{Policy, Seen, Tap},
    run::{Limits, ResetOn, Run, Silence, TaskId},
};

/// The windows of a layer, or of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    pub(super) first: Duration,
    step: Duration,
    pub(super) resets_on: ResetOn,
}

/// Measures silence towards one node.
#[derive(Debug)]
pub(crate) struct StepPolicy {
    windows: Windows,
    target: Run,
    silence: Silence,
    begun: bool,
}

impl Windows {
    pub(super) const fn new(window: Duration) -> Self {
        Self {
            first: window,
            step: window,
            resets_on: ResetOn::Content,
        }
    }

    /// With what the program set for this request in their place.
    pub(super) fn replaced_by<B>(mut self, request: &Request<B>) -> Self {
        if let Some(limits) = request.extensions().get::<Limits>() {
            if let Some(step) = limits.step.filter(|step| !step.is_zero()) {
                self.step = step;
                self.first = step;
            }
            if let Some(first) = limits.first.filter(|first| !first.is_zero()) {
                self.first = first;
            }
        }
        self
    }
}

impl StepPolicy {
    pub(super) const fn new(windows: Windows, target: Run) -> Self {
        Self {
            silence: Silence::new(windows.resets_on, windows.first),
            windows,
            target,
            begun: false,
        }
    }
}

impl Policy for StepPolicy {
    const READS: bool = true;

    fn pending(
        &mut self,
        found: &Run,
        tap: Option<&Tap>,
        now: Duration,
        task: TaskId,
    ) -> Option<Duration> {
        if !self.begun && tap.is_some_and(Tap::has_content) {
            self.begun = true;
            self.silence.set_length(self.windows.step);
        }
        self.silence.wait(found, &self.target, now, task)
    }

    fn frame(&mut self, found: &Run, seen: Option<Seen>) {
        let resets = match self.silence.resets_on() {
            ResetOn::AnyByte => true,
            ResetOn::Content => seen == Some(Seen::Progress),
            ResetOn::Step => false,
        };
        if resets {
            self.silence.reset();
        } else if self.silence.is_counting() {
            self.silence.interrupt(&self.target, found.now());
        }
    }

    fn failed(&mut self, _: &Run, now: Duration) {
        self.silence.expire(&self.target, now);
    }

    fn release(&mut self, _: &Run) {
        self.silence.close(&self.target);
    }
}
