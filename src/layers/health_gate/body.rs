//! The response body, and the probes while the upstream of one call is silent.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tower_service::Service;

use super::gate::{Gate, ProbeSubscription, wait};
use crate::{
    body::HeldPrefix,
    error::BoxError,
    run::{Role, Run},
};

/// The response body: the held frames, then the rest; probes the upstream while it is silent.
pub struct ProbedBody<B, P: Service<()>> {
    held: HeldPrefix,
    /// The inner body; `None` once it has ended or failed while the layer classified the answer.
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
        // No exact length for a held error: a server could stop before it polls for that error.
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

/// The number of failed probes in a row after which the upstream counts as dead.
const DEAD: u32 = 2;

/// Probes the upstream of a silent call, in the polls of that call.
///
/// Silence starts at a `Pending`, so a caller that does not poll causes none.
pub(super) struct Silence<P: Service<()>> {
    gate: Arc<Gate<P>>,
    run: Run,
    after: Duration,
    since: Option<Instant>,
    failed: u32,
    /// The timer for the start of the probes; created once, and reset if it fires too early.
    timer: Option<Pin<Box<Sleep>>>,
    subscription: Option<Pin<Box<ProbeSubscription<P>>>>,
}

impl<P: Service<()>> Silence<P> {
    pub(super) const fn new(gate: Arc<Gate<P>>, run: Run, after: Duration) -> Self {
        Self {
            gate,
            run,
            after,
            since: None,
            failed: 0,
            timer: None,
            subscription: None,
        }
    }

    /// Ends the silence, because the upstream has sent something; the next `Pending` starts
    /// another.
    #[inline]
    pub(super) fn reset(&mut self) {
        if self.since.take().is_some() {
            self.failed = 0;
            self.subscription = None;
        }
    }
}

impl<P: Service<(), Response = bool> + Clone> Silence<P> {
    /// Handles a `Pending` of the upstream; two failed probes in a row end the node.
    ///
    /// Otherwise the method registers the task for the next probe.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        let since = *self.since.get_or_insert_with(Instant::now);
        loop {
            let Some(subscription) = &mut self.subscription else {
                let at = since + self.after;
                let new = || Box::pin(tokio::time::sleep_until(at));
                let timer = self.timer.get_or_insert_with(new).as_mut();
                // Do not reset the timer with every frame: a timer that fires too early costs less.
                let is_early = timer.deadline() < at && !timer.is_elapsed();
                let until = if is_early { timer.deadline() } else { at };
                if wait(timer, until, cx).is_pending() {
                    return;
                }
                if Instant::now() >= at {
                    self.subscription = Some(Box::pin(ProbeSubscription::for_silence(Arc::clone(
                        &self.gate,
                    ))));
                }
                continue;
            };
            match subscription.as_mut().poll(cx) {
                Poll::Pending => return,
                Poll::Ready(true) => self.failed = 0,
                Poll::Ready(false) => self.failed += 1,
            }
            if self.failed >= DEAD {
                self.subscription = None;
                self.run.end_unhealthy(since.elapsed());
                return;
            }
        }
    }
}

impl<P: Service<()>> fmt::Debug for Silence<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Silence")
            .field("after", &self.after)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}
