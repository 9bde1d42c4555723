use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Response, Version};
use hyper::body::Incoming;
use hyper_util::client::legacy::{Error, ResponseFuture, connect::capture_connection};
use tower_agent::{BoxError, body::unframe, llm::failure::TransportError};

use crate::{
    body::HyperBody,
    connection::ConnectionRecord,
    exchange::Exchange,
    resend::{Resend, is_resent, is_stream_only},
    service::{Clients, UnsupportedUri},
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
    resend: Option<Resend>,
    clients: Arc<Clients>,
}

impl HyperFuture {
    pub(crate) fn new(
        response: ResponseFuture,
        exchange: Exchange,
        resend: Option<Resend>,
        clients: Arc<Clients>,
    ) -> Self {
        Self {
            state: State::Sent(Box::new(Sent {
                exchange,
                response,
                resend,
                clients,
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
            let error = match ready!(Pin::new(&mut self.response).poll(cx)) {
                Ok(answer) => return Poll::Ready(Ok(answer)),
                Err(error) => error,
            };
            if let Some(connected) = error.connect_info().filter(|_| !is_stream_only(&error)) {
                connected.poison();
            }
            let resend = self.resend.take();
            let Some(resend) = resend.filter(|_| self.is_resent(&error)) else {
                self.exchange.finished();
                return Poll::Ready(Err(TransportError::new(error).into()));
            };
            tracing::debug!(%error, "request sent again on a fresh connection");
            let mut request = resend.into_request();
            self.exchange.resent(capture_connection(&mut request));
            self.response = self.clients.unpooled.request(request);
        }
    }

    fn is_resent(&self, error: &Error) -> bool {
        is_resent(error, self.exchange.began.elapsed())
    }
}

impl Future for HyperFuture {
    type Output = Result<Response<HyperBody>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match &mut self.state {
            State::Sent(sent) => ready!(sent.poll(cx)),
            State::Unsupported => Err(UnsupportedUri.into()),
            State::Done => panic!("a response future was polled after it was ready"),
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
    *answer.version_mut() = Version::default();
    unframe(answer.headers_mut());
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
