use std::borrow::Cow;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    faulty_stops::FaultyStop, grammar::Grammar, stream_failure::StreamFailure,
    stream_state::StreamState, usage::Tokens,
};
use crate::{
    json_scanner::{Scan, Scanner, Text},
    sse::{
        ErrorInfo, Event, EventKind, EventVerdict, is_empty_object, is_heartbeat, responses_event,
    },
};

#[derive(Debug)]
pub(crate) struct OpenAiResponses;

impl Grammar for OpenAiResponses {
    fn name(&self) -> &'static str {
        "openai-responses"
    }

    #[inline]
    fn judge(&self, event: &Event<'_>, stream: &mut StreamState) -> EventVerdict {
        let mut kind = None;
        let mut sequence = None;
        let mut response = None;
        let mut is_error = false;
        let mut empty = false;
        let mut prompt_progress = None;
        let read = Scanner::document(event.data, |json, key| {
            match key {
                b"type" => kind = json.text()?,
                b"sequence_number" => sequence = json.integer()?,
                b"response" => response = Some(json.span()?),
                b"error" => is_error = json.is_error()?,
                b"delta" => empty = !json.filled()?,
                b"prompt_progress" => prompt_progress = Some(json.span()?),
                _ => json.skip()?,
            }
            Ok(())
        });
        if read.is_err() {
            return unreadable(event, stream);
        }
        if let Some(sequence) = sequence {
            stream.report_sequence(sequence);
        }
        let kind = &*kind.map_or(Cow::Borrowed(event.name), Text::decoded);
        let mut verdict = classify(kind, is_error, empty);
        if verdict.kind == EventKind::Progress {
            verdict = match prompt_progress {
                Some(progress) if stream.has_prompt_grown(progress) => verdict,
                Some(_) => EventKind::Life.into(),
                None if kind.is_empty() && is_empty_object(event.data) => EventKind::Life.into(),
                None => verdict,
            };
        }
        match (kind, response) {
            (b"response.done", response) => verdict = judge_done(response, event, stream),
            _ if verdict.kind == EventKind::Terminator => stream.end(),
            _ => {}
        }
        // An event's response that is not an object has nothing to report.
        let _ = match (verdict.kind, response) {
            (EventKind::Terminator | EventKind::Error, Some(response)) => {
                report_response(response, stream)
            }
            (EventKind::Prelude, Some(response)) if stream.response_id().is_none() => {
                report_id(response, stream)
            }
            _ => Ok(()),
        };
        let is_faulty = |reason: &str| FaultyStop::of(reason).is_some();
        if verdict.kind == EventKind::Terminator && stream.stop_reason().is_some_and(is_faulty) {
            verdict = EventKind::Error.into();
        }
        verdict
    }

    fn error_event(&self, error: &ErrorInfo<'_>) -> Bytes {
        responses_event(error)
    }
}

/// Reports the sequence number of an event that is an error by its name.
#[cold]
pub(crate) fn report_sequence(event: &Event<'_>, stream: &mut StreamState) {
    let [sequence] = Scanner::members(event.data, [b"sequence_number"]).unwrap_or_default();
    if let Some(Ok(Some(sequence))) = sequence.map(|it| Scanner::new(it).integer()) {
        stream.report_sequence(sequence);
    }
}

/// Classifies an event with data that is not a JSON object, or without data.
///
/// An oversized event has no data if that is not a JSON object. It counts by its name, and as the
/// next in the sequence.
fn unreadable(event: &Event<'_>, stream: &mut StreamState) -> EventVerdict {
    if event.oversized {
        stream.report_sequence(stream.next_sequence());
    }
    match event.kind_of_unreadable() {
        Some(kind) => kind.into(),
        None => classify(event.name, false, false),
    }
}

#[inline]
fn classify(kind: &[u8], is_error: bool, empty: bool) -> EventVerdict {
    let kind = match kind {
        // Empty deltas are not progress: an upstream may send them without end, like
        // pings.
        _ if empty && kind.ends_with(b".delta") => EventKind::Prelude,
        _ if kind.ends_with(b".delta") => {
            return EventVerdict::content(kind.starts_with(b"response.reasoning"));
        }
        b"response.created" | b"response.queued" | b"response.in_progress" => EventKind::Prelude,
        b"response.completed" | b"response.incomplete" | b"response.done" => EventKind::Terminator,
        b"response.failed" | b"response.cancelled" | b"error" => EventKind::Error,
        _ if is_heartbeat(kind) => EventKind::Life,
        _ if is_error && !kind.starts_with(b"response.") => EventKind::Error,
        _ => EventKind::Progress,
    };
    kind.into()
}

/// Classifies a `response.done`, with which some upstreams end a stream instead of
/// `response.completed`, by the status of its response. The response of an answer is kept, as the
/// event that SDKs wait for is made of it. Of one that is not whole, only the id and the usage are
/// kept: what the model said has come before.
#[cold]
fn judge_done(
    response: Option<&[u8]>,
    event: &Event<'_>,
    stream: &mut StreamState,
) -> EventVerdict {
    let members = response.map(|it| Scanner::members(it, [b"status", b"id", b"usage"]));
    let is_object = matches!(members, Some(Ok(_)));
    let [status, id, usage] = members.and_then(Result::ok).unwrap_or_default();
    let status = status.and_then(Text::of);
    let is = |word: &[u8]| status.is_some_and(|status| status.is(word));
    if is(b"failed") || is(b"cancelled") {
        // SDKs do not know the event.
        stream.report_failure(StreamFailure::read(event.data).bare());
        return EventKind::Error.into();
    }
    let is_incomplete = is(b"incomplete");
    match response.filter(|_| is_object && !event.oversized) {
        Some(response) => stream.keep_done(is_incomplete, response),
        None => {
            let short = short_response(id, usage, is_incomplete, stream.response_id());
            stream.keep_done(is_incomplete, &short);
        }
    }
    EventKind::Terminator.into()
}

/// The response of an answer without its output.
fn short_response(
    id: Option<&[u8]>,
    usage: Option<&[u8]>,
    is_incomplete: bool,
    known_id: Option<&str>,
) -> Vec<u8> {
    let read = |span: Option<&[u8]>| {
        let value = serde_json::from_slice::<Value>(span?).ok();
        value.filter(|value| !value.is_null())
    };
    let status = if is_incomplete {
        "incomplete"
    } else {
        "completed"
    };
    let mut response = json!({"object": "response", "status": status, "output": []});
    if let Some(id) = read(id).or_else(|| known_id.map(Value::from)) {
        response["id"] = id;
    }
    if let Some(usage) = read(usage) {
        response["usage"] = usage;
    }
    response.to_string().into_bytes()
}

fn report_id(response: &[u8], stream: &mut StreamState) -> Scan<()> {
    let [id] = Scanner::members(response, [b"id"])?;
    if let Some(id) = id.and_then(Text::of) {
        stream.report_response_id(&id.decoded());
    }
    Ok(())
}

fn report_response(response: &[u8], stream: &mut StreamState) -> Scan<()> {
    let [usage, details] = Scanner::members(response, [b"usage", b"incomplete_details"])?;
    if let Some(usage) = usage {
        stream.report_tokens(Tokens::read(&mut Scanner::new(usage), &[Tokens::INPUT])?);
    }
    let stop = details.and_then(|details| Scanner::members(details, [b"reason"]).ok());
    if let Some(stop) = stop.and_then(|[reason]| Text::of(reason?)) {
        stream.report_stop(&stop.decoded());
    }
    Ok(())
}
