use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tower_service::Service;

use super::silence::Silence;
use crate::run::Role;
use crate::{body::HeldPrefix, error::BoxError};

/// The response body: the held frames, then the rest; probes the upstream while it is silent.
pub struct ProbedBody<B, P: Service<()>> {
    held: HeldPrefix,
    /// The inner body; `None` after it has ended.
    inner: Option<B>,
    silence: Option<Silence<P>>,
}

impl<B, P: Service<()>> ProbedBody<B, P> {
    pub(super) const fn new(
        held: HeldPrefix,
        inner: Option<B>,
        silence: Option<Silence<P>>,
    ) -> Self {
        Self {
            held,
            inner,
            silence,
        }
    }
}

impl<B, P> Body for ProbedBody<B, P>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
    P: Service<(), Response = bool> + Clone,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if this.held.wants_flush() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(held) = this.held.next() {
            return Poll::Ready(Some(held));
        }
        let Some(inner) = &mut this.inner else {
            return Poll::Ready(None);
        };
        let Some(silence) = &mut this.silence else {
            return Pin::new(inner).poll_frame(cx).map_err(Into::into);
        };
        let polled = Role::apart(|| Pin::new(inner).poll_frame(cx));
        match &polled {
            Poll::Ready(_) => silence.reset(),
            Poll::Pending => silence.poll(cx),
        }
        polled.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_empty() && self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.held.len() as u64;
        let rest = self
            .inner
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        // With an exact length a server could stop before it polls for the error.
        if let (Some(upper), false) = (rest.upper(), self.held.breaks()) {
            hint.set_upper(upper.saturating_add(held));
        }
        hint.set_lower(rest.lower().saturating_add(held));
        hint
    }
}

impl<B, P: Service<()>> fmt::Debug for ProbedBody<B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbedBody")
            .field("held", &self.held)
            .field("silence", &self.silence)
            .finish_non_exhaustive()
    }
}
