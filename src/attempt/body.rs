//! The body of the answer that is handed on; the attempt settles with its end.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::policy::Serving;
use crate::{
    body::HeldPrefix,
    error::BoxError,
    llm::failure::{Classifier, FailureClass, IncompleteJson, JsonOutline},
    run::{Nanos, Run, TaskId, TerminalReason},
    supervise::{Observer, Policy, ResponseMarks, SupervisedBody},
};

pin_project! {
    /// The body of the attempt that serves the call: what was held of it until
    /// its commit, unchanged, then the rest.
    #[derive(Debug)]
    pub struct AttemptBody<B>
    where
        B: Body,
    {
        held: HeldPrefix,
        #[pin]
        inner: Option<SupervisedBody<B, AttemptSupervision>>,
        // The node of the layer, whoever settles it.
        own: Run,
        owner: Option<Ownership>,
        watched: Option<Box<Watched>>,
        // How far a JSON document has come that was not held to its end.
        document: Option<JsonOutline>,
    }

    impl<B> PinnedDrop for AttemptBody<B>
    where
        B: Body,
    {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            close(this.inner, this.held, this.owner, this.watched);
        }
    }
}

/// The node of a layer that settles it, and the attempt that decides how.
#[derive(Debug)]
pub(super) struct Ownership {
    pub(super) owner: SettleGuard,
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
            ) || failing.is_some_and(|failing| failing.reason.as_ref() == Some(&end.reason))
        });
        // An error may come whole and under a good status.
        judged.or_else(|| Some(end.reason.clone()))
    }
}

impl<B: Body> AttemptBody<B> {
    pub(super) const fn new(
        held: HeldPrefix,
        inner: SupervisedBody<B, AttemptSupervision>,
        own: Run,
        owner: Option<Ownership>,
        watched: Option<Box<Watched>>,
    ) -> Self {
        Self {
            held,
            inner: Some(inner),
            own,
            owner,
            watched,
            document: None,
        }
    }

    /// What was held is the beginning of a JSON document.
    pub(super) fn of_document(mut self, held: Option<JsonOutline>) -> Self {
        self.document = held;
        self
    }
}

/// Nothing more is read. The attempt goes first: what it came to is what its
/// owner says, unless some of the answer was never handed on.
fn close<B: Body>(
    mut inner: Pin<&mut Option<SupervisedBody<B, AttemptSupervision>>>,
    held: &HeldPrefix,
    owner: &mut Option<Ownership>,
    watched: &mut Option<Box<Watched>>,
) {
    inner.set(None);
    if let Some(mut ownership) = owner.take().filter(|_| held.is_delivered()) {
        let verdict = ownership.verdict();
        ownership.owner.decide(verdict);
    }
    if let Some(watched) = watched.take() {
        watched.over();
    }
}

/// What a JSON document comes to that ends with `polled`, if it is none.
///
/// The error takes the place of the last frame: a server that has sent all that was
/// announced asks for nothing more.
fn cut<B>(
    document: &Option<JsonOutline>,
    held: &HeldPrefix,
    inner: Pin<&mut SupervisedBody<B, AttemptSupervision>>,
    polled: &Poll<Option<Result<Frame<Bytes>, BoxError>>>,
) -> Option<IncompleteJson>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let outline = document.as_ref()?;
    let is_last = match polled {
        Poll::Pending | Poll::Ready(Some(Err(_))) => false,
        Poll::Ready(None) => true,
        Poll::Ready(Some(Ok(frame))) => {
            let nothing_follows = inner.is_end_stream() || inner.size_hint().exact() == Some(0);
            frame.is_trailers() || held.is_empty() && nothing_follows
        }
    };
    if !is_last || outline.is_whole() {
        return None;
    }
    inner.fail(FailureClass::Transport);
    Some(IncompleteJson::new(outline.bytes()))
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
        let Some(mut inner) = this.inner.as_mut().as_pin_mut() else {
            return Poll::Ready(None);
        };
        if this.own.node().is_over() {
            // Nothing of what is held may pass any more.
            close(this.inner, this.held, this.owner, this.watched);
            return Poll::Ready(Some(Err(this.own.to_terminated().into())));
        }
        if this.held.is_empty() {
            let polled = inner.as_mut().poll_frame(cx);
            if let (Some(outline), Poll::Ready(Some(Ok(frame)))) = (&mut *this.document, &polled) {
                if let Some(data) = frame.data_ref() {
                    outline.push(data);
                }
            }
            if let Some(cut) = cut(this.document, this.held, inner, &polled) {
                close(this.inner, this.held, this.owner, this.watched);
                return Poll::Ready(Some(Err(cut.into())));
            }
            if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
                // A run that ends later changes nothing of how this ended.
                close(this.inner, this.held, this.owner, this.watched);
            }
            return polled;
        }
        if this.held.wants_flush() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let next = Poll::Ready(this.held.next());
        if let Some(cut) = cut(this.document, this.held, inner, &next) {
            close(this.inner, this.held, this.owner, this.watched);
            return Poll::Ready(Some(Err(cut.into())));
        }
        if matches!(next, Poll::Ready(Some(Err(_)))) {
            *this.held = HeldPrefix::default();
            close(this.inner, this.held, this.owner, this.watched);
        }
        next
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
        if self.held.breaks() {
            // An exact length would let a server stop before it asks for the
            // error, and take what is held for the whole.
            let mut hint = SizeHint::new();
            hint.set_lower(held);
            return hint;
        }
        let rest = inner.size_hint();
        let mut hint = SizeHint::new();
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(held));
        }
        hint.set_lower(rest.lower().saturating_add(held));
        hint
    }
}

/// The attempt that serves a call, and who wants to know what it comes to.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) attempt: Run,
    pub(super) serving: Box<dyn Serving>,
    /// What its stream says, and how that is judged.
    pub(super) judged: Option<ResponseMarks>,
    pub(super) judgement: Classifier,
}

impl Watched {
    /// It was dropped. What was ended from further out tells nothing of it.
    pub(super) fn over(self) {
        let node = self.attempt.node();
        let end = node.own_end().filter(|end| end.origin == node.number());
        if let Some(end) = end {
            let reason = match end.reason {
                TerminalReason::Failed(_) => self.ruled(),
                _ => None,
            };
            self.serving.over(reason.as_ref().unwrap_or(&end.reason));
        }
    }

    /// What it failed with if it said so itself: the program has rules for that
    /// which the attempt's node knows nothing of.
    fn ruled(&self) -> Option<TerminalReason> {
        let told = self.judged.as_ref()?.failure()?;
        // The rules are the program's, and this is a drop: one that panics must
        // not take the process along.
        let class = catch_unwind(AssertUnwindSafe(|| self.judgement.of_stream(told).class));
        Some(TerminalReason::Failed(class.ok()?))
    }
}

/// Settles the node that a layer opened, or was the first to see. Declared
/// after what it is about, so that it drops last.
#[derive(Debug)]
pub(super) struct SettleGuard {
    run: Run,
    verdict: Option<TerminalReason>,
}

impl SettleGuard {
    pub(super) const fn new(run: Run) -> Self {
        Self { run, verdict: None }
    }

    /// What the node comes to, unless it was ended.
    pub(super) fn decide(&mut self, reason: Option<TerminalReason>) {
        self.verdict = reason;
    }
}

impl Drop for SettleGuard {
    fn drop(&mut self) {
        let verdict = self.verdict.take();
        self.run.settle(verdict.unwrap_or(TerminalReason::Aborted));
    }
}

/// Watches an attempt's share of the time, and settles the attempt.
#[derive(Debug)]
pub(crate) struct AttemptSupervision;

impl Policy for AttemptSupervision {
    // What the attempt comes to is judged here, unless it was further in.
    const READS: bool = true;
    // Whoever is further out looks for the answer's node, and finds its own.
    const TELLS: bool = false;
    // A whole answer may be judged a failure yet.
    const DEFERS: bool = true;

    fn pending(
        &mut self,
        found: &Run,
        _: Option<&Observer>,
        _: Duration,
        _: TaskId,
    ) -> Option<Nanos> {
        found.node().clocks.next()
    }
}
