use std::{task::Context, time::Duration};

use bytes::Bytes;
use http::Extensions;

use super::{layer::ProgressLayer, outlet::Outlet};
use crate::{
    run::{PollScope, Run, RunNotice, Step, StepKind, WorkingNotices, nanos},
    supervise::TaskTimer,
};

/// Notices and keep-alives of a call, from its start to the end of its body.
#[derive(Debug)]
pub(super) struct Pulse {
    pub(super) layer: ProgressLayer,
    /// The node that supplies clock and waiter.
    ///
    /// The node is the call, or a private node while the call is not known.
    clock: Run,
    /// The call that gets the notices, once it is known.
    call: Option<Run>,
    working: Option<WorkingNotices>,
    /// Whether the caller got something since the last `Pending`.
    has_output: bool,
    /// Whether the call has ended, which the inner service may not have noticed yet.
    is_over: bool,
    timer: TaskTimer,
}

impl Pulse {
    pub(super) fn new(found: Option<Run>, layer: &ProgressLayer) -> Self {
        if let Some(call) = &found {
            call.suggest_notices(layer.notices);
        }
        Self {
            layer: *layer,
            clock: found.clone().unwrap_or_else(Run::open),
            call: found,
            working: WorkingNotices::new(layer.notices),
            has_output: false,
            is_over: false,
            timer: TaskTimer::default(),
        }
    }

    /// Takes the call that an inner layer opened from the response.
    pub(super) fn learn(&mut self, answer: &Extensions) {
        if let (None, Some(call)) = (&self.call, answer.get::<Run>()) {
            call.suggest_notices(self.layer.notices);
            self.call = Some(call.clone());
        }
    }

    pub(super) const fn clock(&self) -> &Run {
        &self.clock
    }

    pub(super) const fn call(&self) -> Option<&Run> {
        self.call.as_ref()
    }

    pub(super) fn now(&self) -> Duration {
        PollScope::at(&self.clock)
    }

    /// Notes that the caller gets a frame, and whether it is content.
    #[inline]
    pub(super) const fn hand_on(&mut self, content: bool) {
        self.has_output = true;
        if let (true, Some(working)) = (content, &mut self.working) {
            working.show();
        }
    }

    /// Stops the notices, because the caller has the complete response.
    pub(super) fn complete(&mut self) {
        self.working = None;
    }

    /// Whether the call is live at this instant, by every clock.
    ///
    /// A call that ends at this instant gets no notice that it goes on.
    pub(super) fn is_live(&mut self, scope: &PollScope) -> bool {
        let mut known = self.call.iter().chain([&self.clock]);
        self.is_over |= known.any(|run| scope.check(run).is_err());
        !self.is_over
    }

    /// Handles a `Pending` of the inner future or body.
    ///
    /// The method returns a comment for the caller; else the task will be woken for the
    /// next one, at `alarm` at the latest.
    pub(super) fn pending(
        &mut self,
        scope: &PollScope,
        outlet: Option<&mut Outlet>,
        alarm: Option<Duration>,
        cx: &mut Context<'_>,
    ) -> Option<Bytes> {
        let now = self.now();
        let notice_at = self.working.as_ref().and_then(WorkingNotices::next);
        let comment_at = outlet.as_deref().and_then(Outlet::next);
        let is_due = notice_at.into_iter().chain(comment_at).any(|at| at <= now);
        if std::mem::take(&mut self.has_output) && is_due {
            // Outer layers must first note the frames of this poll, before this layer
            // checks the deadlines.
            cx.waker().wake_by_ref();
            return None;
        }
        let due = self.working.as_mut().and_then(|it| it.wait(now));
        let notice = due.filter(|_| self.is_live(scope)).map(|running_for| {
            let notice = RunNotice::working(Step::new(StepKind::LlmCall), running_for);
            self.report(&notice);
            notice
        });
        let message = match &notice {
            Some(RunNotice::Working { message, .. }) => Some(message.as_str()),
            _ => None,
        };
        let mut comment_at = None;
        if let Some(outlet) = outlet {
            let comment = outlet.wait(message, now);
            if comment.is_some() && self.is_live(scope) {
                return comment;
            }
            comment_at = outlet.next();
        }
        let notice_at = self.working.as_ref().and_then(WorkingNotices::next);
        let next = [alarm, notice_at, comment_at].into_iter().flatten().min();
        // An ended call has nothing due, so a timer would only wake the task in a loop.
        let next = next.filter(|_| !self.is_over);
        self.timer.wait(scope, &self.clock, next.map(nanos), cx);
        None
    }

    fn report(&self, notice: &RunNotice) {
        match &self.call {
            Some(call) => call.notify(notice),
            // The response head names the call; until then there is only the log.
            None => tracing::debug!(target: "tower_agent", notice = notice.name(), "notice"),
        }
    }

    /// Releases the timer and the waiter of the notices.
    #[inline]
    pub(super) fn release(&mut self) {
        self.working = None;
        self.timer.release(&self.clock);
    }
}
