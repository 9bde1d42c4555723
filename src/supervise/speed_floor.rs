//! The floor of a layer on the speed of a stream: how slowly content may come before the node ends.

use std::{collections::VecDeque, mem, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::{
    layer_hooks::LayerHooks, observer::Observer, step_window::StepWindow,
    stream_marks::ResponseMarks,
};
use crate::{
    llm::BYTES_PER_TOKEN,
    run::{
        IdleWindow, Nanos, Node, NodeState, Run, Scope, TaskId, TerminalReason, TokenRate, nanos,
    },
};

/// The part of the floor's time that a gap between two content events may take: an eighth.
///
/// Nothing tells a longer gap from hidden reasoning, so it is left to the step window. With such gaps
/// alone, at least eight content events stand in the floor's time.
const PARTS: u32 = 8;

/// A floor on the speed of a stream: so many tokens a second, on average over a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpeedFloor {
    pub(crate) tokens_per_second: f64,
    pub(crate) over: Duration,
}

impl SpeedFloor {
    /// The bytes of text that a stream at the floor's speed generates in this time.
    fn bytes_in(&self, time: Nanos) -> f64 {
        let seconds = Duration::from_nanos(time).as_secs_f64();
        self.tokens_per_second * BYTES_PER_TOKEN as f64 * seconds
    }
}

/// A step window, with a floor on the speed of the stream beside it.
#[derive(Debug)]
pub(crate) struct FlooredWindow {
    silence: StepWindow,
    speed: SpeedMeter,
}

impl FlooredWindow {
    /// Puts `floor` beside a window. It acts on the node of that window, and only observes if that
    /// window does.
    pub(crate) fn new(silence: StepWindow, floor: SpeedFloor) -> Self {
        let speed = SpeedMeter::new(floor, silence.scope(), silence.observes());
        Self { silence, speed }
    }
}

impl LayerHooks for FlooredWindow {
    fn ends_node(&self) -> bool {
        !self.silence.observes()
    }

    /// Does the work of both at a `Pending`.
    fn pending(
        &mut self,
        run: &Run,
        observer: Option<&mut Observer>,
        now: Nanos,
        task: TaskId,
    ) -> Option<Nanos> {
        let marks = observer.as_deref().and_then(Observer::marks);
        let slow = marks.and_then(|marks| self.speed.pending(run, marks, now, task));
        let silent = self.silence.pending(run, observer, now, task);
        slow.into_iter().chain(silent).min()
    }

    /// The head is a sign of life, as in a layer with a window alone.
    fn head(&mut self, run: &Run, _: StatusCode, _: &mut HeaderMap) {
        self.silence.frame(run, None, false);
    }

    fn frame(&mut self, run: &Run, data: Option<&Bytes>, observer: Option<&Observer>) {
        self.speed.frame(run);
        let is_progress = observer.is_some_and(Observer::has_progressed);
        self.silence
            .frame(run, observer, is_progress && data.is_some());
    }

    fn failed(&mut self, run: &Run, now: Nanos, task: TaskId) {
        self.silence.failed(run, now, task);
    }

    fn release(&mut self, run: &Run) {
        self.silence.release(run);
        self.speed.release(run);
    }
}

/// Measures how fast the content of one stream comes.
///
/// The time from one content event to the next counts, as far as the layer waits for the upstream. The
/// time of a slow reader and of pauses does not count. A gap does not count, with its text, if it is
/// [too long](PARTS), if the event has no text that can be counted, or if it is slow while a tool of
/// the run is under way. An attempt waits no longer for the speed of a stream with such gaps, unless
/// those that count show that it is slow.
#[derive(Debug)]
struct SpeedMeter {
    floor: SpeedFloor,
    scope: Scope,
    observes: bool,
    /// The window on the node that passes once the stream was too slow; `None` before.
    window: Option<Arc<IdleWindow>>,
    /// Whether observers got the notice that the floor would have ended the node.
    has_notified: bool,
    /// The start of the current wait for the upstream, once there was content.
    since: Option<Nanos>,
    /// The total of ended pauses at the last look.
    pauses: Nanos,
    /// The wait since the latest content.
    gap: Nanos,
    /// The chunks with content, and the bytes of text, up to the latest content.
    contents: u64,
    generated: u64,
    /// The gaps of about the floor's time, oldest first, and their sum.
    slices: VecDeque<Slice>,
    total: Slice,
}

/// Some gaps between content events, one after another.
#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    time: Nanos,
    /// The bytes of text that came at the ends of the gaps.
    bytes: u64,
}

impl SpeedMeter {
    const fn new(floor: SpeedFloor, scope: Scope, observes: bool) -> Self {
        Self {
            floor,
            scope,
            observes,
            window: None,
            has_notified: false,
            since: None,
            pauses: 0,
            gap: 0,
            contents: 0,
            generated: 0,
            slices: VecDeque::new(),
            total: Slice { time: 0, bytes: 0 },
        }
    }

    /// Counts the frames and the wait since the last `Pending`, and starts another wait.
    ///
    /// The result is `now` if the stream was too slow.
    fn pending(
        &mut self,
        run: &Run,
        marks: &ResponseMarks,
        now: Nanos,
        task: TaskId,
    ) -> Option<Nanos> {
        let node = run.in_scope(self.scope);
        let is_paused = self.count_wait(node, now);
        self.count_content(run, marks);
        self.since = (self.contents > 0 && !is_paused).then_some(now);
        let is_slow = self.is_slow() && !is_paused && !marks.has_stopped();
        if is_slow && self.observes {
            self.notify(node);
        } else if is_slow {
            self.pass(node, now, task);
            return Some(now);
        } else if let Some(window) = &self.window {
            window.stop();
        }
        None
    }

    /// Stops the wait at a frame: the time until the next `Pending` is the reader's.
    fn frame(&mut self, run: &Run) {
        if self.since.is_some() {
            self.count_wait(run.in_scope(self.scope), nanos(run.now()));
        }
    }

    /// Ends the current wait, and adds it to the gap. Returns whether a pause is on.
    fn count_wait(&mut self, node: &Node<NodeState>, now: Nanos) -> bool {
        let paused = node.paused();
        let ended = paused.total.saturating_sub(self.pauses);
        self.pauses = paused.total;
        if let Some(since) = self.since.take() {
            let until = paused.since.map_or(now, |at| at.min(now));
            let wait = until.saturating_sub(since).saturating_sub(ended);
            self.gap = self.gap.saturating_add(wait);
        }
        paused.since.is_some()
    }

    /// Ends the gap if content has come since the last look.
    fn count_content(&mut self, run: &Run, marks: &ResponseMarks) {
        let (contents, generated) = marks.generated();
        if contents == self.contents {
            return;
        }
        let is_first = mem::replace(&mut self.contents, contents) == 0;
        let before = mem::replace(&mut self.generated, generated);
        let gap = Slice {
            time: mem::take(&mut self.gap),
            bytes: generated.saturating_sub(before),
        };
        if is_first {
            return;
        }
        let has_text = gap.bytes > 0;
        let is_short = gap.time <= nanos(self.floor.over / PARTS);
        let is_fast = has_text && gap.bytes as f64 >= self.floor.bytes_in(gap.time);
        let is_known = if has_text && is_short && (is_fast || !run.node().has_tool()) {
            self.add(gap);
            self.is_proven()
        } else {
            is_fast || !self.is_below()
        };
        if is_known {
            marks.prove_speed();
        }
    }

    /// Adds a gap, and forgets those that the floor's time does not reach back to.
    fn add(&mut self, gap: Slice) {
        let longest = nanos(self.floor.over / PARTS);
        match self.slices.back_mut() {
            Some(last) if last.time + gap.time <= longest => last.add(gap),
            _ => self.slices.push_back(gap),
        }
        self.total.add(gap);
        let over = nanos(self.floor.over);
        while let Some(first) = self.slices.front() {
            if self.total.time - first.time < over {
                break;
            }
            self.total.time -= first.time;
            self.total.bytes -= first.bytes;
            self.slices.pop_front();
        }
    }

    /// Whether the stream was below the floor over the floor's whole time.
    fn is_slow(&self) -> bool {
        self.total.time >= nanos(self.floor.over) && self.is_below()
    }

    /// Whether the stream has shown that it keeps to the floor: with an eighth of the text that the
    /// floor asks for in its time.
    fn is_proven(&self) -> bool {
        let enough = self.floor.bytes_in(nanos(self.floor.over / PARTS));
        self.total.bytes as f64 >= enough && !self.is_below()
    }

    fn is_below(&self) -> bool {
        (self.total.bytes as f64) < self.floor.bytes_in(self.total.time)
    }

    /// Has the check that follows find that the stream was too slow.
    #[cold]
    fn pass(&mut self, node: &Node<NodeState>, now: Nanos, task: TaskId) {
        let window = self.window.get_or_insert_with(|| {
            let floor = TokenRate::new(self.floor.tokens_per_second);
            let window = Arc::new(IdleWindow::of_speed(floor));
            node.add_window(&window);
            window
        });
        let over = nanos(self.floor.over);
        window.run(now.saturating_sub(over), over, task);
    }

    /// Notifies observers, once, that a floor that only observes would have ended the node.
    #[cold]
    fn notify(&mut self, node: &Node<NodeState>) {
        if !mem::replace(&mut self.has_notified, true) {
            node.would_end(&TerminalReason::Slow, Some(self.floor.over));
        }
    }

    fn release(&mut self, run: &Run) {
        if let Some(window) = self.window.take() {
            run.in_scope(self.scope).remove_window(&window);
        }
    }
}

impl Slice {
    const fn add(&mut self, other: Self) {
        self.time += other.time;
        self.bytes += other.bytes;
    }
}
