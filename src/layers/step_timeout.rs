//! Ends a call, an attempt or a run in which nothing was progress for a while.
//!
//! A wall clock kills a turn that chains six slow steps although it was
//! working all the time, and it lets a stream that hangs after its first token
//! hang until the clock is up. A step window does neither: it starts anew with
//! every step and every delta, and ends the node with
//! [`StepTimeout`] once a whole window
//! passes in silence.
//!
//! # When the clock runs
//!
//! Only while the upstream is waited for: from the first `Pending` of the
//! response future (so before the head) and from the first `Pending` after a
//! frame. What passes between a frame and the next `Pending` is the reader's
//! time, what passes during a [`pause`](crate::Run::pause) somebody else's;
//! both are taken out. A frame that is no progress (a ping, a comment, the
//! prelude) interrupts the counting and does not reset it. The window is exact
//! to the millisecond of the runtime's timer.
//!
//! In an event stream (`text/event-stream`, not compressed) progress is what
//! the dialect says is a delta; elsewhere every byte is progress.
//! [`resets_on`](StepTimeoutLayer::resets_on) says what resets it.
//!
//! # Local models
//!
//! A model on a slow machine may take a minute for a token, or for a whole answer:
//! no window for progress tells that from one that is dead.
//! [`StepTimeoutLayer::local`] has none. An open connection counts as life, until
//! the stream has shown a heartbeat, which is a comment or a ping. From then on its
//! silence means something: when nothing at all comes for twice the
//! [interval](StepTimeoutLayer::heartbeat), 20 s unless set, the node ends with
//! [`StepTimeout`], and the message says that
//! the heartbeats stopped.
//!
//! Neither a delta nor a byte of an answer that is no event stream is a promise of
//! more, so they start no clock; they do restart one that runs. Nor does the first
//! ping of an Anthropic stream before its first content, with which that API begins
//! every stream. A server that sends heartbeats more rarely needs a longer interval.
//!
//! # Shadow mode
//!
//! A limit that is too short kills what works, and one is wiser after the fact.
//! `observe` lets a layer measure and end nothing: each time that the limit passes,
//! observers get a [`WouldHaveEnded`](crate::RunNotice::WouldHaveEnded), and if what it
//! would have ended completes all the same a
//! [`FalsePositive`](crate::RunNotice::FalsePositive), which is logged as a warning too.
//! [`RunRegistry::shadow`](crate::RunRegistry::shadow) counts both. An old limit may
//! go on ending things beside it.
//!
//! # Same instant
//!
//! A reason that is stored already wins, then a ready frame or a ready answer,
//! whatever the clock says; then the outermost node whose clock has passed,
//! and on one node ceiling, step, caller's deadline; then an error from below.
//!
//! # Order
//!
//! Outside a retry or fallback layer it measures the call, inside of it the
//! attempt, where another may then be tried. Use both. Inside of a
//! [`PumpLayer`](crate::PumpLayer), on servers.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops what is inside, and if this layer
//! opened the run, ends it as aborted. When the window passes, the inner
//! future or body is dropped in the same poll.
//!
//! # Panics
//!
//! Polling panics outside of a tokio runtime with its timer enabled, once
//! something is waited for.
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
//! use std::time::Duration;
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_agent::{StepTimeoutLayer, TerminalReason};
//!
//! let hung = ServiceBuilder::new()
//!     .layer(StepTimeoutLayer::new(Duration::from_secs(120)))
//!     .service(service_fn(|_: Request<()>| {
//!         std::future::pending::<Result<Response<Full<Bytes>>, std::io::Error>>()
//!     }));
//!
//! let error = hung.oneshot(Request::new(())).await.unwrap_err();
//! assert_eq!(TerminalReason::find(&*error), Some(&TerminalReason::StepTimeout));
//! # }
//! ```
//!
//! A local model, which may think as long as it lives:
//!
//! ```
//! use std::time::Duration;
//! use tower::ServiceBuilder;
//! use tower_agent::{HardCeilingLayer, StepTimeoutLayer};
//!
//! let stack = ServiceBuilder::new()
//!     .layer(HardCeilingLayer::new(Duration::from_secs(3600)))
//!     .layer(StepTimeoutLayer::local().heartbeat(Duration::from_secs(15)));
//! ```
//!
//! A longer wait for the first token, and a window on the whole run beside it:
//!
//! ```
//! use std::time::Duration;
//! use tower::ServiceBuilder;
//! use tower_agent::{Scope, StepTimeoutLayer};
//!
//! let stack = ServiceBuilder::new()
//!     .layer(StepTimeoutLayer::new(Duration::from_secs(300)).scope(Scope::Run))
//!     .layer(StepTimeoutLayer::new(Duration::from_secs(120)).first(Duration::from_secs(240)));
//! ```

use std::{
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    error::BoxError,
    run::{
        HEARTBEAT, IdleTimer, Limits, Nanos, ResetOn, Run, Scope, TaskId, TerminalReason, nanos,
    },
    supervise::{Claim, FrameKind, Observer, Policy, SupervisedBody, SupervisedFuture},
};

/// Ends a node in which nothing was progress for a window: see the
/// [module](self).
#[derive(Clone, Copy, Debug)]
pub struct StepTimeoutLayer {
    windows: Option<Windows>,
    scope: Scope,
}

impl StepTimeoutLayer {
    /// At most `window` of silence.
    ///
    /// # Panics
    ///
    /// If `window` is zero; use [`optional`](Self::optional) to leave it out.
    #[must_use]
    pub const fn new(window: Duration) -> Self {
        Self::optional(Some(window))
    }

    /// The same, or a layer that does nothing for `None`.
    ///
    /// # Panics
    ///
    /// If `window` is zero.
    #[must_use]
    pub const fn optional(window: Option<Duration>) -> Self {
        let windows = match window {
            Some(window) => {
                assert!(!window.is_zero(), "a step window must be longer than zero");
                Some(Windows::new(window))
            }
            None => None,
        };
        Self {
            windows,
            scope: Scope::Found,
        }
    }

    /// The profile of slow local models: no window at all for what is progress, a
    /// stream's own heartbeats tell whether the model lives. See the
    /// [module](super#local-models).
    #[must_use]
    pub const fn local() -> Self {
        Self {
            windows: Some(Windows::heartbeat(HEARTBEAT)),
            scope: Scope::Found,
        }
    }

    /// How often a stream shows a sign of life, if it shows any; by default every
    /// 10 s. Without one for twice as long, its model is dead. Only the
    /// [local](Self::local) profile asks for it.
    ///
    /// # Panics
    ///
    /// If `interval` is zero.
    #[must_use]
    pub const fn heartbeat(mut self, interval: Duration) -> Self {
        assert!(
            !interval.is_zero(),
            "a heartbeat must take longer than zero"
        );
        if let Some(windows) = &mut self.windows {
            if let Limit::Heartbeat(every) = &mut windows.limit {
                *every = interval;
            }
        }
        self
    }

    /// A different window until the first content: for an answer that does not
    /// stream it is the whole wait. An inert layer stays inert, and one of the
    /// [local](Self::local) profile has no window.
    ///
    /// # Panics
    ///
    /// If `window` is zero.
    #[must_use]
    pub const fn first(mut self, window: Duration) -> Self {
        assert!(!window.is_zero(), "a first window must be longer than zero");
        if let Some(windows) = &mut self.windows {
            if let Limit::Step { first, .. } = &mut windows.limit {
                *first = window;
            }
        }
        self
    }

    /// What resets the window; by default [`ResetOn::Content`].
    #[must_use]
    pub const fn resets_on(mut self, resets_on: ResetOn) -> Self {
        if let Some(windows) = &mut self.windows {
            windows.resets_on = resets_on;
        }
        self
    }

    /// Shadow mode: measures and ends nothing. When the window passes, observers are
    /// told what [would have ended](crate::RunNotice::WouldHaveEnded), and if it completes
    /// all the same, that this was a [false positive](crate::RunNotice::FalsePositive).
    /// Another layer, of a limit that is known to be safe, may stand beside it.
    #[must_use]
    pub const fn observe(mut self) -> Self {
        if let Some(windows) = &mut self.windows {
            windows.observes = true;
        }
        self
    }

    /// Which node is measured, and ended. By default the one found.
    #[must_use]
    pub const fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }
}

impl<S> Layer<S> for StepTimeoutLayer {
    type Service = StepTimeout<S>;

    fn layer(&self, inner: S) -> Self::Service {
        StepTimeout::new(inner, self.windows, self.scope)
    }
}

/// The service of a [`StepTimeoutLayer`].
#[derive(Clone, Copy, Debug)]
pub struct StepTimeout<S> {
    inner: S,
    windows: Option<Windows>,
    scope: Scope,
}

impl<S> StepTimeout<S> {
    const fn new(inner: S, windows: Option<Windows>, scope: Scope) -> Self {
        Self {
            inner,
            windows,
            scope,
        }
    }
}

/// The response future of [`StepTimeout`].
pub type StepTimeoutFuture<F> = SupervisedFuture<F, StepPolicy>;

/// The response body of [`StepTimeout`].
pub type StepTimeoutBody<B> = SupervisedBody<B, StepPolicy>;

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for StepTimeout<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    S::Error: Into<BoxError>,
    ResBody: Body<Data = Bytes>,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<StepTimeoutBody<ResBody>>;
    type Error = BoxError;
    type Future = StepTimeoutFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        let Some(windows) = self.windows else {
            return SupervisedFuture::inert(self.inner.call(request));
        };
        let entry = Claim::of(&mut request);
        let policy = StepPolicy::new(windows.replaced_by(&request), &entry.run, self.scope);
        SupervisedFuture::new(entry, policy, request, |request| self.inner.call(request))
    }
}

/// The windows of a layer, or of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    limit: Limit,
    resets_on: ResetOn,
    observes: bool,
}

/// What ends a node.
#[derive(Clone, Copy, Debug)]
enum Limit {
    /// No progress for so long.
    Step { first: Duration, step: Duration },
    /// No sign of life for twice this interval.
    Heartbeat(Duration),
}

/// Measures silence towards one node.
#[derive(Debug)]
#[doc(hidden)]
pub struct StepPolicy {
    silence: IdleTimer,
    /// The window from the first content on, if it is another.
    then: Option<Box<Duration>>,
    scope: Scope,
    /// It would have ended, which was told.
    told: bool,
}

impl Windows {
    const fn new(window: Duration) -> Self {
        Self {
            limit: Limit::Step {
                first: window,
                step: window,
            },
            resets_on: ResetOn::Content,
            observes: false,
        }
    }

    const fn heartbeat(interval: Duration) -> Self {
        Self {
            limit: Limit::Heartbeat(interval),
            resets_on: ResetOn::Content,
            observes: false,
        }
    }

    /// With what the program set for this request in their place.
    #[inline]
    fn replaced_by<B>(mut self, request: &Request<B>) -> Self {
        if let Some(limits) = request.extensions().get::<Limits>() {
            let set = |limit: Option<Duration>| limit.filter(|limit| !limit.is_zero());
            if let Some(step) = set(limits.step) {
                self.limit = Limit::Step { first: step, step };
            }
            if let (Some(limit), Limit::Step { first, .. }) = (set(limits.first), &mut self.limit) {
                *first = limit;
            }
        }
        self
    }
}

impl StepPolicy {
    #[inline]
    fn new(windows: Windows, found: &Run, scope: Scope) -> Self {
        let (silence, then) = match windows.limit {
            Limit::Step { first, step } => {
                let then = (first != step).then(|| Box::new(step));
                (IdleTimer::new(windows.resets_on, first), then)
            }
            Limit::Heartbeat(interval) => {
                found.expect_heartbeat(interval);
                (IdleTimer::lifeless(interval.saturating_mul(2)), None)
            }
        };
        Self {
            silence: if windows.observes {
                silence.observing()
            } else {
                silence
            },
            then,
            scope,
            told: false,
        }
    }

    /// Waits without a consequence for the node.
    #[cold]
    fn observe(&mut self, found: &Run, now: Duration, task: TaskId) -> Option<Nanos> {
        if self.told {
            return None;
        }
        let due = self.silence.wait(found.in_scope(self.scope), now, task)?;
        if due > nanos(now) {
            return Some(due);
        }
        self.told = true;
        let limit = Some(self.silence.limit());
        found.would_end(self.scope, &TerminalReason::StepTimeout, limit);
        None
    }

    /// From the first content on the other window holds.
    #[inline]
    fn begin(&mut self, tap: Option<&Observer>) {
        if self.then.is_some() && tap.is_some_and(Observer::has_content) {
            if let Some(window) = self.then.take() {
                self.silence.set_length(*window);
            }
        }
    }
}

impl Policy for StepPolicy {
    const READS: bool = true;

    fn pending(
        &mut self,
        found: &Run,
        tap: Option<&Observer>,
        now: Duration,
        task: TaskId,
    ) -> Option<Nanos> {
        self.begin(tap);
        if self.silence.is_of_life() && !tap.is_some_and(Observer::has_heartbeats) {
            // Nothing was promised: the open connection is life.
            return None;
        }
        let node = found.in_scope(self.scope);
        if !self.silence.observes() {
            return self.silence.wait(node, now, task);
        }
        self.observe(found, now, task)
    }

    #[inline]
    fn answered(&mut self, found: &Run) {
        // Until the body is polled it is the reader's time; a head is bytes, and
        // no content.
        self.frame(found, Some(FrameKind::Life), None);
    }

    #[inline]
    fn frame(&mut self, found: &Run, seen: Option<FrameKind>, tap: Option<&Observer>) {
        self.begin(tap);
        let resets = match self.silence.resets_on() {
            // What a layer of ours inserted says nothing of the upstream.
            ResetOn::AnyByte => seen != Some(FrameKind::Inserted),
            ResetOn::Content => seen == Some(FrameKind::Progress),
            ResetOn::Step => false,
        };
        if resets {
            self.silence.reset();
        } else if self.silence.is_counting() {
            self.silence
                .interrupt(found.in_scope(self.scope), found.now());
        }
    }

    fn failed(&mut self, found: &Run, now: Duration, task: TaskId) {
        self.silence.look(found.in_scope(self.scope), now, task);
    }

    #[inline]
    fn release(&mut self, found: &Run) {
        self.silence.close(found.in_scope(self.scope));
    }
}
