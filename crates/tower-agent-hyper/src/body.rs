use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tower_agent::{BoxError, llm::failure::TransportError};

use crate::exchange::Exchange;

/// The response body of [`HyperService`](crate::HyperService).
///
/// Its errors are [`TransportError`]s. A drop before the end closes the connection (HTTP/1) or
/// resets the stream (HTTP/2).
#[derive(Debug)]
pub struct HyperBody {
    // The exchange stands first: its drop judges the connection while the answer is on it.
    exchange: Exchange,
    inner: Incoming,
}

impl HyperBody {
    pub(crate) fn new(inner: Incoming, mut exchange: Exchange) -> Self {
        if inner.is_end_stream() {
            exchange.finished();
        }
        Self { exchange, inner }
    }
}

impl Body for HyperBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) else {
            this.exchange.waits_for_frame();
            return Poll::Pending;
        };
        match &frame {
            // A server drops a body of an announced length without a poll for its end.
            Some(Ok(_)) if !this.inner.is_end_stream() => this.exchange.progressed(),
            _ => this.exchange.finished(),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(|error| TransportError::new(error).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
