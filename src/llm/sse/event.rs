/// One event of a stream, as [`Splitter`](crate::llm::sse::Splitter) hands it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event<'a> {
    /// The value of the last `event` line, empty if there was none. Cut at 256 bytes.
    pub name: &'a [u8],
    /// The values of the `data` lines, joined with `\n`. Empty if `oversized`.
    pub data: &'a [u8],
    /// The offset just past the blank line that ended the event. Of a CRLF it is the offset behind
    /// the CR, because the event is complete there.
    pub end: u64,
    /// The data was longer than [`MAX_EVENT`](crate::llm::sse::MAX_EVENT) and was dropped.
    pub oversized: bool,
}

impl<'a> Event<'a> {
    /// An event made by hand, to test a [`Grammar`](crate::llm::dialect::Grammar) with.
    #[must_use]
    pub const fn new(name: &'a [u8], data: &'a [u8]) -> Self {
        Self {
            name,
            data,
            end: 0,
            oversized: false,
        }
    }

    /// Has nothing to read, so that only its name can tell.
    pub(crate) fn is_blank(&self) -> bool {
        self.data.trim_ascii().is_empty()
    }
}

/// What one event means for the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// A part of the answer: commits the attempt, and is progress.
    Content,
    /// A sign of work that does not commit. Events of an unknown type are progress too.
    Progress,
    /// Comes before the answer, or carries nothing of it, as an empty delta; neither commits
    /// nor is progress.
    Prelude,
    /// A sign of life alone, such as a ping.
    Life,
    /// Upstream says that it failed.
    Error,
    /// Upstream says that the answer is complete.
    Terminator,
}

/// What a [`Grammar`](crate::llm::dialect::Grammar) found one event to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventVerdict {
    /// What the event means.
    pub kind: EventKind,
    /// Content that is reasoning and nothing else.
    pub reasoning: bool,
}

impl EventVerdict {
    /// An event of this kind.
    #[must_use]
    pub const fn new(kind: EventKind) -> Self {
        Self {
            kind,
            reasoning: false,
        }
    }

    /// Content; `reasoning` if it is reasoning and nothing else.
    #[must_use]
    pub const fn content(reasoning: bool) -> Self {
        Self {
            kind: EventKind::Content,
            reasoning,
        }
    }
}

impl From<EventKind> for EventVerdict {
    fn from(kind: EventKind) -> Self {
        Self::new(kind)
    }
}

/// Most data bytes that one event may carry (1 MiB); beyond it the event is [`Event::oversized`].
pub const MAX_EVENT: usize = 1024 * 1024;
