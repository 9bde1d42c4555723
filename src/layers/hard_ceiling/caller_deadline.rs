//! The limits that a caller's headers announce, and the deadlines that they set on its call.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::{
    llm::names_events,
    run::{Announcement, IdleWindow, Nanos, NodeKind, Run, TaskId, nanos},
};

/// Holds one call to the limits that its caller announced.
#[derive(Debug)]
pub(super) struct CallerDeadline {
    call: Run,
    announced: CallerLimits,
    /// The absolute deadline that is set on the call's clocks.
    deadline: Option<Announcement>,
    /// The limit on the silence of the body, from the head on.
    silence: Option<SilenceLimit>,
}

/// Limits the time in which the caller gets no byte.
#[derive(Debug)]
struct SilenceLimit {
    longest: Nanos,
    /// The time of the first `Pending` after a frame; until then the time is the caller's own.
    since: Option<Nanos>,
    window: Option<Arc<IdleWindow>>,
}

/// The call of a node: the node itself, or the call that it is an attempt of.
fn call_of(found: &Run) -> Run {
    let mut node = found.clone();
    while let (NodeKind::Attempt, Some(above)) = (node.kind(), node.parent()) {
        node = above;
    }
    if node.is_of_many() {
        return found.clone();
    }
    node
}

impl CallerDeadline {
    pub(super) fn new(announced: CallerLimits, found: &Run) -> Self {
        let mut caller = Self {
            call: call_of(found),
            announced,
            deadline: None,
            silence: None,
        };
        caller.set_deadline(announced.until_the_head());
        caller
    }

    /// Replaces the deadline on the call's clocks by `limit`, counted from the call's opening.
    fn set_deadline(&mut self, limit: Option<Duration>) {
        let clocks = &self.call.node().clocks;
        if let Some(deadline) = self.deadline.take() {
            clocks.withdraw(deadline);
        }
        let at = limit.map(|limit| self.call.node().opened().saturating_add(limit));
        self.deadline = at.map(|at| clocks.announce(at));
        if self.deadline.is_some() {
            self.call.node().tightened();
        }
    }

    /// Replaces the limits of the head by those of the body, as the head is handed on.
    pub(super) fn answered(&mut self, headers: &HeaderMap) {
        if self.call.is_of_many() {
            self.release();
            return;
        }
        self.set_deadline(self.announced.after_the_head(names_events(headers)));
        self.silence = self.announced.silence.map(|longest| SilenceLimit {
            longest: nanos(longest),
            since: None,
            window: None,
        });
    }

    /// The time of the call's next deadline, at a pending poll.
    pub(super) fn pending(&mut self, now: Duration, task: TaskId) -> Option<Nanos> {
        if self.call.is_of_many() {
            // A layer further in has turned the run of this one call into a run of many.
            self.release();
            return None;
        }
        let silence = self.silence.as_mut();
        let silent = silence.map(|silence| silence.wait(&self.call, now, task));
        silent
            .into_iter()
            .chain(self.call.node().clocks.next())
            .min()
    }

    #[inline]
    pub(super) fn frame(&mut self) {
        if let Some(silence) = &mut self.silence {
            silence.reset();
        }
    }

    /// Notes that the inner service or body failed, and that `task` compares the clocks next.
    pub(super) fn failed(&self, task: TaskId) {
        let window = self
            .silence
            .as_ref()
            .and_then(|silence| silence.window.as_ref());
        if let Some(window) = window {
            window.set_task(task);
        }
    }

    pub(super) fn release(&mut self) {
        self.set_deadline(None);
        let window = self.silence.take().and_then(|silence| silence.window);
        if let Some(window) = window {
            self.call.node().remove_window(&window);
        }
    }
}

impl SilenceLimit {
    fn wait(&mut self, call: &Run, now: Duration, task: TaskId) -> Nanos {
        let since = *self.since.get_or_insert(nanos(now));
        let window = self.window.get_or_insert_with(|| {
            let window = Arc::new(IdleWindow::callers());
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

/// The header that limits the head, or a whole answer that is no event stream.
const ANSWER: HeaderName = HeaderName::from_static("x-stainless-timeout");

/// The header that limits the head, then the time between two bytes of the body.
const SILENCE: HeaderName = HeaderName::from_static("x-stainless-read-timeout");

/// The header that limits the whole answer, as a gRPC timeout.
const TOTAL: HeaderName = HeaderName::from_static("grpc-timeout");

/// The shortest limit, a timer's resolution: less would end a call in its first poll.
const SHORTEST: Duration = Duration::from_millis(1);

/// The longest limit that is kept; a longer one counts as this one.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// The limits that a caller announces, from the opening of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallerLimits {
    /// The longest time until the last byte of the answer.
    pub(super) total: Option<Duration>,
    /// The longest time until the head, or the last byte of an answer that is no event stream.
    pub(super) answer: Option<Duration>,
    /// The longest time until the head, and then until each further byte.
    pub(super) silence: Option<Duration>,
}

impl CallerLimits {
    /// The limits in a caller's headers; `None` if there are none.
    ///
    /// An unreadable value counts as absent: a value that no SDK sends must neither end a
    /// call nor refuse it. Of several values of one header the shortest counts, since
    /// a caller may only tighten.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let silence = shortest(headers, &SILENCE, seconds);
        // Anthropic's SDK for Python sends its read timeout under both names.
        let answer = shortest(headers, &ANSWER, seconds).filter(|answer| Some(*answer) != silence);
        let total = shortest(headers, &TOTAL, grpc);
        let announced = Self {
            total,
            answer,
            silence,
        };
        announced.until_the_head().map(|_| announced)
    }

    /// The time limit for the head: the earliest of all limits, as each holds until then.
    pub(super) fn until_the_head(&self) -> Option<Duration> {
        let all = [self.total, self.answer, self.silence];
        all.into_iter().flatten().min()
    }

    /// The time limit for the body, from the opening of the call, without the silence.
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
            tracing::debug!(header = %name, ?value, "no deadline, and ignored");
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
    // A number out of range means a very long time.
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST))
}

/// Parses a timeout of gRPC: at most eight digits and a unit.
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
