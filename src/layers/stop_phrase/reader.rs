//! Recognizes a request that is a stop phrase, and answers it.

use std::collections::VecDeque;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Either, Full};

use super::{
    phrases::Phrases,
    reply::{reply, reply_dialect},
};
use crate::{
    attempt::Operation,
    body::ReplayBody,
    llm::History,
    registry::RunRegistry,
    run::Run,
    supervise::{RequestReader, dialect_of},
};

/// Recognizes a stop phrase, and ends the other runs of its session.
#[derive(Debug)]
pub struct StopPhraseReader {
    pub(super) run: Run,
    pub(super) registry: RunRegistry,
    pub(super) phrases: Phrases,
}

impl StopPhraseReader {
    /// Answers a stop phrase, once the session's other runs are ended; `None` means no answer.
    ///
    /// A stop phrase without a session, or in an unknown dialect, gets no answer.
    fn answer(&self, request: &Request<ReplayBody>) -> Option<Response<Full<Bytes>>> {
        if !may_stop(&self.phrases, &self.run, request.uri().path()) {
            return None;
        }
        let body = request.body().gathered();
        let history = History::read(&dialect_of(request), &body, &VecDeque::new())?;
        if !self.phrases.contain(&history.said()?) {
            return None;
        }
        let dialect = reply_dialect(request, &history);
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

impl<B> RequestReader<Response<B>> for StopPhraseReader {
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

/// Whether the body of a request may hold one of the phrases.
///
/// Without a session there is nothing to stop. A request for another operation, such as embeddings,
/// cannot be answered with a message.
pub(super) fn may_stop(phrases: &Phrases, run: &Run, path: &str) -> bool {
    !phrases.is_empty()
        && run.session().is_some()
        && matches!(
            Operation::from_path(path),
            None | Some(Operation::ChatCompletions | Operation::Responses | Operation::Messages)
        )
}
