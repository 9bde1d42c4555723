//! Ends a run that has used up its turns.
//!
//! An agent that polls for an event which never happens goes on for as long as it gets answers:
//! no call fails, each makes progress, and no clock of a call ever passes. Its cost grows with
//! its history. A prompt that asks the model to stop may fail, but the model cannot change this
//! count of requests.
//!
//! # What is counted
//!
//! A turn is one round of the agent's loop: a request for which a model generates, admitted by
//! this layer. The attempts and fallbacks of a turn are no further turns, and neither are the
//! tools that its answer calls. A retry by the caller is a new request, and a turn. By their
//! paths, embeddings, images, counts of tokens and lists of models are no turns; a request with
//! an unknown path is one. [`counts`](TurnCapLayer::counts) replaces this rule.
//!
//! The count belongs to the nearest run, so it holds across all requests with the run's id
//! ([`RunLayer`](crate::RunLayer)); a sub-agent's run has a separate count. A call counts once,
//! even if it passes several layers of this kind; each layer compares the number of the turn with
//! its cap.
//!
//! Without a cap the layer counts nothing, unless [`always_count`](TurnCapLayer::always_count) is
//! set.
//!
//! A cap of n admits the first n turns, also if they come at the same time. Turn n + 1 is refused
//! as [`TurnCap`](crate::TerminalReason::TurnCap): the inner service does not get that request, and
//! [`at_turn`](crate::Terminated::at_turn) is n.
//!
//! # When a run ends
//!
//! The refused turn closes the run. From then on each further call, tool and sub-agent of the run is
//! refused for the same reason, and so are further calls of its sub-agents. The calls and tools in
//! progress go on to their end, those of sub-agents included, and a call may still be repeated or
//! move to another model. When the last of them has ended, the run ends as `TurnCap`; without any it
//! ends at once. Until then all its limits hold.
//!
//! A [drain](crate::RunRegistry::drain) of the registry ends this grace: a call in progress then
//! starts no other attempt.
//!
//! A request that names no run, by an id that a [`RunLayer`](crate::RunLayer) reads or by a `Run`
//! in its extensions, is a separate run, and so has at most one turn.
//! [`OwnerCapLayer`](crate::OwnerCapLayer) limits how many such runs a caller may have.
//!
//! # The last call
//!
//! With [`finaliser`](TurnCapLayer::finaliser) the closing run admits one more call, which the
//! program makes with [`Run::finaliser`], for example to have the model sum up.
//!
//! The run then ends when that last call has ended and no other work is in progress, or when the
//! limit of `finaliser` has passed. The end at the limit comes with a poll of a call of
//! the run, [`Run::check`], [`Run::wait`], or a check by the registry. Ceilings go on.
//!
//! # Same instant
//!
//! A stored reason wins, then a passed absolute deadline, then the cap. If another clock of the run
//! passes in the same instant as the limit of `finaliser`, that clock wins too.
//!
//! # Order
//!
//! This layer belongs inside of [`RunLayer`](crate::RunLayer) and of
//! [`StopPhraseLayer`](crate::StopPhraseLayer), so that the user of a run at its cap can still
//! send a stop phrase; outside of retry and fallback layers, so that no attempt begins for a call
//! that this layer refuses. Inside of those layers it still counts a call once.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the inner one. If this layer opened the run, or was the
//! first layer to get a call that the program attached, a drop before the answer is complete also
//! ends that node as aborted. A dropped turn still counts.
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_agent::BoxError> {
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{Service, ServiceBuilder, service_fn};
//! use tower_agent::{Run, Terminated, TurnCapLayer};
//!
//! let mut model = ServiceBuilder::new()
//!     .layer(TurnCapLayer::new(2))
//!     .service(service_fn(|_: Request<()>| async {
//!         Ok::<_, std::io::Error>(Response::new(Full::new(Bytes::from("not yet"))))
//!     }));
//!
//! let run = Run::open();
//! model.call(run.attach(Request::new(()))).await?;
//! model.call(run.attach(Request::new(()))).await?;
//!
//! let error = model.call(run.attach(Request::new(()))).await.unwrap_err();
//! assert_eq!(Terminated::find(&*error).unwrap().at_turn(), Some(2));
//! assert_eq!(run.turns(), 2);
//! # Ok(())
//! # }
//! ```
//!
//! Allows one agent more turns than others, and gives a run time to sum up:
//!
//! ```
//! use std::time::Duration;
//! use tower_agent::TurnCapLayer;
//!
//! let layer = TurnCapLayer::new(30)
//!     .per_agent(|parts| (parts.headers.get("authorization")? == "Bearer coder").then_some(50))
//!     .finaliser(Duration::from_secs(60));
//! ```

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU32},
    time::Duration,
};

use http::{Request, request::Parts};
use tower_layer::Layer;

use crate::{
    attempt::generates,
    registry::AskedRun,
    run::{Run, Terminated, TurnLimit},
    supervise::{
        Claim, LayerHooks, LayerSettings, SupervisedBody, SupervisedFuture, SupervisedService,
        SupervisesCalls,
    },
};

type TurnsSource<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

/// Ends a run that has used up its turns: see the [module](self).
#[derive(Clone)]
pub struct TurnCapLayer {
    turns: Option<u32>,
    finaliser: Option<Duration>,
    counts: Option<TurnsSource<bool>>,
    per_agent: Option<TurnsSource<Option<u32>>>,
    always_counts: bool,
}

impl TurnCapLayer {
    /// Makes a layer that allows at most `turns` per run.
    ///
    /// # Panics
    ///
    /// Panics if `turns` is zero; [`optional`](Self::optional) makes a layer without a general cap.
    #[must_use]
    pub const fn new(turns: u32) -> Self {
        Self::optional(Some(turns))
    }

    /// Makes a layer that allows at most `turns` per run; `None` sets no general cap.
    ///
    /// With `None` the layer caps only requests for which [`per_agent`](Self::per_agent) returns
    /// a number.
    ///
    /// # Panics
    ///
    /// Panics if `turns` is zero.
    #[must_use]
    pub const fn optional(turns: Option<u32>) -> Self {
        if let Some(turns) = turns {
            assert!(turns > 0, "a run must have at least one turn");
        }
        Self {
            turns,
            finaliser: None,
            counts: None,
            per_agent: None,
            always_counts: false,
        }
    }

    /// Sets the function that decides which requests are turns, in place of the
    /// [default](self#what-is-counted).
    #[must_use]
    pub fn counts(mut self, counts: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.counts = Some(Arc::new(counts));
        self
    }

    /// Sets another cap on turns for some requests, such as 50 for one agent and 5 for another.
    ///
    /// The function tells the requests apart, by the caller's key for example. If it returns
    /// `None` or zero, the layer's own cap holds.
    ///
    /// Do not decide by a header that callers choose freely: an agent could raise its own cap
    /// with it.
    #[must_use]
    pub fn per_agent(
        mut self,
        turns: impl Fn(&Parts) -> Option<u32> + Send + Sync + 'static,
    ) -> Self {
        self.per_agent = Some(Arc::new(turns));
        self
    }

    /// Counts the turns of a run without a cap, too, for [`Run::turns`] and all that reports them.
    #[must_use]
    pub const fn always_count(mut self) -> Self {
        self.always_counts = true;
        self
    }

    /// Lets a run that has used up its turns make one more call, within `limit`.
    ///
    /// The program makes that call with [`Run::finaliser`]. Until the run ends, no other call or
    /// tool starts, and the calls and tools in progress go on.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is zero.
    #[must_use]
    pub const fn finaliser(mut self, limit: Duration) -> Self {
        assert!(!limit.is_zero(), "a last call must be given some time");
        self.finaliser = Some(limit);
        self
    }
}

impl<S> Layer<S> for TurnCapLayer {
    type Service = TurnCap<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SupervisedService::new(inner, Arc::new(self.clone()))
    }
}

impl fmt::Debug for TurnCapLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnCapLayer")
            .field("turns", &self.turns)
            .field("finaliser", &self.finaliser)
            .field("counts", &self.counts.is_some())
            .field("per_agent", &self.per_agent.is_some())
            .field("always_counts", &self.always_counts)
            .finish()
    }
}

/// The service of a [`TurnCapLayer`]; a clone of it shares the settings.
pub type TurnCap<S> = SupervisedService<S, Arc<TurnCapLayer>>;

/// The response future of [`TurnCap`].
pub type TurnCapFuture<F> = SupervisedFuture<F>;

/// The response body of [`TurnCap`].
pub type TurnCapBody<B> = SupervisedBody<B>;

/// The number of the turn that a layer further out gave this request; a request extension.
#[derive(Clone, Copy)]
struct RequestTurn {
    run: u64,
    number: u32,
}

impl TurnCapLayer {
    /// The cap that holds for a request; `None` if the layer does not count the request.
    fn limit_for<B>(&self, request: Request<B>) -> (Option<TurnLimit>, Request<B>) {
        if self.counts.is_none() && self.per_agent.is_none() {
            let counts = self.turns.is_some() || self.always_counts;
            let is_turn = counts && generates(&request);
            return (self.limit(is_turn.then_some(self.turns)), request);
        }
        let known = self.counts.is_none().then(|| generates(&request));
        let (parts, body) = request.into_parts();
        let counts = match &self.counts {
            Some(counts) => counts(&parts),
            None => known.unwrap_or(true),
        };
        let turns = counts.then(|| {
            let own = self.per_agent.as_ref().and_then(|turns| turns(&parts));
            own.filter(|turns| *turns > 0).or(self.turns)
        });
        (self.limit(turns), Request::from_parts(parts, body))
    }

    /// The cap on the run of a request, if the request is a turn under a cap.
    pub(crate) fn cap_for<B>(&self, request: Request<B>) -> (Option<u32>, Request<B>) {
        let (limit, request) = self.limit_for(request);
        let turns = limit.map(|limit| limit.turns);
        (
            turns.filter(|turns| *turns < TurnLimit::NONE.turns),
            request,
        )
    }

    /// The limit of a turn with this cap; `None` if the request is no turn, or is not counted.
    fn limit(&self, turn: Option<Option<u32>>) -> Option<TurnLimit> {
        let finaliser = self.finaliser;
        match turn? {
            Some(turns) => Some(TurnLimit { turns, finaliser }),
            None => self.always_counts.then_some(TurnLimit::NONE),
        }
    }
}

/// Counts the request as a turn, unless it is counted already or is the last call.
///
/// # Errors
///
/// A [`Terminated`] if the run is over, or refuses the request because it is closing or at its cap.
#[allow(
    clippy::result_large_err,
    reason = "the cold path, and the type of every layer"
)]
fn admit<B>(found: &Run, cap: TurnLimit, request: &mut Request<B>) -> Result<(), Terminated> {
    let run = found.run().node().number();
    let known = request.extensions().get::<RequestTurn>();
    let known = known.filter(|turn| turn.run == run);
    let number = AtomicU32::new(known.map_or(0, |turn| turn.number));
    let is_shared = found.node().shared().is_some();
    let asked = is_shared.then(|| request.extensions_mut().remove::<AskedRun>());
    let asked = asked.flatten().and_then(|asked| asked.take_turn());
    let taken = cap.take_turn(found, &number, asked);
    if is_shared {
        found.close_as_deferred();
    }
    taken?;
    let number = number.into_inner();
    if number > 0 {
        request.extensions_mut().insert(RequestTurn { run, number });
    }
    Ok(())
}

impl SupervisesCalls for TurnCapLayer {
    fn supervise<B, F>(
        &self,
        request: Request<B>,
        inner: impl FnOnce(Request<B>) -> F,
    ) -> SupervisedFuture<F> {
        let (cap, mut request) = self.limit_for(request);
        let Some(cap) = cap else {
            return SupervisedFuture::inert(inner(request));
        };
        let entry = Claim::of(&mut request);
        let found = entry.run.clone();
        if let Err(end) = admit(&found, cap, &mut request) {
            if !found.node().is_over() {
                // The run is closing and not over: refuse this call alone.
                return SupervisedFuture::refused(end.into());
            }
        }
        let is_capped = cap.turns < TurnLimit::NONE.turns;
        if !is_capped && !entry.owns && !found.node().is_over() {
            // The turn is counted, and a layer further out supervises the call.
            return SupervisedFuture::inert(inner(request));
        }
        let settings = match found.node().is_of_many() && !found.node().is_over() {
            true => LayerSettings::hooks(Counted::new(&found)),
            false => LayerSettings::passive(),
        };
        SupervisedFuture::new(entry, settings, request, inner)
    }
}

/// The count of a turn as work in progress of its run, for a request that carries the run and no
/// call: a run at its cap waits for its turns in progress.
#[derive(Debug)]
struct Counted(bool);

impl Counted {
    fn new(run: &Run) -> Self {
        run.node().enter();
        Self(true)
    }
}

impl LayerHooks for Counted {
    fn release(&mut self, run: &Run) {
        if std::mem::take(&mut self.0) {
            run.node().leave(run.now());
        }
    }
}
