use std::borrow::Cow;

use bytes::Bytes;

use super::{
    faulty_stops::FaultyStop,
    grammar::{Finish, Grammar},
    stream_state::StreamState,
    usage::Tokens,
};
use crate::{
    json_scanner::{Scan, Scanner, Text},
    sse::{
        ErrorInfo, Event, EventKind, EventVerdict, PING, anthropic_body, is_empty_object,
        is_heartbeat,
    },
};

#[derive(Debug)]
pub(crate) struct Anthropic;

/// The values of one Anthropic event's keys that decide its kind.
///
/// If the event turns out to be malformed at its end, the values are discarded.
#[derive(Default)]
struct AnthropicMessage<'a> {
    kind: Option<Text<'a>>,
    is_error: bool,
    delta: Delta<'a>,
    block: Option<&'a [u8]>,
    message: Option<&'a [u8]>,
    prompt_progress: Option<&'a [u8]>,
    usage: Tokens,
}

#[derive(Default)]
struct Delta<'a> {
    kind: Option<Text<'a>>,
    stop: Option<Text<'a>>,
    /// Whether the event's delta is an object without content.
    empty: bool,
}

// One bit per key with a non-empty value in a delta; of two equal known keys the last decides.
const TEXT: u32 = 1;
const THINKING: u32 = 1 << 1;
const SIGNATURE: u32 = 1 << 2;
const PARTIAL_JSON: u32 = 1 << 3;
const CITATION: u32 = 1 << 4;
const UNKNOWN: u32 = 1 << 5;

impl Grammar for Anthropic {
    fn name(&self) -> &'static str {
        "anthropic"
    }

    #[inline]
    fn judge(&self, event: &Event<'_>, stream: &mut StreamState) -> EventVerdict {
        let mut message = AnthropicMessage::default();
        if message.read(event.data).is_err() {
            if let Some(kind) = event.kind_of_unreadable() {
                return kind.into();
            }
            message = AnthropicMessage::default();
        }
        message.report(event, stream)
    }

    /// A message that has a stop reason is complete: what follows is `message_stop`.
    fn finish(&self, stream: &StreamState) -> Finish {
        match stream.stop_reason() {
            Some(_) => Finish::Finished,
            None => Finish::Truncated,
        }
    }

    /// A ping, which the API sends itself. The official SDKs skip it anywhere, also before
    /// `message_start`.
    fn keep_alive(&self) -> Bytes {
        Bytes::from_static(PING)
    }

    fn error_body(&self, error: &ErrorInfo<'_>) -> Bytes {
        anthropic_body(error)
    }
}

impl<'a> AnthropicMessage<'a> {
    #[inline]
    fn read(&mut self, data: &'a [u8]) -> Scan<()> {
        Scanner::document(data, |json, key| {
            match key {
                b"type" => self.kind = json.text()?,
                b"delta" => self.delta = Delta::read(json)?,
                b"content_block" => self.block = Some(json.span()?),
                b"message" => self.message = Some(json.span()?),
                b"usage" => self.usage = Tokens::read(json, &[Tokens::INPUT])?,
                b"error" => self.is_error = json.is_error()?,
                b"prompt_progress" => self.prompt_progress = Some(json.span()?),
                _ => json.skip()?,
            }
            Ok(())
        })
    }

    #[inline]
    fn report(self, event: &Event<'_>, stream: &mut StreamState) -> EventVerdict {
        let kind = match &*self.kind.map_or(Cow::Borrowed(event.name), Text::decoded) {
            // Empty deltas are not progress: an upstream may send them without end, like
            // pings.
            b"content_block_delta" if self.delta.empty => EventKind::Prelude,
            b"content_block_delta" => {
                return EventVerdict::content(self.delta.kind.is_some_and(|kind| {
                    kind.is(b"thinking_delta") || kind.is(b"signature_delta")
                }));
            }
            b"content_block_start" => {
                return self.block.map_or(EventKind::Progress.into(), judge_block);
            }
            b"message_start" => {
                // A message that is not an object has no tokens to report.
                let tokens = |message| Tokens::within(message, &[Tokens::INPUT]);
                if let Some(Ok(tokens)) = self.message.map(tokens) {
                    stream.report_tokens(tokens);
                }
                EventKind::Prelude
            }
            b"message_delta" => {
                stream.report_tokens(self.usage);
                let reason = self.delta.stop.filter(|reason| !reason.is_empty());
                let reason = reason.map(Text::decoded);
                if let Some(reason) = &reason {
                    stream.report_stop(reason);
                }
                match reason.is_some_and(|reason| FaultyStop::is(&reason)) {
                    true => EventKind::Error,
                    false => EventKind::Progress,
                }
            }
            b"message_stop" => EventKind::Terminator,
            b"ping" => EventKind::Life,
            b"content_block_stop" => EventKind::Progress,
            b"error" => EventKind::Error,
            _ if self.is_error => EventKind::Error,
            kind => match self.prompt_progress {
                Some(progress) if stream.has_prompt_grown(progress) => EventKind::Progress,
                Some(_) => EventKind::Life,
                None if is_heartbeat(kind) => EventKind::Life,
                None if kind.is_empty() && is_empty_object(event.data) => EventKind::Life,
                None => EventKind::Progress,
            },
        };
        kind.into()
    }
}

impl<'a> Delta<'a> {
    #[inline]
    fn read(json: &mut Scanner<'a>) -> Scan<Self> {
        let mut delta = Self::default();
        let mut carried = 0;
        let is_delta = json.object(|json, key| {
            let bit = match key {
                b"type" => {
                    delta.kind = json.text()?;
                    return Ok(());
                }
                b"stop_reason" => {
                    delta.stop = json.text()?;
                    return Ok(());
                }
                b"text" => TEXT,
                b"thinking" => THINKING,
                b"signature" => SIGNATURE,
                b"partial_json" => PARTIAL_JSON,
                b"citation" => CITATION,
                _ => UNKNOWN,
            };
            if bit != UNKNOWN {
                carried &= !bit;
            }
            if json.filled()? {
                carried |= bit;
            }
            Ok(())
        })?;
        delta.empty = is_delta && carried == 0;
        Ok(delta)
    }
}

/// Classifies a `content_block_start` event by its `block`.
///
/// An empty text or thinking block is not content, but the start of a tool call is: its name is
/// known.
fn judge_block(block: &[u8]) -> EventVerdict {
    let Ok([kind, text, thinking]) = Scanner::members(block, [b"type", b"text", b"thinking"])
    else {
        return EventKind::Progress.into();
    };
    let is_filled = |span: Option<&[u8]>| {
        span.is_some_and(|span| Scanner::new(span).filled().unwrap_or_default())
    };
    let kind = kind.and_then(Text::of);
    let kind = kind.map_or(Cow::Borrowed(&[][..]), Text::decoded);
    match &*kind {
        b"text" if is_filled(text) => EventVerdict::content(false),
        b"thinking" if is_filled(thinking) => EventVerdict::content(true),
        b"text" | b"thinking" => EventKind::Prelude.into(),
        b"redacted_thinking" => EventVerdict::content(true),
        _ if kind.ends_with(b"tool_use") || kind.ends_with(b"tool_result") => {
            EventVerdict::content(false)
        }
        _ => EventKind::Progress.into(),
    }
}
