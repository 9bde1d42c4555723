//! Recognizes stop phrases, and builds the assistant message that answers one in each API.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::{Either, Full};
use serde_json::{Value, json};

use crate::{
    attempt::Operation,
    body::ReplayBody,
    llm::{History, dialect::Dialect, sse::DONE},
    registry::RunRegistry,
    run::Run,
    supervise::{RequestReader, dialect_of},
};

/// Recognizes a stop phrase, and ends the other runs of its session.
#[derive(Debug)]
pub struct Stop {
    run: Run,
    registry: RunRegistry,
    phrases: Phrases,
}

impl Stop {
    pub(super) const fn new(run: Run, registry: RunRegistry, phrases: Phrases) -> Self {
        Self {
            run,
            registry,
            phrases,
        }
    }

    /// Answers a stop phrase after it ended the other runs; `None` for any other request.
    fn answer(&self, request: &Request<ReplayBody>) -> Option<Response<Full<Bytes>>> {
        if self.phrases.is_empty() || self.run.session().is_none() {
            return None;
        }
        // A request for another operation, such as embeddings, cannot be answered with
        // a message.
        match Operation::from_path(request.uri().path()) {
            None
            | Some(Operation::ChatCompletions | Operation::Responses | Operation::Messages) => {}
            Some(_) => return None,
        }
        let body = request.body().gathered();
        let history = History::read(&dialect_of(request), &body, &VecDeque::new())?;
        if !self.phrases.contain(&history.said()?) {
            return None;
        }
        let dialect = spoken(request, &history);
        let model = history.model();
        let reply = |text| Reply {
            text,
            model: &model,
            number: self.run.seed(),
            streams: history.streams,
        };
        // Build the response first: if there is none for the dialect, no run is ended.
        let stopped = reply("Stopped.").answer(dialect)?;
        if self.registry.abort_others(&self.run).is_empty() {
            return reply("Nothing was running.").answer(dialect);
        }
        Some(stopped)
    }
}

impl<B> RequestReader<Response<B>> for Stop {
    type Answer = Response<Either<B, Full<Bytes>>>;

    fn run(&self) -> &Run {
        &self.run
    }

    fn read(&self, request: &Request<ReplayBody>) -> Option<Self::Answer> {
        let answer = self.answer(request)?;
        // Remove the request's own run, so that the stop phrase does not count as a run.
        self.registry.withdraw(&self.run);
        Some(answer.map(Either::Right))
    }

    fn pass(answer: Response<B>) -> Self::Answer {
        answer.map(Either::Left)
    }
}

/// The dialect in which to answer the request.
///
/// The path decides; if it is unknown, the `anthropic-version` header or a key of the body that
/// only one dialect has. A bare `input` may belong to any dialect.
fn spoken(request: &Request<ReplayBody>, history: &History<'_>) -> Dialect {
    let anthropic = request.headers().contains_key("anthropic-version") || history.is_anthropic;
    match dialect_of(request) {
        Dialect::Any if history.is_responses => Dialect::Any,
        Dialect::Any if anthropic => Dialect::Anthropic,
        Dialect::Any => Dialect::OpenAiChat,
        known => known,
    }
}

/// The stop phrases, in the normalized form of `plain`.
#[derive(Clone, Debug, Default)]
pub(super) struct Phrases(Arc<HashSet<String>>);

impl Phrases {
    /// Normalizes the phrases, and drops those that have no letter and no digit.
    pub(super) fn new(phrases: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let plain = phrases.into_iter().map(|phrase| plain(phrase.as_ref()));
        Self(Arc::new(
            plain.filter(|phrase| !phrase.is_empty()).collect(),
        ))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the whole text `text` is one of the stop phrases.
    pub(super) fn contain(&self, text: &str) -> bool {
        self.0.contains(&plain(text))
    }
}

/// Normalizes a text: lower case, letters and digits only, and single spaces between words.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut gap = false;
    for c in text.chars() {
        if c.is_whitespace() {
            gap = !plain.is_empty();
        } else if c.is_alphanumeric() {
            if std::mem::take(&mut gap) {
                plain.push(' ');
            }
            plain.extend(c.to_lowercase());
        }
    }
    plain
}

/// The text of a reply, and the properties of the request that decide its format.
#[derive(Debug)]
pub(super) struct Reply<'a> {
    pub(super) text: &'a str,
    /// The model that the request names.
    pub(super) model: &'a str,
    /// The number from which the ids of the response are made.
    pub(super) number: u64,
    pub(super) streams: bool,
}

impl Reply<'_> {
    /// The reply as a response in `dialect`; `None` for a dialect without a known format.
    pub(super) fn answer(&self, dialect: Dialect) -> Option<Response<Full<Bytes>>> {
        let body: Vec<u8> = match (dialect, self.streams) {
            (Dialect::OpenAiChat, false) => self.chat().to_string().into(),
            (Dialect::OpenAiChat, true) => self.chat_events(),
            (Dialect::OpenAiResponses, false) => self.response("completed").to_string().into(),
            (Dialect::OpenAiResponses, true) => self.response_events(),
            (Dialect::Anthropic, false) => self.message().to_string().into(),
            (Dialect::Anthropic, true) => self.message_events(),
            _ => return None,
        };
        let content_type = match self.streams {
            true => "text/event-stream",
            false => "application/json",
        };
        let mut answer = Response::new(Full::from(body));
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        if self.streams {
            let fresh = HeaderValue::from_static("no-cache");
            headers.insert(header::CACHE_CONTROL, fresh);
        }
        Some(answer)
    }

    fn id(&self, prefix: &str) -> String {
        format!("{prefix}{:016x}", self.number)
    }

    fn chat(&self) -> Value {
        json!({
            "id": self.id("chatcmpl-"),
            "object": "chat.completion",
            "created": 0,
            "model": self.model,
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": self.text, "refusal": null},
                "logprobs": null,
                "finish_reason": "stop",
            }],
            "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        })
    }

    fn chat_events(&self) -> Vec<u8> {
        let chunk = |delta: Value, finish: Option<&str>| {
            let chunk = json!({
                "id": self.id("chatcmpl-"),
                "object": "chat.completion.chunk",
                "created": 0,
                "model": self.model,
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
            });
            format!("data: {chunk}\n\n")
        };
        let chunks = [
            chunk(json!({"role": "assistant", "content": ""}), None),
            chunk(json!({"content": self.text}), None),
            chunk(json!({}), Some("stop")),
        ];
        [chunks.concat().as_bytes(), DONE].concat()
    }

    fn response(&self, status: &str) -> Value {
        let done = status == "completed";
        let output = if done {
            vec![self.item("completed")]
        } else {
            Vec::new()
        };
        let usage = json!({
            "input_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 0,
        });
        json!({
            "id": self.id("resp_"),
            "object": "response",
            "created_at": 0,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "instructions": null,
            "metadata": {},
            "model": self.model,
            "output": output,
            "parallel_tool_calls": true,
            "temperature": null,
            "tool_choice": "auto",
            "tools": [],
            "top_p": null,
            "usage": done.then_some(usage),
        })
    }

    fn item(&self, status: &str) -> Value {
        let done = status == "completed";
        let content = if done {
            vec![self.part(self.text)]
        } else {
            Vec::new()
        };
        json!({
            "id": self.id("msg_"),
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        })
    }

    fn part(&self, text: &str) -> Value {
        json!({"type": "output_text", "text": text, "annotations": []})
    }

    fn response_events(&self) -> Vec<u8> {
        let item = |status| json!({"output_index": 0, "item": self.item(status)});
        let in_part = |key: &str, value: Value| json!({"item_id": self.id("msg_"), "output_index": 0, "content_index": 0, key: value});
        let with_logprobs = |mut event: Value| {
            event["logprobs"] = json!([]);
            event
        };
        let begun = || json!({"response": self.response("in_progress")});
        let events = [
            ("response.created", begun()),
            ("response.in_progress", begun()),
            ("response.output_item.added", item("in_progress")),
            (
                "response.content_part.added",
                in_part("part", self.part("")),
            ),
            (
                "response.output_text.delta",
                with_logprobs(in_part("delta", self.text.into())),
            ),
            (
                "response.output_text.done",
                with_logprobs(in_part("text", self.text.into())),
            ),
            (
                "response.content_part.done",
                in_part("part", self.part(self.text)),
            ),
            ("response.output_item.done", item("completed")),
            (
                "response.completed",
                json!({"response": self.response("completed")}),
            ),
        ];
        let numbered = events
            .into_iter()
            .enumerate()
            .map(|(number, (name, mut event))| {
                event["sequence_number"] = number.into();
                named(name, event)
            });
        numbered.collect::<String>().into()
    }

    fn message(&self) -> Value {
        json!({
            "id": self.id("msg_"),
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [{"type": "text", "text": self.text}],
            "stop_reason": "end_turn",
            "stop_sequence": null,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        })
    }

    fn message_events(&self) -> Vec<u8> {
        let mut start = self.message();
        start["content"] = json!([]);
        start["stop_reason"] = Value::Null;
        let delta = json!({
            "delta": {"stop_reason": "end_turn", "stop_sequence": null},
            "usage": {"output_tokens": 0},
        });
        let events = [
            ("message_start", json!({"message": start})),
            (
                "content_block_start",
                json!({"index": 0, "content_block": {"type": "text", "text": ""}}),
            ),
            (
                "content_block_delta",
                json!({"index": 0, "delta": {"type": "text_delta", "text": self.text}}),
            ),
            ("content_block_stop", json!({"index": 0})),
            ("message_delta", delta),
            ("message_stop", json!({})),
        ];
        let named = events.into_iter().map(|(name, event)| named(name, event));
        named.collect::<String>().into()
    }
}

fn named(name: &str, mut event: Value) -> String {
    event["type"] = name.into();
    format!("event: {name}\ndata: {event}\n\n")
}

#[cfg(test)]
mod tests {
    //! covers: C5

    use super::*;

    #[test]
    fn case_and_punctuation_do_not_count_on_either_side() {
        let phrases = Phrases::new(["/stop", "Bitte, hör auf!", "停止"]);
        for text in [
            "stop",
            "STOP!!!",
            " /Stop.\n",
            "stop 🛑",
            "bitte hör  auf",
            "BITTE HÖR AUF",
            "停止。",
        ] {
            assert!(phrases.contain(text), "{text}");
        }
        for text in [
            "please stop",
            "stop it",
            "don't stop",
            "",
            "!!!",
            "st op",
            "hör auf",
        ] {
            assert!(!phrases.contain(text), "{text}");
        }
    }

    #[test]
    fn a_phrase_of_punctuation_alone_is_none() {
        assert!(Phrases::new(["!!!", "", " "]).is_empty());
    }
}
