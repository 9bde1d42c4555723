use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::SystemTime,
};

use bytes::Bytes;
use http::{Response, response::Parts};
use http_body::Body;
use tokio::time::{Instant, Sleep};
use tower_service::Service;

use super::{
    body::{ProbedBody, Silence},
    gate::wait,
};
use crate::{
    attempt::{ERROR_TIME, MAX_ERROR},
    body::HeldPrefix,
    error::BoxError,
    llm::failure::{Classifier, Failure, FailureClass},
};

/// The most frames of a failed answer that one poll reads.
///
/// Empty frames that are always ready must not starve other tasks.
const TURN: usize = 128;

/// A failed answer, while the layer reads its body to classify it.
#[derive(Debug)]
pub(super) struct Reading<B> {
    parts: Parts,
    body: Option<B>,
    held: HeldPrefix,
    timer: Option<Pin<Box<Sleep>>>,
}

/// Whether the head of an answer shows that the upstream is not ready.
///
/// `None` means that the layer has to read the body to decide.
pub(super) fn is_not_ready<B>(answer: &Response<B>) -> Option<bool> {
    // An inner layer has classified the answer already, and stored the result as an extension.
    if let Some(failure) = answer.extensions().get::<Failure>() {
        return Some(failure.class == FailureClass::NotReady);
    }
    let status = answer.status();
    let fails = status.is_client_error() || status.is_server_error();
    (!fails).then_some(false)
}

impl<B> Reading<B> {
    pub(super) fn new(answer: Response<B>) -> Self {
        let (parts, body) = answer.into_parts();
        Self {
            parts,
            body: Some(body),
            held: HeldPrefix::default(),
            timer: None,
        }
    }

    /// Turns a classified answer back into the response, with the frames read so far and the rest.
    pub(super) fn into_answer<P: Service<()>>(
        self,
        silence: Option<Silence<P>>,
    ) -> Response<ProbedBody<B, P>> {
        Response::from_parts(self.parts, ProbedBody::new(self.held, self.body, silence))
    }
}

impl<B> Reading<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    /// Reads the body within its limits, then returns true if the upstream is not ready.
    pub(super) fn poll(&mut self, judgement: &Classifier, cx: &mut Context<'_>) -> Poll<bool> {
        let mut turns = 0..TURN;
        while let Some(body) = self.body.as_mut() {
            if body.is_end_stream() || self.held.len() >= MAX_ERROR {
                break;
            }
            if turns.next().is_none() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match Pin::new(body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => self.held.push(frame),
                Poll::Ready(Some(Err(error))) => {
                    // The status and the bytes so far decide; the caller gets the error after them.
                    self.held.broke(error.into());
                    self.body = None;
                }
                Poll::Ready(None) => self.body = None,
                Poll::Pending => {
                    let limit = Instant::now() + ERROR_TIME;
                    let new = || Box::pin(tokio::time::sleep_until(limit));
                    let timer = self.timer.get_or_insert_with(new).as_mut();
                    let limit = timer.deadline();
                    ready!(wait(timer, limit, cx));
                    break;
                }
            }
        }
        Poll::Ready(self.judge(judgement))
    }

    fn judge(&mut self, judgement: &Classifier) -> bool {
        let whole = self.held.whole();
        let Parts {
            status, headers, ..
        } = &self.parts;
        #[allow(clippy::disallowed_methods, reason = "retry-after may name a date")]
        let now = SystemTime::now();
        let failure = judgement.of_answer(*status, headers, &whole, now);
        failure.is_some_and(|failure| failure.class == FailureClass::NotReady)
    }
}
