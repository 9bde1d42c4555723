use std::{task::Context, time::Duration};

use bytes::Bytes;
use http::Extensions;

use super::{layer::ProgressLayer, outlet::Outlet};
use crate::{
    run::{PollScope, Run, RunNotice, Step, StepKind, WorkingNotices, nanos},
    supervise::TaskTimer,
};

/// Sends the notices of a slow call, and wakes its task for the next notice or keep-alive.
#[derive(Debug)]
pub(super) struct Pulse {
    pub(super) layer: ProgressLayer,
    /// The node that supplies the clock and the waiter.
    ///
    /// It is the node in the request, or a private node if the request has none.
    clock: Run,
    /// The call that gets the notices; `None` until the request or the response names it.
    call: Option<Run>,
    working: Option<WorkingNotices>,
    /// Whether the inner body has returned a frame since the last `Pending`.
    has_output: bool,
    /// Whether a check found the call ended, even if the inner service has not noticed yet.
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

    /// Takes the call from the response's extensions, if the request did not name it.
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

    /// Records that the caller gets a frame; `content` postpones the next notice.
    #[inline]
    pub(super) const fn hand_on(&mut self, content: bool) {
        self.has_output = true;
        if let (true, Some(working)) = (content, &mut self.working) {
            working.show();
        }
    }

    /// Stops the notices for good, because the caller has the complete response.
    pub(super) fn complete(&mut self) {
        self.working = None;
    }

    /// Whether the call is live; checks all deadlines at this instant, which may end the call.
    ///
    /// So a call that ends at this instant gets no notice that it goes on.
    pub(super) fn is_live(&mut self, scope: &PollScope) -> bool {
        let mut known = self.call.iter().chain([&self.clock]);
        self.is_over |= known.any(|run| scope.check(run).is_err());
        !self.is_over
    }

    /// Handles a `Pending` of the inner future or body, and sends a notice that is due.
    ///
    /// The method returns a comment for the caller to insert. Without one it sets the timer for
    /// the next notice or keep-alive, at `alarm` at the latest.
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
            // Return `Pending` once before the check of the deadlines, so that outer layers
            // record the frames of this poll first.
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
        // An ended call has nothing due; a timer in the past would wake the task in a loop.
        let next = next.filter(|_| !self.is_over);
        self.timer.wait(scope, &self.clock, next.map(nanos), cx);
        None
    }

    fn report(&self, notice: &RunNotice) {
        match &self.call {
            Some(call) => call.notify(notice),
            // Only the response head can name the call; until then the notice goes to the log
            // alone.
            None => tracing::debug!(target: "tower_agent", notice = notice.name(), "notice"),
        }
    }

    /// Stops the notices, and releases the timer and the waiter.
    #[inline]
    pub(super) fn release(&mut self) {
        self.working = None;
        self.timer.release(&self.clock);
    }
}
