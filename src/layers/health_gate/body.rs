//! The response body, and the probes while the upstream of one call is silent.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::{
    task::unconstrained,
    time::{Instant, Sleep, sleep_until},
};

use super::gate::{Gate, Probing};
use crate::{
    body::HeldPrefix,
    error::BoxError,
    lock::Lock,
    run::{Role, Run},
};

/// The response body: the held frames, then the rest; probes a silent upstream.
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
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
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
                let polled = Role::apart(|| inner.poll_frame(cx));
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

/// Probes the upstream of a silent call, in the polls of that call.
///
/// Silence starts at a `Pending`, so a caller that does not poll causes none.
pub(super) struct Silence {
    gate: Arc<Gate>,
    run: Run,
    after: Duration,
    since: Option<Instant>,
    /// The timer for the start of the probes, made at the first silence.
    timer: Option<Pin<Box<Sleep>>>,
    /// The probes of this silence, behind a lock to keep the body `Sync`.
    probes: Option<Lock<Probing<()>>>,
}

impl Silence {
    pub(super) const fn new(gate: Arc<Gate>, run: Run, after: Duration) -> Self {
        Self {
            gate,
            run,
            after,
            since: None,
            timer: None,
            probes: None,
        }
    }

    /// Ends the silence; the next `Pending` starts another.
    #[inline]
    pub(super) fn reset(&mut self) {
        if self.since.take().is_some() {
            self.probes = None;
        }
    }

    /// Handles a `Pending` of the upstream; ends the node if the probes find the upstream dead.
    ///
    /// Otherwise the task wakes when the probes have to start or to go on.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.probes.is_none() && self.poll_start(since + self.after, cx).is_ready() {
            self.probes = Some(Lock::new(self.gate.find_dead()));
        }
        let Some(probes) = &mut self.probes else {
            return;
        };
        if probes.get_mut().as_mut().poll(cx).is_ready() {
            self.probes = None;
            self.run.end_unhealthy(since.elapsed());
        }
    }

    /// Waits for the start of the probes, at `at`.
    fn poll_start(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
        // Do not reset the timer with every frame: a timer that fires too early costs less.
        while timer.deadline() < at {
            ready!(poll_timer(timer, cx));
            timer.as_mut().reset(at);
        }
        poll_timer(timer, cx)
    }
}

impl fmt::Debug for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Silence")
            .field("after", &self.after)
            .field("since", &self.since)
            .finish_non_exhaustive()
    }
}

/// Polls a timer outside of tokio's coop budget.
///
/// A `Sleep` that is `Pending` for lack of budget has not registered its waker.
pub(super) fn poll_timer(timer: &mut Pin<Box<Sleep>>, cx: &mut Context<'_>) -> Poll<()> {
    Pin::new(&mut unconstrained(timer)).poll(cx)
}
