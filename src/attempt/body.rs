use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{AttemptPolicy, held::Held, owner::Owner};
use crate::{
    BoxError,
    body::SupervisedBody,
    run::{Run, TerminalReason},
};

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
                let verdict = ownership.verdict();
                ownership.owner.decide(verdict);
            }
        }
    }
}

/// The node of a layer that settles it, and the attempt that decides how.
#[derive(Debug)]
pub(super) struct Ownership {
    pub(super) owner: Owner,
    pub(super) attempt: Run,
    /// What a failed answer amounts to that is handed on whole.
    pub(super) judged: Option<TerminalReason>,
}

impl Ownership {
    /// What the attempt came to is what its owner's node comes to.
    fn verdict(&mut self) -> Option<TerminalReason> {
        let end = self.attempt.node().own_end()?;
        let judged = self.judged.take().filter(|_| {
            let failing = self.attempt.failing();
            matches!(
                end.reason,
                TerminalReason::Completed | TerminalReason::Failed(_)
            ) || failing.is_some_and(|failing| failing.reason == end.reason)
        });
        // An error may come whole and under a good status.
        judged.or_else(|| Some(end.reason.clone()))
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
            return inner.poll_frame(cx);
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
