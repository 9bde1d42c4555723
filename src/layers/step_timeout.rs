//! Ends a call, an attempt or a run that makes no progress for a while.
//!
//! A limit on the total time ends a turn that chains six slow steps, although the turn makes
//! progress all the time. And such a limit lets a stream that stalls after its first token hang
//! until the limit. A step window does neither: by default the window restarts with every step and
//! every delta, and ends the node with [`StepTimeout`](crate::TerminalReason::StepTimeout) once it
//! passes without either.
//!
//! # When the clock runs
//!
//! The clock runs only while the layer waits for the upstream: from the first `Pending` of the
//! response future, so before the head, and from the first `Pending` after the head or a frame. The
//! time between a frame and the next `Pending` does not count, because the reader of the body
//! causes it; nor does a [`pause`](crate::Run::pause). A frame without progress (a ping, a comment,
//! the prelude) stops the clock until the next `Pending`, and does not reset the time counted so
//! far. The window is exact to the millisecond of the runtime's timer.
//!
//! A process that was stopped, or had no processor, looks at its windows late. What came meanwhile
//! may be there to be read, but the runtime may poll a call before it has read the call's socket. So
//! a window that is first found 10 ms late or more runs on for as long as it was late: 50 to 200 ms,
//! and not longer than itself; once until the next event that resets it.
//!
//! In a successful event stream that is not compressed (`text/event-stream`, or one by its first
//! bytes if the request asks for a stream) a delta of the dialect is progress; in any other answer
//! every byte is, but for white space before the first other one. [`resets_on`](StepTimeoutLayer::resets_on) changes
//! the events that reset the window.
//!
//! # A floor on speed
//!
//! A stream that crawls is alive, and no step window ends it. With
//! [`min_tokens_per_second`](StepTimeoutLayer::min_tokens_per_second) a node ends as
//! [`Slow`](crate::TerminalReason::Slow) if its stream is below a number of tokens a second, on average
//! over a time. The tokens are those that the upstream states, or else
//! [estimates](crate::layers::token_cap#estimates), with those of reasoning and of tool calls. Only an
//! event stream is measured, and ends with the event that shows that it was too slow.
//!
//! The speed is measured between content events, from the first one on, while the layer waits for the
//! upstream. These times do not count: those of a slow reader, those of a pause, and a slow one while a
//! tool of the run is under way. Nor does a gap without content that is longer than an eighth of the
//! time: that may be hidden reasoning, and is the step window's affair. So at least eight content
//! events stand in the time. An upstream that sends its text in larger and rarer pieces needs a longer
//! time. Content without text, such as audio or the signature of hidden reasoning, is not measured.
//!
//! A retry or fallback layer that has a [`hold`](crate::RetryBudgetLayer::hold) holds an attempt's
//! answer back, for that time and 256 KiB at most, until the stream has shown its speed: by an eighth of
//! the tokens that the floor asks for in its time, or by one piece behind a longer gap that is as much as
//! the floor asks for in that gap. Other content behind too long a gap, content without text, and a slow
//! gap beside a tool hand the answer on, too, as nothing tells the speed; unless the stream was below the
//! floor in the time that counts. So another attempt can follow a slow one. Without a `hold` the first
//! content commits the attempt, as ever, and a slow stream ends in the middle.
//!
//! # Tools
//!
//! With [`scope`](StepTimeoutLayer::scope)`(Scope::Run)` the window belongs to the run, and also
//! measures the run's [tools](crate::Run::tool), once a call of the run has passed through the
//! layer: a tool that hangs ends the run. Between calls and tools no time counts. The [window of a
//! tool](crate::tool::Tool::window), or that of [`Run::tool_window`](crate::Run::tool_window),
//! alone measures its tool. While such a tool runs, the windows of the runs above it are stopped.
//!
//! # Local models
//!
//! A model on a slow machine may take a minute for a token, or for a whole answer: no window for
//! progress separates a slow model from a dead one. A layer made by [`StepTimeoutLayer::local`] has
//! no such window. Until the stream sends its first heartbeat, which is a comment or a ping, that
//! layer sets no limit while the connection is open.
//!
//! From the first heartbeat on, the node ends with
//! [`StepTimeout`](crate::TerminalReason::StepTimeout) when no byte comes for twice the
//! [interval](StepTimeoutLayer::heartbeat), by default for 20 s. The message says that the
//! heartbeats stopped.
//!
//! In a layer made by `local` only a heartbeat starts the clock; once it runs, any byte restarts
//! it. Deltas do not start the clock, because the upstream need not send more of them in time. Nor
//! does the first ping of an Anthropic stream before its first content, as that API begins every
//! stream with a ping. A server that sends heartbeats less often than the interval needs a longer
//! interval.
//!
//! # Shadow mode
//!
//! A limit that is too short ends work that was fine, which shows only afterwards. With `observe` a
//! layer measures and ends nothing. The first time that the window passes on a node, observers get
//! a [`WouldHaveEnded`](crate::RunNotice::WouldHaveEnded). If the node completes after that,
//! observers get a [`FalsePositive`](crate::RunNotice::FalsePositive), also logged as a warning.
//! [`RunRegistry::shadow`](crate::RunRegistry::shadow) counts both. A second layer, with a limit
//! known to be safe, may enforce that limit in the same stack.
//!
//! # Same instant
//!
//! A stored reason wins. Then a ready frame or answer wins over every clock, but for the absolute
//! deadlines at each 16th ready frame in a row. Of several nodes with a passed clock the outermost
//! ends; on one node the ceiling wins over the step window and the floor, and both over the caller's
//! deadline. A whole answer is never too slow. An error of the inner service comes last.
//!
//! # Order
//!
//! Outside of a retry or fallback layer this layer measures the call; inside of one it measures an
//! attempt, and another attempt may follow. Use both, and make the outer window longer: an outer
//! window that is not longer ends the call before another attempt can follow a silent one, and the
//! first such end is logged as a warning. On servers, the layer belongs inside of a
//! [`PumpLayer`](crate::PumpLayer).
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the inner one. If this layer opened the run, or was the
//! first layer to get a call that the program attached, a drop before the answer is complete also
//! ends that node as aborted. The poll in which the window ends the node drops the inner future or
//! body.
//!
//! # Panics
//!
//! A pending poll panics outside of a tokio runtime with its timer enabled, if a clock runs.
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
//! An attempt that another one may replace if it sends less than 8 tokens a second for 30 s:
//!
//! ```
//! use std::time::Duration;
//! use tower::ServiceBuilder;
//! use tower_agent::{RetryBudget, RetryBudgetLayer, StepTimeoutLayer};
//!
//! let stack = ServiceBuilder::new()
//!     .layer(RetryBudgetLayer::new(RetryBudget::new()).hold(Duration::from_secs(60)))
//!     .layer(
//!         StepTimeoutLayer::new(Duration::from_secs(120))
//!             .min_tokens_per_second(8.0, Duration::from_secs(30)),
//!     );
//! ```
//!
//! A local model, which may take any time while it sends heartbeats:
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

use std::time::Duration;

use http::Request;
use tower_layer::Layer;

use crate::{
    run::{HEARTBEAT, Limits, ResetOn, Run, Scope},
    supervise::{
        Claim, FlooredWindow, LayerSettings, SpeedFloor, StepWindow, SupervisedFuture,
        SupervisedService, SupervisesCalls,
    },
};

/// Ends a node that makes no progress for a window: see the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct StepTimeoutLayer {
    limit: Option<Limit>,
    floor: Option<SpeedFloor>,
    resets_on: ResetOn,
    observes: bool,
    scope: Scope,
}

impl StepTimeoutLayer {
    /// Makes a layer that allows at most `window` of silence.
    ///
    /// # Panics
    ///
    /// Panics if `window` is zero; [`optional`](Self::optional) makes a layer without a window.
    #[must_use]
    pub const fn new(window: Duration) -> Self {
        Self::optional(Some(window))
    }

    /// Makes a layer that allows at most `window` of silence; `None` sets no window.
    ///
    /// A layer without a window limits no request, and ignores [`Limits`].
    ///
    /// # Panics
    ///
    /// Panics if `window` is zero.
    #[must_use]
    pub const fn optional(window: Option<Duration>) -> Self {
        match window {
            Some(window) => {
                assert!(!window.is_zero(), "a step window must be longer than zero");
                let (first, step) = (window, window);
                Self::limited_by(Some(Limit::Step { first, step }))
            }
            None => Self::limited_by(None),
        }
    }

    /// Makes a layer for slow local models: it limits the silence after a heartbeat, not progress.
    ///
    /// See the [module](self#local-models).
    #[must_use]
    pub const fn local() -> Self {
        Self::limited_by(Some(Limit::Heartbeat(HEARTBEAT)))
    }

    const fn limited_by(limit: Option<Limit>) -> Self {
        Self {
            limit,
            floor: None,
            resets_on: ResetOn::Content,
            observes: false,
            scope: Scope::Found,
        }
    }

    /// The interval in which a stream with heartbeats sends one; 10 s by default.
    ///
    /// Once the stream has sent a heartbeat, twice the interval without a byte ends the node. Only
    /// a layer made by [local](Self::local) uses the interval; on any other layer this setting has
    /// no effect.
    ///
    /// # Panics
    ///
    /// Panics if `interval` is zero.
    #[must_use]
    pub const fn heartbeat(mut self, interval: Duration) -> Self {
        assert!(
            !interval.is_zero(),
            "a heartbeat must take longer than zero"
        );
        if let Some(Limit::Heartbeat(every)) = &mut self.limit {
            *every = interval;
        }
        self
    }

    /// Sets another window for the time until the first content.
    ///
    /// For an answer that is not an event stream, this window lasts until the first byte of the
    /// body that is not white space. After [`optional(None)`](Self::optional) the layer limits only
    /// the time until the first content. The setting has no effect on a [local](Self::local) layer.
    ///
    /// # Panics
    ///
    /// Panics if `window` is zero.
    #[must_use]
    pub const fn first(mut self, window: Duration) -> Self {
        assert!(!window.is_zero(), "a first window must be longer than zero");
        match &mut self.limit {
            Some(Limit::Step { first, .. }) => *first = window,
            Some(Limit::Heartbeat(_)) => {}
            None => {
                let (first, step) = (window, Duration::MAX);
                self.limit = Some(Limit::Step { first, step });
            }
        }
        self
    }

    /// Sets a floor on the speed of streams: below `tokens` a second, on average over this time, the
    /// node ends as [`Slow`](crate::TerminalReason::Slow). See the [module](self#a-floor-on-speed).
    ///
    /// There is no floor by default. After [`optional(None)`](Self::optional) the floor is the layer's
    /// only limit.
    ///
    /// # Panics
    ///
    /// Panics if `tokens` is not a number above 0 and up to
    /// [`MAX_TOKENS_PER_SECOND`](Self::MAX_TOKENS_PER_SECOND), or if `over` is zero.
    #[must_use]
    pub const fn min_tokens_per_second(mut self, tokens: f64, over: Duration) -> Self {
        assert!(
            tokens > 0.0 && tokens <= Self::MAX_TOKENS_PER_SECOND,
            "a floor must be above 0 tokens a second, and one that a model can reach"
        );
        assert!(
            !over.is_zero(),
            "the speed is measured over a time longer than zero"
        );
        self.floor = Some(SpeedFloor {
            tokens_per_second: tokens,
            over,
        });
        self
    }

    /// The highest floor on the speed of streams, which no model reaches.
    pub const MAX_TOKENS_PER_SECOND: f64 = 10_000.0;

    /// The events that reset the window; by default [`ResetOn::Content`].
    ///
    /// A [local](Self::local) layer uses the setting only for requests with a
    /// [`Limits::step`](crate::Limits::step).
    #[must_use]
    pub const fn resets_on(mut self, resets_on: ResetOn) -> Self {
        self.resets_on = resets_on;
        self
    }

    /// Turns on shadow mode: the layer measures, and ends nothing.
    ///
    /// The first time that the window passes on a node, observers get a
    /// [`WouldHaveEnded`](crate::RunNotice::WouldHaveEnded). If the node completes after that,
    /// observers get a [`FalsePositive`](crate::RunNotice::FalsePositive). A second layer, with a
    /// limit known to be safe, may enforce that limit in the same stack.
    #[must_use]
    pub const fn observe(mut self) -> Self {
        self.observes = true;
        self
    }

    /// The node that the layer measures and ends; by default the one found in the request.
    #[must_use]
    pub const fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// The windows until the first content and after it; `None` if the layer has none, is local, or
    /// only observes.
    pub(crate) const fn windows(&self) -> Option<(Duration, Duration)> {
        match self.limit {
            Some(Limit::Step { first, step }) if !self.observes => Some((first, step)),
            _ => None,
        }
    }

    /// The time over which the layer measures the speed of streams; `None` if it has no floor, or only
    /// observes.
    pub(crate) fn speed_over(&self) -> Option<Duration> {
        let floor = self.floor.filter(|_| !self.observes);
        floor.map(|floor| floor.over)
    }

    /// Makes the step window that enforces `limit` on `found`, or on its run by the layer's scope;
    /// `None` if the request has no window at all.
    #[inline]
    fn window_for<B>(&self, limit: Limit, request: &Request<B>, found: &Run) -> Option<StepWindow> {
        let window = match limit.for_request(request, found)? {
            Limit::Step { first, step } => StepWindow::new(first, step, self.resets_on, self.scope),
            Limit::Heartbeat(interval) => {
                found.run_state().expect_heartbeat(interval);
                StepWindow::of_life(interval.saturating_mul(2), self.scope)
            }
        };
        Some(window.observing(self.observes))
    }

    /// Sets the window of the run, for its tools; a local layer sets none.
    #[inline]
    fn add_run_window(&self, limit: Limit, run: &Run) {
        if let (Limit::Step { step, .. }, Scope::Run) = (limit, self.scope) {
            run.add_window(step, self.resets_on, self.observes);
        }
    }

    /// Whether the layer limits no call.
    #[inline]
    pub(crate) const fn is_off(&self) -> bool {
        self.limit.is_none() && self.floor.is_none()
    }

    /// The settings of this layer for a call on `found`; passive ones if it does not limit the call.
    #[inline]
    pub(crate) fn settings_for<B>(&self, request: &Request<B>, found: &Run) -> LayerSettings {
        if let Some(floor) = self.floor {
            return self.floored(floor, request, found);
        }
        let window = self.add_windows(request, found);
        window.map_or_else(LayerSettings::passive, |window| {
            LayerSettings::window(window).reading()
        })
    }

    /// Sets the window of the run, for its tools, and makes the window of this call.
    #[inline]
    fn add_windows<B>(&self, request: &Request<B>, found: &Run) -> Option<StepWindow> {
        let limit = self.limit?;
        self.add_run_window(limit, found);
        self.window_for(limit, request, found)
    }

    /// Puts the floor beside the window, or beside one that never passes, and has the streams of
    /// `found` measured. Apart, so that a layer without a floor stays small.
    #[cold]
    #[inline(never)]
    fn floored<B>(&self, floor: SpeedFloor, request: &Request<B>, found: &Run) -> LayerSettings {
        let window = self.add_windows(request, found);
        // No answer is held back for a floor that ends no attempt.
        let of_attempt = !self.observes && self.scope == Scope::Found;
        let scope = if of_attempt { Scope::Found } else { Scope::Run };
        found.in_scope(scope).attempts().set_floor();
        let never = Duration::MAX;
        let endless =
            || StepWindow::new(never, never, self.resets_on, self.scope).observing(self.observes);
        let window = FlooredWindow::new(window.unwrap_or_else(endless), floor);
        LayerSettings::hooks(window).frames().reading()
    }
}

impl<S> Layer<S> for StepTimeoutLayer {
    type Service = StepTimeout<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SupervisedService::new(inner, *self)
    }
}

/// The service of a [`StepTimeoutLayer`].
pub type StepTimeout<S> = SupervisedService<S, StepTimeoutLayer>;

// The layer sets the window. `supervise::step_window` counts it, and `run::tree::check` ends the node
// once it has passed.
impl SupervisesCalls for StepTimeoutLayer {
    #[inline]
    fn supervise<B, F>(
        &self,
        mut request: Request<B>,
        inner: impl FnOnce(Request<B>) -> F,
    ) -> SupervisedFuture<F> {
        if self.is_off() {
            return SupervisedFuture::inert(inner(request));
        }
        let claim = Claim::of(&mut request);
        let settings = self.settings_for(&request, &claim.run);
        SupervisedFuture::new(claim, settings, request, inner)
    }
}

/// The longest silence, after which a node ends.
#[derive(Clone, Copy, Debug)]
enum Limit {
    /// At most `first` without progress until the first content, and then at most `step`.
    Step { first: Duration, step: Duration },
    /// At most twice this interval without a byte, once the stream has sent a heartbeat.
    Heartbeat(Duration),
}

impl Limit {
    /// The limit for this request: those in its `Limits` extension replace this one. `None` if the
    /// request has no window at all.
    ///
    /// Also sets the window of tools on `found`, if the extension has one.
    #[inline]
    fn for_request<B>(mut self, request: &Request<B>, found: &Run) -> Option<Self> {
        let Some(limits) = Limits::of(request.extensions()) else {
            return Some(self);
        };
        if let Some(window) = limits.tool {
            found.tool_window(window);
        }
        if let Some(step) = limits.step {
            self = Self::Step { first: step, step };
        }
        if let Self::Step { first, step } = &mut self {
            *first = limits.first.unwrap_or(*first);
            if first.is_zero() && step.is_zero() {
                return None;
            }
            for length in [first, step] {
                if length.is_zero() {
                    *length = Duration::MAX;
                }
            }
        }
        Some(self)
    }
}
