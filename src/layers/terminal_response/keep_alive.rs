//! Decides when a caller that waits gets an early head or a comment, and observers a notice.

use std::{task::Context, time::Duration};

use bytes::Bytes;
use http::{Extensions, Method, Request, request::Parts};
use tokio::time::Instant;

use super::wants_stream::{StreamWish, wants_stream};
use crate::{
    lazy_sleep::LazySleep,
    llm::failure::FailureClass,
    run::{
        CallSlot, NodeKind, ProgressNotices, Run, RunNotice, Step, StepKind, TaskId,
        TerminalReason, WorkingNotices,
    },
};

/// The interval of the bytes that keep a stream alive after an early head, unless one is set. The
/// head alone helps little: a proxy limits the time between any two reads.
const AFTER_HEAD: Duration = Duration::from_secs(15);

/// The time after which the layer looks again for a request that was not read, or was held, when its
/// early head was due.
const NEXT_LOOK: Duration = Duration::from_secs(1);

/// The settings of the layer for a caller that waits; all are off by default.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeepAliveSettings {
    pub(super) notices: Option<ProgressNotices>,
    pub(super) comments: bool,
    pub(super) every: Option<Duration>,
    pub(super) early_head: Option<Duration>,
    pub(super) streams: Option<fn(&Parts) -> bool>,
}

impl KeepAliveSettings {
    pub(super) const OFF: Self = Self {
        notices: None,
        comments: false,
        every: None,
        early_head: None,
        streams: None,
    };

    const fn is_off(&self) -> bool {
        self.notices.is_none() && self.every.is_none() && self.early_head.is_none()
    }
}

/// The clocks of one call for which a caller waits. Their times count from the start of the call.
#[derive(Debug)]
pub(super) struct KeepAlive {
    settings: KeepAliveSettings,
    slot: CallSlot,
    began: Instant,
    /// The time at which the early head is due; `None` while none is scheduled.
    ///
    /// The first `Pending` schedules a head, if the call may get one. The time is cleared when
    /// that head is sent, or when the upstream's own head comes first.
    head_at: Option<Duration>,
    /// Whether the caller asks for an event stream; only looked at for an early head.
    wish: StreamWish,
    working: Option<WorkingNotices>,
    /// The time of the first `Pending` between events since the last bytes; `None` before it.
    since: Option<Duration>,
    /// Whether the task has yielded at the instant in which something is due.
    has_yielded: bool,
    timer: LazySleep,
}

/// The next write to a caller that waits.
#[derive(Debug)]
pub(super) enum Write {
    /// The early head of an event stream.
    Head,
    /// A notice, as a comment line.
    Comment(Bytes),
    /// The bytes that keep a stream of the caller's dialect alive.
    KeepAlive,
}

/// An extension of a request whose caller waits for the head: it gets no
/// [early head](crate::TerminalResponseLayer::early_head).
///
/// It is for a server that keeps its own caller waiting, and must not lose the status of a failure.
#[derive(Clone, Copy, Debug)]
pub struct WithoutEarlyHead;

impl KeepAlive {
    /// Makes the state for the call of a request, and puts the call's slot into the request.
    ///
    /// If the layer does nothing for a caller that waits, the state is `None`, and no slot is put.
    pub(super) fn of<B: 'static>(
        settings: &KeepAliveSettings,
        mut request: Request<B>,
    ) -> (Option<Box<Self>>, Request<B>) {
        if settings.is_off() {
            return (None, request);
        }
        let mut settings = *settings;
        let found = request.extensions().get::<Run>().cloned();
        // For an attempt there is no early head: the retry layer needs the upstream's own head. Nor
        // is there one for HEAD: no body follows that could continue the call.
        let attempt = |run: &Run| run.kind() == NodeKind::Attempt;
        let waits = request.extensions().get::<WithoutEarlyHead>().is_some();
        if waits || found.as_ref().is_some_and(attempt) || request.method() == Method::HEAD {
            settings.early_head = None;
        }
        let mut wish = StreamWish::Other;
        if settings.early_head.is_some() {
            (wish, request) = wants_stream(request, settings.streams);
            settings.early_head = settings.early_head.filter(|_| wish != StreamWish::Other);
        }
        // A response layer further out may have put a slot there, for the same call.
        let slot = request.extensions_mut().get_or_insert_default::<CallSlot>();
        let slot = slot.clone();
        if matches!(wish, StreamWish::Unread { .. }) {
            slot.want_body();
        }
        let keep_alive = Box::new(Self {
            settings,
            slot,
            began: Instant::now(),
            head_at: None,
            wish,
            working: settings.notices.and_then(WorkingNotices::new),
            since: None,
            has_yielded: false,
            timer: LazySleep::new(),
        });
        if let (Some(found), None) = (found, keep_alive.call()) {
            keep_alive.slot.set(found);
        }
        (Some(keep_alive), request)
    }

    /// Whether an early head may be due, so that the body continues the call.
    pub(super) const fn may_answer_early(&self) -> bool {
        self.settings.early_head.is_some()
    }

    /// Whether the layer may insert comments into an event stream.
    pub(super) const fn inserts(&self) -> bool {
        let settings = &self.settings;
        settings.every.is_some() || (settings.comments && settings.notices.is_some())
    }

    pub(super) fn call(&self) -> Option<Run> {
        self.slot.call()
    }

    /// Sets the layer's notices for the run of the call, if the call is known and its run has none.
    pub(super) fn suggest_notices(&self) {
        if let (Some(notices), Some(call)) = (self.settings.notices, self.call()) {
            call.suggest_notices(notices);
        }
    }

    /// Records that the head of the call's answer has come. If the layer does not know the call yet,
    /// the extensions of the answer may name it.
    pub(super) fn answered(&mut self, answer: &Extensions) {
        self.unschedule_head();
        if let (None, Some(call)) = (self.call(), answer.get::<Run>()) {
            self.slot.set(call.clone());
        }
        self.suggest_notices();
    }

    /// Ends the call as failed with `class`, because the layer drops the call's answer.
    ///
    /// The method does nothing if the call is unknown or has ended, or if its node is a tool or a
    /// run of many calls.
    pub(super) fn fail(&self, class: FailureClass) {
        let call = self.call().filter(|call| call.terminal_reason().is_none());
        let is_call = |it: &Run| !it.node().is_of_many() && it.kind() != NodeKind::Tool;
        if let Some(call) = call.filter(is_call) {
            call.end(TerminalReason::Failed(class));
        }
    }

    /// Records that bytes of the upstream came; with `content` the next notice is postponed.
    pub(super) const fn sent(&mut self, content: bool) {
        self.since = None;
        if let (true, Some(working)) = (content, &mut self.working) {
            working.show();
        }
    }

    /// Handles a `Pending` of the inner future or body; the result is a write that is due.
    ///
    /// The method also sends a notice that is due. Before a write or a notice it yields once, and
    /// it does neither if the call has ended. A comment is returned only with `between`, which says
    /// that the caller has whole events. If nothing is due, the method sets the timer to the next
    /// write or notice.
    pub(super) fn pending(&mut self, between: bool, cx: &mut Context<'_>) -> Option<Write> {
        let now = self.began.elapsed();
        if let (Some(after), None) = (self.settings.early_head, self.head_at) {
            self.head_at = Some(now.saturating_add(after));
        }
        if self.head_at.is_some_and(|at| at <= now) {
            self.decide_on_head(now);
        }
        if between {
            self.since.get_or_insert(now);
        }
        let is_due = self.next(between).is_some_and(|at| at <= now);
        if is_due && !std::mem::replace(&mut self.has_yielded, true) {
            // Another task, such as a pump's, may end the call at this instant: let that task run
            // first.
            cx.waker().wake_by_ref();
            return None;
        }
        self.has_yielded = false;
        if is_due && !self.is_live() {
            // An ended call has nothing due; a timer in the past would wake the task in a loop.
            return None;
        }
        let write = self.write(between, now);
        if write.is_some() {
            self.since = None;
            self.slot.wrote();
        } else if let Some(at) = self.next(between) {
            self.wake_at(at, cx);
        }
        write
    }

    /// The time at which the next notice or write is due.
    fn next(&self, between: bool) -> Option<Duration> {
        let notice = self.working.as_ref().and_then(WorkingNotices::next);
        let all = [self.head_at, notice, self.comment_at(between)];
        all.into_iter().flatten().min()
    }

    fn comment_at(&self, between: bool) -> Option<Duration> {
        let waiting = self.since.zip(self.settings.every).filter(|_| between);
        waiting.map(|(since, every)| since.saturating_add(every))
    }

    /// Decides whether a head that is due at `now` may be sent: only to a caller that asked for a
    /// stream.
    ///
    /// If the request is not read yet, the decision is put off. So it is while the run's pause holds
    /// the call: the call may yet be refused, and clients send again after a 503, but not after an
    /// error within a stream.
    fn decide_on_head(&mut self, now: Duration) {
        if self.slot.is_held() {
            self.head_at = Some(now.saturating_add(NEXT_LOOK));
            return;
        }
        let StreamWish::Unread { accepts } = self.wish else {
            return;
        };
        let body = self.slot.body();
        self.wish = StreamWish::of_body(body.as_ref(), accepts);
        match self.wish {
            StreamWish::Stream => self.slot.drop_body(),
            StreamWish::Other => self.unschedule_head(),
            StreamWish::Unread { .. } => self.head_at = Some(now.saturating_add(NEXT_LOOK)),
        }
    }

    fn unschedule_head(&mut self) {
        (self.settings.early_head, self.head_at) = (None, None);
        let wish = std::mem::replace(&mut self.wish, StreamWish::Other);
        if matches!(wish, StreamWish::Unread { .. }) {
            self.slot.drop_body();
        }
    }

    /// Returns an early head that is due at `now`. Else sends a due notice, and returns a due
    /// comment.
    fn write(&mut self, between: bool, now: Duration) -> Option<Write> {
        if self.head_at.is_some_and(|at| at <= now) {
            self.unschedule_head();
            self.settings.every.get_or_insert(AFTER_HEAD);
            return Some(Write::Head);
        }
        let due = self.working.as_mut().and_then(|working| working.wait(now));
        if let Some(running_for) = due {
            let call = self.call();
            let mut step = Step::new(StepKind::LlmCall);
            if let Some(target) = call.as_ref().and_then(|call| call.attempts().last_target()) {
                step = step.detail(target);
            }
            let notice = RunNotice::working(step, running_for);
            match call {
                Some(call) => call.notify(&notice),
                // The call is not known yet: the notice goes to the log alone.
                None => tracing::debug!(target: "tower_agent", notice = notice.name(), "notice"),
            }
            if let (true, RunNotice::Working { message, .. }) =
                (between && self.settings.comments, &notice)
            {
                return Some(Write::Comment(comment(message)));
            }
        }
        let is_due = self.comment_at(between).is_some_and(|at| at <= now);
        is_due.then_some(Write::KeepAlive)
    }

    /// Whether the call is live; checks its deadlines at this instant, which may end the call.
    ///
    /// So a call that ends at this instant gets no notice that it goes on. An unknown call counts
    /// as live.
    fn is_live(&self) -> bool {
        let call = self.call();
        call.is_none_or(|call| call.node().check(call.now(), TaskId::NONE).is_ok())
    }

    fn wake_at(&mut self, at: Duration, cx: &mut Context<'_>) {
        // A time beyond the range of `Instant` never comes.
        let Some(at) = self.began.checked_add(at) else {
            return;
        };
        if self.timer.poll_at_latest(at, cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }
}

/// Formats `text` as a comment line of an event stream; line breaks in it become spaces.
///
/// No blank line follows: some clients take one for the end of an event that has no data.
fn comment(text: &str) -> Bytes {
    let line = text.replace(['\r', '\n'], " ");
    format!(": {line}\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_one_line_whatever_the_text() {
        assert_eq!(comment("a\r\ndata: b\nc"), ": a  data: b c\n");
    }
}
