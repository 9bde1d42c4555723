//! One call from its request to the end of its answer.

use std::{error::Error, future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::Body;
use tokio::time::Instant;
use tower_agent::{
    BoxError, Run, TerminalReason, Terminated,
    attempt::FailedAttempts,
    llm::failure::{Failure, FailureClass},
};

use super::read::{Read, ReadExt, reason_of};

/// A call whose answer was read to its end.
///
/// The fields of the head are empty if the call itself failed.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The status, or [`NO_ANSWER`](Self::NO_ANSWER).
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// The body, as far as it came.
    pub(crate) text: String,
    /// How many data frames the body had.
    pub(crate) frames: usize,
    pub(crate) trailers: Option<HeaderMap>,
    /// The error of the call, or of the body.
    pub(crate) error: Option<BoxError>,
    /// The terminal reason in the error, else that of [`run`](Self::run) after the end.
    pub(crate) reason: Option<TerminalReason>,
    /// The time from the first poll of the call to the end of the body.
    pub(crate) at: Duration,
    /// The attempts before the answer, if a layer made any: candidate and class.
    pub(crate) tries: Vec<(Option<String>, FailureClass)>,
    /// The class of the answer, if it is a failure.
    pub(crate) failure: Option<Failure>,
    /// The node that a layer put into the answer.
    pub(crate) run: Option<Run>,
}

impl Outcome {
    /// The status of a call that failed: its [`error`](Self::error) is that of the service.
    pub(crate) const NO_ANSWER: u16 = 0;

    /// Awaits a call, then reads its answer.
    pub(crate) async fn of<B, E>(call: impl Future<Output = Result<Response<B>, E>>) -> Self
    where
        B: Body<Data = Bytes, Error: Into<BoxError> + Send> + Unpin + Send,
        E: Into<BoxError>,
    {
        let start = Instant::now();
        match call.await {
            Ok(answer) => Self::of_answer(answer, start).await,
            Err(error) => Self::of_error(error.into(), start),
        }
    }

    async fn of_answer<B>(answer: Response<B>, start: Instant) -> Self
    where
        B: Body<Data = Bytes, Error: Into<BoxError> + Send> + Unpin + Send,
    {
        let tries = tries(&answer);
        let (head, body) = answer.into_parts();
        let run = head.extensions.get::<Run>().cloned();
        let Read {
            text,
            frames,
            trailers,
            end,
        } = body.read().await;
        let error = end.err();
        let of_run = || run.as_ref().and_then(Run::terminal_reason);
        Self {
            status: head.status.as_u16(),
            headers: head.headers,
            text,
            frames,
            trailers,
            reason: error.as_ref().and_then(reason_of).or_else(of_run),
            error,
            at: start.elapsed(),
            tries,
            failure: head.extensions.get::<Failure>().cloned(),
            run,
        }
    }

    fn of_error(error: BoxError, start: Instant) -> Self {
        Self {
            status: Self::NO_ANSWER,
            headers: HeaderMap::new(),
            text: String::new(),
            frames: 0,
            trailers: None,
            reason: reason_of(&error),
            error: Some(error),
            at: start.elapsed(),
            tries: Vec::new(),
            failure: None,
            run: None,
        }
    }

    /// The text of a body that ended well.
    ///
    /// # Panics
    ///
    /// If the call or the body ended in an error.
    pub(crate) fn whole(&self) -> &str {
        assert!(self.error.is_none(), "{:?}", self.error);
        &self.text
    }

    /// A header as text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        Some(self.headers.get(name)?.to_str().unwrap())
    }

    /// The node that a layer put into the answer.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub(crate) fn run(&self) -> &Run {
        self.run.as_ref().unwrap()
    }

    /// The end of a node in the error.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub(crate) fn terminated(&self) -> &Terminated {
        let error = self.error.as_deref().unwrap();
        Terminated::find(error).unwrap()
    }

    /// The error as this type.
    ///
    /// # Panics
    ///
    /// If there is no error, or one of another type.
    pub(crate) fn error<E: Error + 'static>(&self) -> &E {
        let error = self.error.as_deref().unwrap();
        error.downcast_ref().unwrap()
    }
}

/// The attempts before an answer: candidate and class.
pub(crate) fn tries<B>(answer: &Response<B>) -> Vec<(Option<String>, FailureClass)> {
    let Some(tries) = answer.extensions().get::<FailedAttempts>() else {
        return Vec::new();
    };
    let label = |candidate: &Arc<str>| candidate.to_string();
    let tries = tries.all().iter();
    tries
        .map(|tried| (tried.candidate.as_ref().map(label), tried.class.unwrap()))
        .collect()
}

/// The node that a layer put into the answer.
pub(crate) fn run_on<B>(answer: &Response<B>) -> Run {
    answer.extensions().get::<Run>().unwrap().clone()
}
