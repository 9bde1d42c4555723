use std::{task::Context, time::Duration};

use bytes::Bytes;
use http::Extensions;

use super::{layer::ProgressLayer, outlet::Outlet};
use crate::{
    run::{PollScope, Run, RunNotice, Step, StepKind, WorkingNotices, nanos},
    supervise::TaskTimer,
};

/// What goes on beside a call, from its start to the end of its body.
#[derive(Debug)]
pub(super) struct Pulse {
    pub(super) layer: ProgressLayer,
    /// Whose clock and waiters are used: the call, or if it is not known yet a
    /// node that nobody else ever sees.
    clock: Run,
    /// Who is told.
    call: Option<Run>,
    working: Option<WorkingNotices>,
    /// Something was handed on since nothing came from below.
    handed: bool,
    /// The call was seen to be over: what is inside has not noticed yet.
    over: bool,
    drive: TaskTimer,
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
            handed: false,
            over: false,
            drive: TaskTimer::default(),
        }
    }

    /// A layer further in may have opened the call.
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

    pub(super) fn now(&self, turn: &PollScope) -> Duration {
        self.clock.at(turn.now())
    }

    /// Something is handed to the caller, and whether that is content.
    #[inline]
    pub(super) const fn hand_on(&mut self, content: bool) {
        self.handed = true;
        if let (true, Some(working)) = (content, &mut self.working) {
            working.show();
        }
    }

    /// The answer was handed on whole: there is nothing more to tell.
    pub(super) fn complete(&mut self) {
        self.working = None;
    }

    /// Whether the call is not over at this instant, by any clock: what ends now
    /// is told of as ended, and not as going on.
    pub(super) fn is_live(&mut self, turn: &PollScope) -> bool {
        let mut known = self.call.iter().chain([&self.clock]);
        self.over |= known.any(|run| turn.check(run).is_err());
        !self.over
    }

    /// Everything below is pending. Answers a comment for the caller, or sees to
    /// it that the task is polled again in time, at `alarm` at the latest.
    pub(super) fn pending(
        &mut self,
        turn: &PollScope,
        outlet: Option<&mut Outlet>,
        alarm: Option<Duration>,
        cx: &mut Context<'_>,
    ) -> Option<Bytes> {
        let now = self.now(turn);
        let tells = self.working.as_ref().and_then(WorkingNotices::next);
        let sends = outlet.as_deref().and_then(Outlet::next);
        let is_due = tells.into_iter().chain(sends).any(|at| at <= now);
        if std::mem::take(&mut self.handed) && is_due {
            // Who measures further out is to note that first, before the clocks are
            // looked at here.
            cx.waker().wake_by_ref();
            return None;
        }
        let due = self.working.as_mut().and_then(|it| it.wait(now));
        let notice = due.filter(|_| self.is_live(turn)).map(|running_for| {
            let notice = RunNotice::working(Step::new(StepKind::LlmCall), running_for);
            self.report(&notice);
            notice
        });
        let message = match &notice {
            Some(RunNotice::Working { message, .. }) => Some(message.as_str()),
            _ => None,
        };
        let mut sends = None;
        if let Some(outlet) = outlet {
            let comment = outlet.wait(message, now);
            if comment.is_some() && self.is_live(turn) {
                return comment;
            }
            sends = outlet.next();
        }
        let tells = self.working.as_ref().and_then(WorkingNotices::next);
        let next = [alarm, tells, sends].into_iter().flatten().min();
        // Nothing is due any more: to look again would be to look for ever.
        let next = next.filter(|_| !self.over);
        self.drive.wait(turn, &self.clock, next.map(nanos), cx);
        None
    }

    fn report(&self, notice: &RunNotice) {
        match &self.call {
            Some(call) => call.notify(notice),
            // Whose it is will be known with the head.
            None => tracing::debug!(target: "tower_agent", notice = notice.name(), "notice"),
        }
    }

    /// Nothing more is waited for.
    #[inline]
    pub(super) fn release(&mut self) {
        self.working = None;
        self.drive.release(&self.clock);
    }
}
