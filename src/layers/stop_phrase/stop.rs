use std::collections::VecDeque;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Either, Full};

use super::{phrases::Phrases, reply::Reply};
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

    /// Answers a request that is a stop phrase; `None` for any other request.
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
        // Build the response first: without one, no run is ended.
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
        // The stop phrase does not count as a run of its own.
        self.registry.withdraw(&self.run);
        Some(answer.map(Either::Right))
    }

    fn pass(answer: Response<B>) -> Self::Answer {
        answer.map(Either::Left)
    }
}

/// The dialect of the request, for the reply.
///
/// The path decides, else a key that only one dialect has. A bare `input` may belong to
/// any dialect.
fn spoken(request: &Request<ReplayBody>, history: &History<'_>) -> Dialect {
    let anthropic = request.headers().contains_key("anthropic-version") || history.is_anthropic;
    match dialect_of(request) {
        Dialect::Any if history.is_responses => Dialect::Any,
        Dialect::Any if anthropic => Dialect::Anthropic,
        Dialect::Any => Dialect::OpenAiChat,
        known => known,
    }
}
