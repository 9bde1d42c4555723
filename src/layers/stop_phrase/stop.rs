//! Recognizes stop phrases, and builds the assistant message that answers one in each API.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::{Either, Full};
use serde_json::Value;

use crate::{
    attempt::Operation,
    body::ReplayBody,
    llm::{History, dialect::Dialect},
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

    /// Answers a stop phrase, once the session's other runs are ended; `None` for other requests.
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
        let reply = |text| reply(dialect, history.streams, self.run.seed(), &model, text);
        // Build the response first: if there is none for the dialect, no run is ended.
        let stopped = reply("Stopped.")?;
        if self.registry.abort_others(&self.run).is_empty() {
            return reply("Nothing was running.");
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
        // Withdraw a run that the request has opened: a stop phrase must not count for its owner.
        self.registry.withdraw(&self.run);
        Some(answer.map(Either::Right))
    }

    fn pass(answer: Response<B>) -> Self::Answer {
        answer.map(Either::Left)
    }
}

/// The dialect in which to answer the request.
///
/// The path decides, else the dialect in the request's extensions. Without either, a body with
/// `input` may belong to any dialect, the `anthropic-version` header or a key that only Anthropic
/// has decides for Anthropic, and any other body is chat.
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

/// The assistant message that answers a stop phrase; `None` for a dialect without a known format.
///
/// The message's ids are made from `number`, and `model` is the model that the request names.
/// `text` must have no characters that JSON escapes.
fn reply(
    dialect: Dialect,
    streams: bool,
    number: u64,
    model: &str,
    text: &str,
) -> Option<Response<Full<Bytes>>> {
    let (document, events) = match dialect {
        Dialect::OpenAiChat => (
            include_str!("replies/chat.json"),
            include_str!("replies/chat.sse"),
        ),
        Dialect::OpenAiResponses => (
            include_str!("replies/responses.json"),
            include_str!("replies/responses.sse"),
        ),
        Dialect::Anthropic => (
            include_str!("replies/messages.json"),
            include_str!("replies/messages.sse"),
        ),
        _ => return None,
    };
    let (template, content_type) = match streams {
        true => (events, "text/event-stream"),
        false => (document.trim_end(), "application/json"),
    };
    // Insert the model last: it is the caller's text, and may contain another placeholder.
    let body = template
        .replace("{id}", &format!("{number:016x}"))
        .replace("{text}", text)
        .replace("\"{model}\"", &Value::from(model).to_string());
    let mut answer = Response::new(Full::from(body));
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if streams {
        let fresh = HeaderValue::from_static("no-cache");
        headers.insert(header::CACHE_CONTROL, fresh);
    }
    Some(answer)
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
