use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Response, StatusCode};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use hyper_util::client::legacy::{Error, ResponseFuture, connect::capture_connection};
use tokio::time::Instant;
use tower_agent::{BoxError, body::detach, llm::failure::TransportError};

use crate::{
    body::HyperBody,
    connection::ConnectionRecord,
    exchange::Exchange,
    request_body::BodyFailure,
    resend::{Resend, ResendCause, is_stream_only},
    uri::UnsupportedUri,
};

/// The response future of [`HyperService`](crate::HyperService).
#[must_use = "futures do nothing unless polled"]
pub struct HyperFuture {
    state: State,
}

enum State {
    Sent(Box<Sent>),
    Unsupported,
    Done,
}

/// A request without a head of its answer.
struct Sent {
    // The exchange stands first: its drop judges the connection while the request is on it.
    exchange: Exchange,
    response: ResponseFuture,
    /// Whether the last poll found no connection.
    waits: bool,
    /// `None` if the request must not be repeated.
    resend: Option<Resend>,
    body_failure: Option<BodyFailure>,
    /// The error for which the request was sent again, if its connection died.
    died: Option<Error>,
}

impl HyperFuture {
    pub(crate) fn new(
        response: ResponseFuture,
        exchange: Exchange,
        resend: Option<Resend>,
        body_failure: Option<BodyFailure>,
    ) -> Self {
        Self {
            state: State::Sent(Box::new(Sent {
                exchange,
                response,
                waits: false,
                resend,
                body_failure,
                died: None,
            })),
        }
    }

    pub(crate) const fn unsupported() -> Self {
        Self {
            state: State::Unsupported,
        }
    }
}

impl Sent {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<Incoming>, BoxError>> {
        loop {
            if self.waits {
                self.exchange.not_before = Instant::now();
            }
            let Poll::Ready(result) = Pin::new(&mut self.response).poll(cx) else {
                self.waits = self.exchange.waits_for_connection();
                return Poll::Pending;
            };
            let error = match result {
                Ok(answer) => return Poll::Ready(Ok(answer)),
                Err(error) => error,
            };
            let Err(error) = self.send_again(error) else {
                continue;
            };
            self.exchange.finished();
            let failure = self.body_failure.as_ref().and_then(BodyFailure::take);
            return Poll::Ready(Err(match failure {
                Some(error) => TransportError::new(error),
                None => TransportError::new(error),
            }
            .into()));
        }
    }

    /// Sends the request again, or returns the error of the call.
    fn send_again(&mut self, error: Error) -> Result<(), Error> {
        let Exchange {
            began, not_before, ..
        } = self.exchange;
        let resend = self.resend.take().and_then(|resend| {
            let cause = ResendCause::of(&error, began, not_before)?;
            Some((cause, resend))
        });
        let is_repeated = resend.is_some();
        // A request that is repeated needs another connection, even if this one is well.
        let poisoned = error.connect_info();
        if let Some(connected) = poisoned.filter(|_| is_repeated || !is_stream_only(&error)) {
            connected.poison();
        }
        let Some((cause, resend)) = resend else {
            // A failure to connect says that nothing was sent.
            return Err(match self.died.take() {
                Some(died) if error.is_connect() => died,
                _ => error,
            });
        };
        tracing::debug!(%error, ?cause, "request sent again on a fresh connection");
        let mut request = resend.into_request();
        self.exchange.resent(capture_connection(&mut request));
        let client = match cause {
            // The other refused streams of the connection share the next one.
            ResendCause::Unprocessed => self.exchange.lease.pooled(),
            // Idle connections may be dead as well.
            ResendCause::Died => self.exchange.lease.unpooled(),
        };
        self.response = client.request(request);
        self.died = (cause == ResendCause::Died).then_some(error);
        Ok(())
    }
}

impl Future for HyperFuture {
    type Output = Result<Response<HyperBody>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match &mut self.state {
            State::Sent(sent) => ready!(sent.poll(cx)),
            State::Unsupported => Err(UnsupportedUri.into()),
            State::Done => panic!("polled after completion"),
        };
        let State::Sent(sent) = std::mem::replace(&mut self.state, State::Done) else {
            return Poll::Ready(Err(UnsupportedUri.into()));
        };
        Poll::Ready(answer.map(|answer| handed_on(answer, sent.exchange)))
    }
}

/// The answer for the caller, with nothing in it of the upstream's connection.
fn handed_on(mut answer: Response<Incoming>, mut exchange: Exchange) -> Response<HyperBody> {
    let record = answer.extensions_mut().remove::<Arc<ConnectionRecord>>();
    exchange.answered(record);
    let upgrade = answer.extensions_mut().remove::<OnUpgrade>();
    detach(&mut answer);
    if let (Some(upgrade), StatusCode::SWITCHING_PROTOCOLS) = (upgrade, answer.status()) {
        answer.extensions_mut().insert(upgrade);
    }
    if let Some(run) = exchange.run() {
        let run = run.clone();
        answer.extensions_mut().insert(run);
    }
    answer.map(|inner| HyperBody::new(inner, exchange))
}

impl fmt::Debug for HyperFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HyperFuture").finish_non_exhaustive()
    }
}
