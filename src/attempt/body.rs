use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{AttemptPolicy, held::Held, owner::Owner};
use crate::{BoxError, body::SupervisedBody, run::Run};

pin_project! {
    /// The body of the attempt that serves the call: what was held of it until
    /// its commit, unchanged, then the rest.
    #[derive(Debug)]
    pub struct AttemptBody<B>
    where
        B: Body,
    {
        held: Held,
        #[pin]
        inner: Option<SupervisedBody<B, AttemptPolicy>>,
        owner: Option<Ownership>,
    }

    impl<B> PinnedDrop for AttemptBody<B>
    where
        B: Body,
    {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            // The attempt first: what it came to is what its owner says.
            this.inner.set(None);
            if let (Some(ownership), true) = (this.owner, this.held.is_empty()) {
                ownership.decide();
            }
        }
    }
}

/// The node of a layer that settles it, and the attempt that decides how.
#[derive(Debug)]
pub(super) struct Ownership {
    pub(super) owner: Owner,
    pub(super) attempt: Run,
}

impl Ownership {
    fn decide(&mut self) {
        let end = self.attempt.node().own_end();
        self.owner.decide(end.map(|end| end.reason.clone()));
    }
}

impl<B: Body> AttemptBody<B> {
    pub(super) const fn new(
        held: Held,
        inner: SupervisedBody<B, AttemptPolicy>,
        owner: Option<Ownership>,
    ) -> Self {
        Self {
            held,
            inner: Some(inner),
            owner,
        }
    }
}

impl<B> Body for AttemptBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        let Some(inner) = this.inner.as_mut().as_pin_mut() else {
            return Poll::Ready(None);
        };
        let run = this.owner.as_ref().map(|ownership| ownership.owner.run());
        if let Some(run) = run.filter(|run| run.node().own_end().is_some()) {
            // Nothing of what is held may pass any more.
            let error = run.to_terminated();
            this.inner.set(None);
            return Poll::Ready(Some(Err(error.into())));
        }
        if this.held.is_empty() {
            let polled = inner.poll_frame(cx);
            if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
                // Nothing follows, whatever becomes of the node.
                this.inner.set(None);
                if let Some(mut ownership) = this.owner.take() {
                    ownership.decide();
                }
            }
            return polled;
        }
        let next = this.held.next();
        if matches!(next, Some(Err(_))) {
            *this.held = Held::default();
            this.inner.set(None);
        }
        Poll::Ready(next)
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Some(inner) => self.held.is_empty() && inner.is_end_stream(),
            None => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        let Some(inner) = &self.inner else {
            return SizeHint::with_exact(0);
        };
        let held = self.held.len() as u64;
        let rest = inner.size_hint();
        let mut hint = SizeHint::new();
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(held));
        }
        hint.set_lower(rest.lower().saturating_add(held));
        hint
    }
}
