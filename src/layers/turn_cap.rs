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
//! this layer. The attempts and fallbacks of a turn are not further turns, and neither are the
//! tools that its answer calls. A retry by the caller is a new request, and a turn. By their
//! paths, embeddings, images, counts of tokens and lists of models are not turns; a request with
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
//! # Pauses
//!
//! With [`pause`](TurnCapLayer::pause) a turn beyond the cap pauses its run instead of closing it,
//! and waits for an operator, who [extends](Run::extend) the run. The waiting turn is held without
//! an answer, and then goes on in the order in which the turns came. If it has waited for as long
//! as [`PauseAtCap::wait`] says, it fails as [`RunPaused`](crate::run::RunPaused), a 503 after
//! which clients try again. A run without an extension ends as `TurnCap` once it was paused for
//! [`PauseAtCap::limit`].
//!
//! While a run is paused, its calls and tools in progress go on, its step windows, its ceiling and
//! its timeout stand still, those of its sub-agents too, and it does not complete for being idle.
//! Turns of its sub-agents are held as its own are. What is held or refused counts nowhere: it is
//! not a turn of the run or of its owner, no attempt and no error, and a dropped one gives back all
//! that it had taken. Deadlines of a held call, such as those that its caller announced, go on. A
//! run of one call ends at its caps.
//!
//! The same layer also holds the turns of a run that an operator has [suspended](Run::suspend), with a
//! cap or without one, if it counts them.
//!
//! A turn that waits has an order only at its own replica, if the registry is
//! [shared](crate::RunRegistry::share), and an extension reaches the replica where it is made.
//!
//! # The last call
//!
//! With [`final_call`](TurnCapLayer::final_call) the closing run admits one more call, which the
//! program makes with [`Run::final_call`], for example to have the model sum up.
//!
//! The run then ends when that last call has ended and no other work is in progress, or when the
//! limit of `final_call` has passed. The end at the limit comes with a poll of a call of
//! the run, [`Run::check`], [`Run::wait`], or a check by the registry. Ceilings go on.
//!
//! # Same instant
//!
//! A stored reason wins, then a passed absolute deadline, then the cap. An extension wins over the end of
//! a wait, and a passed deadline over the limit of a pause. If another clock of the run
//! passes in the same instant as the limit of `final_call`, that clock wins too.
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
//! ends that node as aborted. A dropped turn still counts, but for one that is held.
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
//!     .final_call(Duration::from_secs(60));
//! ```

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU32},
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Extensions, Request, request::Parts};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    attempt::generates,
    registry::AskedRun,
    run::{HeldBy, PauseAtCap, Run, TurnLimit, TurnQuestion, TurnRefused, TurnUnderWay},
    supervise::{
        AdmitsHeld, Claim, HeldFuture, HoldingService, HoldsCalls, LayerHooks, LayerSettings,
        SupervisedFuture,
    },
};

type TurnsSource<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

/// Ends a run that has used up its turns: see the [module](self).
#[derive(Clone)]
pub struct TurnCapLayer {
    turns: Option<u32>,
    final_call: Option<Duration>,
    pause: Option<PauseAtCap>,
    near_at: Option<f64>,
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
            final_call: None,
            pause: None,
            near_at: None,
            counts: None,
            per_agent: None,
            always_counts: false,
        }
    }

    /// Sets the function that decides which requests are turns, instead of the
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

    /// Pauses a run that has used up its turns, instead of its end: see [the module](self#pauses).
    ///
    /// The run makes no [last call](Self::final_call) then.
    #[must_use]
    pub const fn pause(mut self, pause: PauseAtCap) -> Self {
        self.pause = Some(pause);
        self
    }

    /// Sends a [`NearCap`](crate::RunNotice::NearCap) when a run has taken this part of its turns, such as
    /// 0.8.
    ///
    /// # Panics
    ///
    /// Panics if `part` is not a number above 0 and up to 1.
    #[must_use]
    pub const fn near_at(mut self, part: f64) -> Self {
        assert!(part > 0.0 && part <= 1.0, "a part of a cap is from 0 to 1");
        self.near_at = Some(part);
        self
    }

    /// Lets a run that has used up its turns make one more call, within `limit`.
    ///
    /// The program makes that call with [`Run::final_call`]. Until the run ends, no other call or
    /// tool starts, and the calls and tools in progress go on.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is zero.
    #[must_use]
    pub const fn final_call(mut self, limit: Duration) -> Self {
        assert!(!limit.is_zero(), "a last call must be given some time");
        self.final_call = Some(limit);
        self
    }
}

impl<S> Layer<S> for TurnCapLayer {
    type Service = TurnCap<S>;

    fn layer(&self, inner: S) -> Self::Service {
        HoldingService::new(inner, Arc::new(self.clone()))
    }
}

impl fmt::Debug for TurnCapLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnCapLayer")
            .field("turns", &self.turns)
            .field("final_call", &self.final_call)
            .field("pause", &self.pause)
            .field("near_at", &self.near_at)
            .field("counts", &self.counts.is_some())
            .field("per_agent", &self.per_agent.is_some())
            .field("always_counts", &self.always_counts)
            .finish()
    }
}

/// The service of a [`TurnCapLayer`]; a clone of it shares the settings.
pub type TurnCap<S> = HoldingService<S, Arc<TurnCapLayer>>;

/// The number of the turn that an outer layer gave this request; a request extension.
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

    /// The limit of a turn with this cap; `None` if the request is not a turn, or is not counted.
    fn limit(&self, turn: Option<Option<u32>>) -> Option<TurnLimit> {
        let (final_call, pause, near_at) = (self.final_call, self.pause, self.near_at);
        match turn? {
            Some(turns) => Some(TurnLimit {
                turns,
                final_call,
                pause,
                near_at,
            }),
            None => self.always_counts.then_some(TurnLimit::NONE),
        }
    }
}

/// Counts the request as a turn, unless it is counted already or is the last call.
///
/// # Errors
///
/// The run is over, or refuses the request because it is closing or at its cap, or a pause holds it.
#[allow(
    clippy::result_large_err,
    reason = "the cold path, and the type of every layer"
)]
fn admit(
    found: &Run,
    cap: TurnLimit,
    extensions: &mut Extensions,
    ticket: Option<u64>,
    asked: Option<TurnUnderWay>,
) -> Result<(), TurnRefused> {
    let run = found.run().node().number();
    let number = AtomicU32::new(known_number(extensions, run));
    let is_shared = found.node().shared().is_some();
    let of_request = is_shared.then(|| extensions.remove::<AskedRun>());
    let of_request = of_request.flatten();
    let asked = asked.or_else(|| of_request?.take_turn());
    let taken = cap.take_turn(found, &number, asked, ticket);
    if is_shared {
        found.close_as_deferred();
    }
    taken?;
    let number = number.into_inner();
    if number > 0 {
        extensions.insert(RequestTurn { run, number });
    }
    Ok(())
}

/// The number of the turn of the run with the number `run` that an outer layer gave a request; 0
/// if none did.
fn known_number(extensions: &Extensions, run: u64) -> u32 {
    let known = extensions.get::<RequestTurn>();
    let known = known.filter(|turn| turn.run == run);
    known.map_or(0, |turn| turn.number)
}

/// Gives the turn back that an outer layer has counted for a request, which is refused or dropped
/// before it is served.
pub(super) fn give_turn_back(found: &Run, extensions: &Extensions) {
    let run = found.nearest().number();
    found.give_turn_back(known_number(extensions, run));
}

/// Admits a held turn under its cap.
///
/// What the turn asked for was given back while it waits, so a store is asked again before it goes on.
#[derive(Debug)]
struct HeldTurn {
    cap: TurnLimit,
    question: Option<TurnQuestion>,
}

impl AdmitsHeld for HeldTurn {
    fn poll_admit(
        &mut self,
        found: &Run,
        extensions: &mut Extensions,
        ticket: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TurnRefused>> {
        if self.question.is_none() && found.node().shared().is_some() {
            if let Err(refused) = found.still_held(HeldBy::TurnCap, ticket) {
                return Poll::Ready(Err(refused));
            }
            self.question = found.ask_for_turn(self.cap);
        }
        if let Some(question) = &mut self.question {
            match ready!(question.poll(cx)) {
                Ok(elsewhere) => found.nearest().adjust_to(&elsewhere),
                Err(end) => {
                    // The turn asks no more: what waits for that may close the run.
                    self.question = None;
                    return Poll::Ready(Err(found.refuse_as_told(&end).into()));
                }
            }
        }
        let asked = self.question.take().map(TurnQuestion::into_turn);
        Poll::Ready(admit(found, self.cap, extensions, Some(ticket), asked))
    }

    fn give_up(&mut self, found: &Run, _: &Extensions) {
        if let Some(question) = self.question.take() {
            drop(question);
            // The closing of the run may have waited for what the turn asks.
            found.close_as_deferred();
        }
    }
}

impl HoldsCalls for Arc<TurnCapLayer> {
    fn supervise<S, B>(
        &self,
        request: Request<B>,
        service: &mut S,
    ) -> SupervisedFuture<HeldFuture<S, B>>
    where
        S: Service<Request<B>> + Clone,
    {
        let (cap, mut request) = self.limit_for(request);
        let Some(cap) = cap else {
            return SupervisedFuture::inert(HeldFuture::called(service.call(request)));
        };
        let entry = Claim::of(&mut request);
        let found = entry.run.clone();
        let admitted = admit(&found, cap, request.extensions_mut(), None, None);
        let is_held = matches!(admitted, Err(TurnRefused::Held(_)));
        if let Err(TurnRefused::Ended(end)) = admitted {
            if !found.node().is_over() {
                // The run is closing and not over: refuse this call alone.
                return SupervisedFuture::refused(end.into());
            }
        }
        let is_capped = cap.turns < TurnLimit::NONE.turns;
        if !is_capped && !is_held && !entry.settles && !found.node().is_over() {
            // The turn is counted, and an outer layer supervises the call.
            return SupervisedFuture::inert(HeldFuture::called(service.call(request)));
        }
        let settings = match found.node().is_of_many() && !found.node().is_over() {
            true => LayerSettings::hooks(Counted::new(&found)),
            false => LayerSettings::passive(),
        };
        SupervisedFuture::new(entry, settings, request, |request| {
            if is_held {
                let wait = cap.pause.unwrap_or_default().wait;
                let admits = HeldTurn {
                    cap,
                    question: None,
                };
                return HeldFuture::held(service, request, found, HeldBy::TurnCap, admits, wait);
            }
            HeldFuture::called(service.call(request))
        })
    }
}

/// The count of a turn as work in progress of its run, for a request that carries the run and no
/// call: a run at its cap waits for its turns in progress.
#[derive(Debug)]
struct Counted(bool);

impl Counted {
    fn new(run: &Run) -> Self {
        run.node().begin_work();
        Self(true)
    }
}

impl LayerHooks for Counted {
    fn release(&mut self, run: &Run) {
        if std::mem::take(&mut self.0) {
            run.node().end_work(run.now());
        }
    }
}
