//! The time limits that a caller announces in headers, and the enforcement on its call.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::{
    llm::names_events,
    run::{Announcement, CallSlot, IdleWindow, Nanos, NodeKind, Run, TaskId, WindowKind, nanos},
    supervise::{LayerHooks, Observer},
};

/// Enforces the limits that a caller announced, on its one call.
#[derive(Debug)]
pub(super) struct CallerDeadline {
    call: Run,
    announced: CallerLimits,
    /// The announced deadline on the call's clocks, if there is one: at first that of the head,
    /// later that of the body.
    deadline: Option<Announcement>,
    /// The limit on the silence of the body: set at the head, if the caller announced one.
    silence: Option<SilenceLimit>,
    /// The slot that counts writes of a response layer further out; `None` without such a layer.
    slot: Option<CallSlot>,
    /// The number of writes in `slot` at the last [`follow_writes`](Self::follow_writes); 0 without
    /// a slot.
    writes: u64,
    /// Whether the caller has a head: that of the answer, or an early one.
    has_head: bool,
}

/// Limits the time between two bytes of the body.
#[derive(Debug)]
struct SilenceLimit {
    longest: Nanos,
    /// The time of the first `Pending` after the head, the last frame or the last bytes of a
    /// [`TerminalResponseLayer`](crate::TerminalResponseLayer), whichever came last. `None` before
    /// that `Pending`: until then the silence lasts because the caller does not poll.
    since: Option<Nanos>,
    window: Option<Arc<IdleWindow>>,
}

/// The node that the announced limits end: the call or one-call run to which an attempt `found`
/// belongs; `found` itself if it is not an attempt, or belongs to no call.
fn call_of(found: &Run) -> Run {
    let mut node = found.clone();
    while let (NodeKind::Attempt, Some(above)) = (node.kind(), node.parent()) {
        node = above;
    }
    if node.node().is_of_many() {
        return found.clone();
    }
    node
}

impl CallerDeadline {
    pub(super) fn new(announced: CallerLimits, found: &Run, slot: Option<CallSlot>) -> Self {
        let mut caller = Self {
            call: call_of(found),
            announced,
            deadline: None,
            silence: None,
            slot,
            writes: 0,
            has_head: false,
        };
        caller.set_deadline(announced.until_the_head());
        caller.follow_writes();
        caller
    }

    /// Replaces the announced deadline on the call's clocks by `limit` after the call's opening;
    /// `None` only removes the deadline.
    fn set_deadline(&mut self, limit: Option<Duration>) {
        let node = self.call.node();
        if let Some(deadline) = self.deadline.take() {
            node.withdraw(deadline);
        }
        let at = limit.map(|limit| node.opened().saturating_add(limit));
        self.deadline = at.map(|at| node.announce(at));
        if self.deadline.is_some() {
            node.tightened();
        }
    }

    fn on_head(&mut self, streams: bool) {
        self.has_head = true;
        self.set_deadline(self.announced.after_the_head(streams));
        match &mut self.silence {
            // The limit runs since an early head; the head of the answer restarts it.
            Some(silence) => silence.reset(),
            None => {
                self.silence = self.announced.silence.map(|longest| SilenceLimit {
                    longest: nanos(longest),
                    since: None,
                    window: None,
                });
            }
        }
    }

    /// Updates the limits if the response layer has written to the caller since the last update.
    ///
    /// While the caller has no head, a write is the early head of a stream; later it ends the
    /// silence.
    fn follow_writes(&mut self) {
        let writes = self.slot.as_ref().map_or(0, CallSlot::writes);
        if std::mem::replace(&mut self.writes, writes) == writes {
            return;
        }
        if self.has_head {
            self.reset_silence();
        } else {
            self.on_head(true);
        }
    }

    fn reset_silence(&mut self) {
        if let Some(silence) = &mut self.silence {
            silence.reset();
        }
    }

    /// Withdraws the announced deadline, and removes the window of silence.
    fn withdraw(&mut self) {
        self.set_deadline(None);
        let window = self.silence.take().and_then(|silence| silence.window);
        if let Some(window) = window {
            self.call.node().remove_window(&window);
        }
    }
}

impl LayerHooks for CallerDeadline {
    /// Replaces the limits on the head by those on the body, when the head arrives. If the run has
    /// become one of many calls, all limits are withdrawn.
    fn head(&mut self, _: &Run, _: StatusCode, headers: &mut HeaderMap) {
        if self.call.node().is_of_many() {
            self.withdraw();
            return;
        }
        // After an early head the answer can only be a stream.
        self.on_head(self.has_head || names_events(headers));
    }

    /// Runs the silence limit; the call's other deadlines stand on its node.
    fn pending(
        &mut self,
        _: &Run,
        _: Option<&mut Observer>,
        now: Nanos,
        task: TaskId,
    ) -> Option<Nanos> {
        self.follow_writes();
        if self.call.node().is_of_many() {
            // An inner layer has turned the run of this one call into a run of many.
            self.withdraw();
            return None;
        }
        let silence = self.silence.as_mut()?;
        Some(silence.wait(&self.call, now, task))
    }

    fn frame(&mut self, _: &Run, _: Option<&Bytes>, _: Option<&Observer>) {
        self.reset_silence();
    }

    /// Lets `task` end the call for a passed silence limit, after an error of the inner service.
    fn failed(&mut self, _: &Run, _: Nanos, task: TaskId) {
        let silence = self.silence.as_ref();
        if let Some(window) = silence.and_then(|silence| silence.window.as_ref()) {
            window.set_task(task);
        }
    }

    fn release(&mut self, _: &Run) {
        self.withdraw();
    }
}

impl SilenceLimit {
    fn wait(&mut self, call: &Run, now: Nanos, task: TaskId) -> Nanos {
        let since = *self.since.get_or_insert(now);
        let window = self.window.get_or_insert_with(|| {
            let window = Arc::new(IdleWindow::new(WindowKind::Callers));
            call.node().add_window(&window);
            window
        });
        window.run(since, self.longest, task);
        since.saturating_add(self.longest)
    }

    #[inline]
    fn reset(&mut self) {
        if self.since.take().is_some() {
            if let Some(window) = &self.window {
                window.stop();
            }
        }
    }
}

/// The header that limits the time until the head, or until the end of an answer that is not a
/// stream.
const ANSWER: HeaderName = HeaderName::from_static("x-stainless-timeout");

/// The header that limits the time until the head, and then the time between two bytes.
const SILENCE: HeaderName = HeaderName::from_static("x-stainless-read-timeout");

/// The header that limits the time until the end of the answer, in gRPC's format.
const TOTAL: HeaderName = HeaderName::from_static("grpc-timeout");

/// The shortest limit, 1 ms, the resolution of tokio's timer; a shorter one counts as 1 ms. With
/// less, the limit would end a call in its first poll.
const SHORTEST: Duration = Duration::from_millis(1);

/// The longest limit, 30 days; a longer one counts as 30 days.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// The limits that a caller announces in its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallerLimits {
    /// The longest time from the opening of the call until the last byte of the answer.
    pub(super) total: Option<Duration>,
    /// The longest time from the opening of the call until the head of an event stream, or until
    /// the last byte of any other answer.
    pub(super) answer: Option<Duration>,
    /// The longest time from the opening of the call until the head, and then between two bytes.
    pub(super) silence: Option<Duration>,
}

impl CallerLimits {
    /// Reads the limits from a caller's headers; `None` if no header announces one.
    ///
    /// An unreadable value counts as absent: a value that no SDK sends must neither end a call
    /// nor refuse it. If one header has several values, the shortest counts, since a caller may
    /// only tighten.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let silence = shortest(headers, &SILENCE, seconds);
        // Anthropic's SDK for Python sends its read timeout under both names: then the value is no
        // limit on the answer.
        let answer = shortest(headers, &ANSWER, seconds).filter(|answer| Some(*answer) != silence);
        let total = shortest(headers, &TOTAL, grpc);
        let announced = Self {
            total,
            answer,
            silence,
        };
        announced.until_the_head().map(|_| announced)
    }

    /// The time limit on the head, from the opening of the call: the smallest of all announced
    /// limits.
    pub(super) fn until_the_head(&self) -> Option<Duration> {
        let all = [self.total, self.answer, self.silence];
        all.into_iter().flatten().min()
    }

    /// The time limit on the end of the body, from the opening of the call; `silence` is not a part
    /// of it.
    pub(super) fn after_the_head(&self, streams: bool) -> Option<Duration> {
        let answer = self.answer.filter(|_| !streams);
        [self.total, answer].into_iter().flatten().min()
    }
}

fn shortest(
    headers: &HeaderMap,
    name: &HeaderName,
    read: impl Fn(&str) -> Option<Duration>,
) -> Option<Duration> {
    let values = headers.get_all(name).iter();
    let read = |value: &HeaderValue| {
        let limit = value.to_str().ok().and_then(|text| read(text.trim()));
        if limit.is_none() {
            tracing::debug!(target: "tower_agent", header = %name, ?value, "ignoring unparseable deadline header");
        }
        limit
    };
    let limit = values.filter_map(read).min()?;
    Some(limit.clamp(SHORTEST, LONGEST))
}

/// Parses seconds as the SDKs write them: `600`, `0.5`, `1e-05`.
fn seconds(text: &str) -> Option<Duration> {
    let number = |byte: u8| byte.is_ascii_digit() || b".eE+-".contains(&byte);
    // Excludes words that parse as a number: "inf", "NaN".
    if !text.bytes().all(number) {
        return None;
    }
    let seconds: f64 = text.parse().ok().filter(|seconds| *seconds > 0.0)?;
    // A number that is out of range for a `Duration` counts as the longest limit.
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST))
}

/// Parses a timeout in gRPC's format: at most eight digits and a unit, such as `10S`.
fn grpc(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok().filter(|value| *value > 0)?;
    match unit {
        "H" => Some(Duration::from_secs(value * 3600)),
        "M" => Some(Duration::from_secs(value * 60)),
        "S" => Some(Duration::from_secs(value)),
        "m" => Some(Duration::from_millis(value)),
        "u" => Some(Duration::from_micros(value)),
        "n" => Some(Duration::from_nanos(value)),
        _ => None,
    }
}
