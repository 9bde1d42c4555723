//! The state of one layer for one call, and its work at each poll.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::LengthLimitError;

use super::{
    layer_settings::LayerSettings,
    observer::{Observer, ResponseFacts},
    timer::TaskTimer,
};
use crate::{
    error::{BoxError, InvalidRequest, RequestCut, chain},
    llm::{
        WholeAnswer,
        dialect::Truncated,
        failure::{Failure, FailureClass},
    },
    run::{
        NEVER, Nanos, NodeKind, PollScope, ReasonClass, Role, Run, RunPaused, Step, StepKind,
        TaskId, TerminalReason, Terminated, nanos,
    },
};

/// The number of ready frames in a row at which an enforcer checks the deadlines.
const READY_FRAMES: u8 = 16;

/// The state of one layer for one call: first in the response future, then in the body.
#[derive(Debug)]
pub(crate) struct SupervisedCall {
    pub(super) run: Run,
    pub(super) settings: LayerSettings,
    reader: ResponseReader,
    settles: bool,
    /// Whether the body has ended, so that its drop settles the node; only with settings that
    /// defer.
    ended: bool,
    ready: u8,
    /// Whether the layer's window or hooks need the next frame. They do after each `Pending`, until
    /// a frame comes after which they need no more.
    needs_frame: bool,
    timer: TaskTimer,
}

/// The stage of a layer that reads the response: off, before the head, or in the body.
#[derive(Debug)]
enum ResponseReader {
    /// The layer neither reads responses nor settles the node.
    Off,
    /// The head of the response has not arrived.
    Head(ResponseFacts),
    Body(Observer),
}

impl ResponseReader {
    const fn observer(&self) -> Option<&Observer> {
        match self {
            Self::Body(observer) => Some(observer),
            _ => None,
        }
    }

    const fn observer_mut(&mut self) -> Option<&mut Observer> {
        match self {
            Self::Body(observer) => Some(observer),
            _ => None,
        }
    }
}

/// Why the layer stops a body.
#[derive(Debug)]
pub(super) enum StopCause {
    /// The inner body ended cleanly.
    Ended,
    /// The inner body ended cleanly, but without the terminator of its dialect.
    Cut(Truncated),
    /// The inner body failed.
    Failed,
    /// The node has ended.
    Over,
}

impl SupervisedCall {
    #[inline]
    pub(super) fn new<B>(
        claim: super::claim::Claim,
        settings: LayerSettings,
        request: &Request<B>,
    ) -> Self {
        #[cfg(feature = "metrics")]
        if claim.settles {
            let node = claim.run.node();
            node.name_operation(|| super::operation_of(request));
        }
        let reader = if settings.reads || claim.settles {
            ResponseReader::Head(ResponseFacts::of(request))
        } else {
            ResponseReader::Off
        };
        Self {
            run: claim.run,
            settings,
            reader,
            settles: claim.settles,
            ended: false,
            ready: 0,
            needs_frame: false,
            timer: TaskTimer::default(),
        }
    }

    /// Handles the head of the response, which the caller gets next.
    ///
    /// A layer that reads responses or settles the node starts to observe the body. After that, any
    /// layer may edit the headers.
    #[inline]
    pub(super) fn answered<B: Body>(&mut self, answer: &mut Response<B>) {
        #[cfg(feature = "metrics")]
        self.count_outcome(|_| crate::metrics::outcome_of(answer.status()));
        if let ResponseReader::Head(facts) = &mut self.reader {
            let facts = std::mem::take(facts);
            let observer = Observer::new(facts, answer, &self.run);
            self.reader = ResponseReader::Body(observer);
        }
        if self.settings.counts {
            if let Some(observer) = self.reader.observer_mut() {
                observer.count_answer(answer, &self.run);
            }
        }
        if self.settings.exposes_node && self.settles {
            // Outer layers that never open a node find the run in these extensions.
            answer.extensions_mut().insert(self.run.clone());
        }
        let status = answer.status();
        let headers = answer.headers_mut();
        self.settings.part.head(&self.run, status, headers);
    }

    #[inline]
    pub(super) const fn observer(&self) -> Option<&Observer> {
        self.reader.observer()
    }

    /// Polls what is inside. A panic of it ends the node as a drop within the unwinding does: who catches the
    /// panic may drop the rest when nothing tells of it any more.
    #[inline]
    pub(super) fn unwinding<T>(&mut self, poll: impl FnOnce() -> T) -> T {
        struct OnUnwind<'a>(&'a mut SupervisedCall);

        impl Drop for OnUnwind<'_> {
            fn drop(&mut self) {
                self.0.settings.part.unwound(&self.0.run);
            }
        }

        let on_unwind = OnUnwind(self);
        let polled = poll();
        std::mem::forget(on_unwind);
        polled
    }

    /// Whether the node has ended, in itself or through an ancestor.
    ///
    /// An enforcer tests this before it polls: a stored reason beats a ready frame. The test
    /// includes the ancestors, because another thread may have stored an end there that has not
    /// reached this node yet.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.run.node().is_over()
    }

    /// Whether the node has an end that discards a ready part of the response.
    ///
    /// A timeout and a cancellation discard that part, as does the success or failure of an
    /// ancestor. A limit does not discard it, nor does the success or failure with which an inner
    /// layer settled this very node.
    #[inline]
    pub(super) fn is_cut(&self) -> bool {
        self.is_over() && self.was_cut()
    }

    #[cold]
    fn was_cut(&self) -> bool {
        let node = self.run.node();
        node.nearest_end().is_some_and(|end| {
            match end.reason.class() {
                ReasonClass::Success | ReasonClass::Failure => end.origin != node.number(),
                // The caller still gets the response with which the run reached a limit.
                ReasonClass::Limit => false,
                ReasonClass::Timeout | ReasonClass::Cancelled => true,
            }
        })
    }

    /// Handles a `Pending` of the inner future or body.
    ///
    /// An enforcer checks the deadlines of its node. An inner wrapper only reports the deadline of
    /// its window or hooks to the driver. `Ready` holds the cause for which the layer stops the
    /// future or body; `Pending` means that the task will be woken at the next deadline.
    #[inline]
    pub(super) fn pending(&mut self, role: &Role, cx: &mut Context<'_>) -> Poll<StopCause> {
        let has_news = || self.observer().is_some_and(Observer::has_news);
        match role {
            Role::Inner if !self.settings.part.measures() && !has_news() => Poll::Pending,
            Role::Inner => self.measure(TaskId::of(cx.waker())),
            Role::Enforcer(scope) => self.enforce(scope, cx),
        }
    }

    /// Reports the next deadline of an inner wrapper's window or hooks to the driver.
    ///
    /// If the deadline has passed and the caller has the complete response, the result is a clean
    /// end.
    fn measure(&mut self, task: TaskId) -> Poll<StopCause> {
        let now = PollScope::now_nanos(&self.run);
        let deadline = self.part_pending(now, task);
        if deadline <= now && self.is_complete_at(now, self.settings.part.ends_node()) {
            return Poll::Ready(StopCause::Ended);
        }
        PollScope::lower(deadline, &self.run);
        Poll::Pending
    }

    /// Ends a node if a deadline has passed; else has the task woken at the next one.
    ///
    /// If a deadline has passed but the caller has the complete response, the result is a clean
    /// end, and the check ends no node.
    fn enforce(&mut self, scope: &PollScope, cx: &mut Context<'_>) -> Poll<StopCause> {
        self.ready = 0;
        let now = PollScope::now_nanos(&self.run);
        let task = TaskId::of(cx.waker());
        let own = self.part_pending(now, task);
        let ends = scope.next_deadline(self.run.node());
        let next = PollScope::lower(own.min(ends), &self.run);
        if next <= now {
            if self.is_complete_at_deadline(now, own, ends) {
                return Poll::Ready(StopCause::Ended);
            }
            self.check(now, task);
        }
        if self.is_over() {
            return Poll::Ready(StopCause::Over);
        }
        self.timer.wait_for(scope, &self.run, next, cx);
        Poll::Pending
    }

    /// Whether the caller has the complete response at a deadline that has passed: the layer's `own`,
    /// or that of the node and the nodes above, which `ends` is.
    #[cold]
    fn is_complete_at_deadline(&self, now: Nanos, own: Nanos, ends: Nanos) -> bool {
        let part_ends = self.settings.part.ends_node();
        if !self.settings.has_outer {
            return self.is_complete_at(now, ends <= now || part_ends);
        }
        // Each layer decides at its own deadline; the outer one only if it settles the node.
        own <= now && self.is_complete_at(now, part_ends)
            || self.settles && self.is_complete_at(now, ends <= now)
    }

    /// Ends the outermost node with a passed deadline: this node or an ancestor.
    #[cold]
    fn check(&self, now: Nanos, task: TaskId) {
        drop(self.run.node().check(Duration::from_nanos(now), task));
    }

    /// Notes the signs of life since the last wait, and starts a new wait.
    ///
    /// The result is the next deadline of the layer's window or hooks, or the time at which a whole
    /// answer counts as ended; or `NEVER`.
    #[inline(always)]
    fn part_pending(&mut self, now: Nanos, task: TaskId) -> Nanos {
        self.needs_frame = self.settings.part.measures();
        self.note(now);
        if self.observer().is_some_and(Observer::lingers) {
            return self.linger(now, task);
        }
        if !self.needs_frame {
            return NEVER;
        }
        let observer = self.reader.observer_mut();
        let due = self.settings.part.pending(&self.run, observer, now, task);
        due.unwrap_or(NEVER)
    }

    /// The next deadline of the layer for an answer that is whole or has failed.
    #[cold]
    fn linger(&mut self, now: Nanos, task: TaskId) -> Nanos {
        let Some(observer) = self.reader.observer_mut() else {
            return NEVER;
        };
        let until = observer.linger(now);
        if !self.needs_frame {
            return until;
        }
        let due = self
            .settings
            .part
            .pending(&self.run, Some(observer), now, task);
        due.map_or(until, |due| due.min(until))
    }

    /// Whether the caller has the complete response, although the inner body has not ended.
    /// `is_end` says that the node would end now.
    fn is_complete_at(&self, now: Nanos, is_end: bool) -> bool {
        let observer = self.observer();
        observer.is_some_and(|observer| observer.is_complete_at(now, is_end))
    }

    /// Whether the body so far is a whole answer, with or without its last event. False if the
    /// upstream has reported an error.
    #[cold]
    pub(super) fn has_answer(&self) -> bool {
        self.observer().is_some_and(Observer::has_answer)
    }

    /// Handles the clean end of the inner body.
    ///
    /// # Errors
    ///
    /// The stream is [`Truncated`].
    pub(super) fn end(&mut self) -> Result<(), Truncated> {
        match &mut self.reader {
            ResponseReader::Body(observer) => {
                observer.end();
                observer.finish()
            }
            _ => Ok(()),
        }
    }

    fn note(&mut self, now: Nanos) {
        if let ResponseReader::Body(observer) = &mut self.reader {
            observer.note(&self.run, now);
        }
    }

    /// Observes a ready frame of the body, before the caller gets it.
    ///
    /// An error means that the caller does not get the frame: the node has ended, or the frame
    /// is trailers and the stream before it is truncated.
    #[inline]
    pub(super) fn frame(&mut self, role: &Role, frame: &Frame<Bytes>) -> Result<(), StopCause> {
        if self.settles && self.is_cut() {
            // This frame may complete the response, and a frame that arrives after the
            // end must not turn the end into a completion.
            return Err(StopCause::Over);
        }
        let data = frame.data_ref();
        if let ResponseReader::Body(observer) = &mut self.reader {
            match data {
                Some(data) => {
                    observer.frame(data);
                    #[cfg(feature = "metrics")]
                    observer.time_first_chunk(&self.run);
                }
                None => {
                    // Trailers are the last frame of a body, so the stream must be
                    // complete.
                    observer.end();
                    observer.finish().map_err(StopCause::Cut)?;
                    observer.trailers();
                }
            }
        }
        if self.needs_frame || self.settings.frames {
            let observer = self.reader.observer();
            self.needs_frame = self.settings.part.frame(&self.run, data, observer);
        }
        if !role.is_inner() {
            self.ready += 1;
            if self.ready >= READY_FRAMES && self.check_after_ready_frames() {
                return Err(StopCause::Over);
            }
        }
        Ok(())
    }

    /// Checks the node's deadlines after [`READY_FRAMES`] ready frames in a row.
    ///
    /// The result says whether the node has ended.
    #[cold]
    fn check_after_ready_frames(&mut self) -> bool {
        self.ready = 0;
        let node = self.run.node();
        if let Some(deadline) = node.next_deadline() {
            let now = self.run.now();
            if deadline <= nanos(now) {
                drop(node.check(now, TaskId::NONE));
            }
        }
        self.is_over()
    }
}

impl SupervisedCall {
    /// Settles the node for the cause `why`, if this layer settles it.
    ///
    /// The result is the error that the body returns, or `None` for a clean end.
    ///
    /// The body calls this method after it has dropped the inner body.
    #[cold]
    pub(in crate::supervise) fn stopped<T>(
        &mut self,
        why: StopCause,
        task: TaskId,
        polled: Poll<Option<Result<T, BoxError>>>,
    ) -> Option<BoxError> {
        match (why, polled) {
            (StopCause::Ended, Poll::Ready(_)) if self.is_cut() => Some(self.over()),
            (StopCause::Ended, _) => {
                self.completed();
                None
            }
            (StopCause::Cut(cut), _) => Some(self.failed(cut.into(), task)),
            (StopCause::Failed, Poll::Ready(Some(Err(error)))) => Some(self.failed(error, task)),
            (StopCause::Failed | StopCause::Over, _) => Some(self.over()),
        }
    }

    /// Handles an inner error, and returns the error that the caller gets.
    ///
    /// If the node is live, a deadline that has passed by now ends its node. If the node is live
    /// still, the method settles it for the error, unless another layer settles it.
    pub(in crate::supervise) fn failed(&mut self, error: BoxError, task: TaskId) -> BoxError {
        #[cfg(feature = "metrics")]
        self.count_outcome(|_| TerminalReason::outcome_of(&error));
        self.report();
        // An outer layer that does not settle the node reads no response.
        let is_unread = self.settings.has_outer && !self.settles;
        if (self.observer().is_none() || is_unread) && is_refusal(&error) {
            self.run.node().set_refused(true);
        }
        let now = self.run.now();
        if !self.is_over() {
            // A deadline that has passed by now beats the inner error. The check comes after
            // `note`, because a frame since the last wait resets windows of this layer and of
            // others: a window that such a frame reset has not passed.
            let at = nanos(now);
            self.note(at);
            self.settings.part.failed(&self.run, at, task);
            drop(self.run.node().check(now, task));
        }
        let error = if self.is_over() {
            self.run.end_error(error)
        } else {
            // The error may come from the end of another node of this tree, such as the call's last
            // attempt: then this node ends with the same reason.
            let cut = Terminated::find(&*error).filter(|cut| cut.is_kin_of(self.run.node()));
            let reason = cut.map_or_else(|| reason_of(&error), |cut| cut.reason.clone());
            self.settle(reason);
            error
        };
        self.finish();
        self.settings.part.error(&self.run, error)
    }

    /// Finishes the work of this layer after its node has ended.
    ///
    /// The result is the error that the caller gets.
    pub(in crate::supervise) fn over(&mut self) -> BoxError {
        let error = self.run.to_terminated().into();
        self.finish();
        self.settings.part.error(&self.run, error)
    }

    /// Settles the node as failed with `class`, if this layer settles the node. The body had no
    /// transport error.
    pub(in crate::supervise) fn fail(&mut self, class: FailureClass) {
        self.report();
        self.settle(TerminalReason::Failed(class));
        self.finish();
    }

    /// Settles the node after the inner body ended, and releases the layer's registrations.
    ///
    /// The method settles nothing if another layer settles the node.
    ///
    /// Settings that defer leave the settlement to [`finish`](Self::finish), when the body
    /// drops.
    #[inline]
    pub(in crate::supervise) fn completed(&mut self) {
        self.conclude();
        if self.ended {
            self.release();
        } else {
            self.finish();
        }
    }

    /// Settles the node as [`completed`](Self::completed) does, and releases nothing.
    #[inline]
    pub(in crate::supervise) fn conclude(&mut self) {
        self.report();
        if self.settles {
            self.settle_completed();
        }
    }

    fn settle_completed(&mut self) {
        let reason = self.verdict();
        if reason == TerminalReason::Completed {
            self.run.note(self.last_step());
        }
        if self.settings.defers {
            self.ended = true;
        } else {
            self.settle(reason);
        }
    }

    fn verdict(&self) -> TerminalReason {
        self.observer()
            .map_or(TerminalReason::Completed, Observer::verdict)
    }

    fn last_step(&self) -> Step {
        let step = Step::new(StepKind::LlmResponse);
        let why = self.observer().and_then(Observer::stop_reason);
        match why {
            Some(why) => step.detail(String::from(&*why)),
            None => step,
        }
    }

    /// Releases all registrations, and settles the node if this layer still has to.
    ///
    /// The reason is the outcome of the response if its settlement was deferred, or if the response
    /// is the failed answer of an attempt that the program made itself; else `Aborted`.
    ///
    /// The future or body drops the inner one before it calls this method.
    #[inline]
    pub(in crate::supervise) fn finish(&mut self) {
        #[cfg(feature = "metrics")]
        self.count_outcome(|run| run.node().outcome_of_end());
        self.report();
        self.release();
        if self.settles {
            self.settle(if self.ended || self.is_failed_attempt() {
                self.verdict()
            } else {
                TerminalReason::Aborted
            });
        }
    }

    /// Whether the head of the response says that an attempt of the program's own has failed. A
    /// retry drops such a response unread.
    fn is_failed_attempt(&self) -> bool {
        let is_of_program = self.run.kind() == NodeKind::Attempt && !self.settings.defers;
        is_of_program && self.observer().is_some_and(Observer::is_failed)
    }

    /// Stores the response's usage and stop reason on the node, at the first call only.
    ///
    /// The node gets both before its settlement, so that the call's summary has them.
    #[inline]
    fn report(&mut self) {
        if let ResponseReader::Body(observer) = &mut self.reader {
            observer.report(&self.run);
        }
    }

    /// Takes the usage that the whole response states from a walk of it.
    pub(super) fn take_stated(&mut self, answer: &WholeAnswer) {
        if let ResponseReader::Body(observer) = &mut self.reader {
            observer.take_stated(answer);
        }
    }

    /// Counts the attempt that this layer settles, unless it was counted before.
    #[cfg(feature = "metrics")]
    fn count_outcome(&self, outcome: impl FnOnce(&Run) -> &'static str) {
        if self.settles {
            self.run.node().count_outcome(|| outcome(&self.run));
        }
    }

    #[inline]
    fn release(&mut self) {
        self.settings.part.release(&self.run);
        self.timer.release(&self.run);
    }

    #[inline]
    fn settle(&mut self, reason: TerminalReason) {
        if std::mem::take(&mut self.settles) {
            let observer = self.reader.observer();
            self.settings.part.settling(&self.run, observer);
            self.run.settle(reason);
        }
    }
}

/// Whether `error` says that the request is invalid, too long or incomplete, or that its run is paused.
///
/// No upstream has received such a request in full.
fn is_refusal(error: &BoxError) -> bool {
    chain(&**error).any(|cause| {
        cause.is::<InvalidRequest>()
            || cause.is::<LengthLimitError>()
            || cause.is::<RequestCut>()
            || cause.is::<RunPaused>()
    })
}

/// The terminal reason for an `error` that reports no end in the call's own tree.
pub(crate) fn reason_of(error: &BoxError) -> TerminalReason {
    if chain(&**error).any(|error| error.is::<RequestCut>()) {
        return TerminalReason::ClientDisconnect;
    }
    if chain(&**error).any(|error| error.is::<RunPaused>()) {
        return TerminalReason::run_paused();
    }
    TerminalReason::Failed(Failure::of_error(&**error).class)
}
