//! What a stream has come to so far.

use super::partial_text::Partial;
use crate::llm::{
    dialect::{
        Anthropic, Detected, Dialect, Grammar, OpenAiChat, OpenAiResponses, StreamFailure,
        StreamState, detect,
    },
    sse::{Event, EventKind, EventVerdict},
};

#[derive(Debug)]
pub(super) struct StreamMarks {
    pub(super) dialect: Dialect,
    pub(super) stream: StreamState,
    pub(super) commit: Option<u64>,
    pub(super) text: Option<u64>,
    pub(super) terminator: Option<u64>,
    pub(super) error: Option<u64>,
    pub(super) named: Option<u64>,
    pub(super) progressed: u64,
    pub(super) events: u64,
    pub(super) pings: Pings,
    /// The text so far, if somebody wants it.
    pub(super) partial: Option<Partial>,
}

/// Events that say nothing but that upstream lives.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pings {
    /// The one that belongs to how an Anthropic stream begins has come.
    opening: bool,
    pub(super) count: u64,
}

impl StreamMarks {
    pub(super) const fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            stream: StreamState::new(),
            commit: None,
            text: None,
            terminator: None,
            error: None,
            named: None,
            progressed: 0,
            events: 0,
            pings: Pings {
                opening: false,
                count: 0,
            },
            partial: None,
        }
    }

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
                    self.named.get_or_insert(event.end);
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

/// What one chunk brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkSummary {
    /// An event with content.
    pub content: bool,
    /// An event with content or progress.
    pub progress: bool,
    /// The terminator or an error.
    pub ended: bool,
}
