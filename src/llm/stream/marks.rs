//! The marks of an event stream so far: offsets of the events that matter to layers.

use super::partial_text::Partial;
use crate::llm::{
    dialect::{
        Anthropic, Detected, Dialect, Grammar, OpenAiChat, OpenAiResponses, StreamFailure,
        StreamState, detect,
    },
    sse::{Event, EventKind, EventVerdict},
};

#[derive(Debug, Default)]
pub(super) struct StreamMarks {
    pub(super) dialect: Dialect,
    pub(super) stream: StreamState,
    pub(super) commit: Option<u64>,
    pub(super) text: Option<u64>,
    pub(super) terminator: Option<u64>,
    pub(super) error: Option<u64>,
    pub(super) id_end: Option<u64>,
    pub(super) progressed: u64,
    pub(super) events: u64,
    pub(super) pings: Pings,
    /// The partial text of the answer, if it is collected.
    pub(super) partial: Option<Partial>,
}

/// The count of the stream's events that only show that the upstream is alive.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pings {
    /// Whether the ping at the start of every Anthropic stream has come.
    opening: bool,
    pub(super) count: u64,
}

impl StreamMarks {
    #[inline]
    pub(super) fn mark(&mut self, event: &Event<'_>, seen: &mut ChunkSummary) {
        self.events += 1;
        let verdict = self.judge(event);
        match verdict.kind {
            EventKind::Content => {
                seen.content = true;
                seen.progress = true;
                self.progressed = event.end;
                self.commit.get_or_insert(event.end);
                if !verdict.reasoning {
                    self.text.get_or_insert(event.end);
                    if let Some(partial) = &self.partial {
                        partial.add(self.dialect, event);
                    }
                }
            }
            EventKind::Progress => {
                seen.progress = true;
                self.progressed = event.end;
            }
            EventKind::Prelude => {
                if self.stream.response_id().is_some() {
                    self.id_end.get_or_insert(event.end);
                }
            }
            EventKind::Life => self.ping(),
            EventKind::Terminator => {
                seen.ended = true;
                self.terminator.get_or_insert(event.end);
                if let Some(partial) = &self.partial {
                    partial.clear();
                }
            }
            EventKind::Error => {
                seen.ended = true;
                if self.terminator.is_none() && self.error.is_none() {
                    self.error = Some(event.end);
                    if self.stream.failure().is_none() {
                        self.stream.report_failure(StreamFailure::read(event.data));
                    }
                    self.stream.name_failure(event.name == b"error");
                }
            }
        }
    }

    #[cold]
    fn ping(&mut self) {
        let opens = matches!(self.dialect, Dialect::Anthropic) && self.commit.is_none();
        if opens && !std::mem::replace(&mut self.pings.opening, true) {
            return;
        }
        self.pings.count += 1;
    }

    #[inline]
    fn judge(&mut self, event: &Event<'_>) -> EventVerdict {
        if event.name == b"error" {
            return EventKind::Error.into();
        }
        let stream = &mut self.stream;
        match self.dialect {
            Dialect::OpenAiChat => OpenAiChat.judge(event, stream),
            Dialect::OpenAiResponses => OpenAiResponses.judge(event, stream),
            Dialect::Anthropic => Anthropic.judge(event, stream),
            Dialect::Custom(grammar) => grammar.judge(event, stream),
            Dialect::Any => match detect(event) {
                Detected::As(dialect) => {
                    self.dialect = dialect;
                    self.judge(event)
                }
                Detected::Undecided(kind) => kind.into(),
            },
        }
    }
}

/// The kinds of events that one chunk of a stream completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkSummary {
    /// Whether the chunk completed at least one event with content.
    pub content: bool,
    /// Whether the chunk completed at least one event with content or progress.
    pub progress: bool,
    /// Whether the chunk completed the terminator or an error event.
    pub ended: bool,
}
