//! The response body, which can probe a silent upstream.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::silence::Silence;
use crate::{body::HeldPrefix, error::BoxError, run::Role};

/// The response body: the held frames, then the rest. With `silence` set, the body also probes a
/// silent upstream.
#[derive(Debug)]
pub struct ProbedBody<B> {
    pub(super) held: HeldPrefix,
    /// The inner body; `None` once it has ended or failed.
    inner: Option<B>,
    pub(super) silence: Option<Silence>,
}

impl<B> ProbedBody<B> {
    pub(super) fn new(inner: B) -> Self {
        Self {
            held: HeldPrefix::default(),
            inner: Some(inner),
            silence: None,
        }
    }
}

impl<B> Body for ProbedBody<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if !this.held.is_empty() {
            return this.held.poll_next(cx);
        }
        let Some(inner) = &mut this.inner else {
            return Poll::Ready(None);
        };
        let inner = Pin::new(inner);
        let polled = match &mut this.silence {
            None => inner.poll_frame(cx),
            Some(silence) => {
                let polled = Role::isolated(|| inner.poll_frame(cx));
                match &polled {
                    Poll::Ready(_) => silence.reset(),
                    Poll::Pending => silence.poll(cx),
                }
                polled
            }
        };
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            this.inner = None;
        }
        polled.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_empty() && self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.inner.as_ref().map(Body::size_hint);
        self.held
            .size_hint(&rest.unwrap_or_else(|| SizeHint::with_exact(0)))
    }
}
