//! Ends a run that has used up its turns.
//!
//! An agent that polls for something that never happens goes on for as long as it
//! is answered: no call fails, each one makes progress, and no clock of a call ever
//! passes. What it costs grows with its history. A prompt that asks it to stop is a
//! wish; this is a count that nothing on the wire can change.
//!
//! # What is counted
//!
//! A turn is one round of the agent's loop: a request that has a model write
//! something, admitted by this layer. Its attempts and fallbacks are no turns, and
//! neither are the tools that its answer asks for, however many. A caller's own
//! retry is a request like any other, and is one. By their paths embeddings, counts
//! of tokens and lists of models are no turns; a path that is not known is one.
//! [`counts`](TurnCapLayer::counts) says otherwise.
//!
//! The count is the nearest run's, so it holds across all requests that have its id
//! ([`RunLayer`](crate::RunLayer)); a sub-agent's run has a count of its own. A call
//! is counted once, whatever layers of this kind it passes, and each compares the
//! count with its own cap. With a cap of n the first n are admitted, also when they
//! come at the same time; the next one is answered with the end of its run,
//! [`TurnCap`], before anything inside has seen it,
//! and [`at_turn`](crate::Terminated::at_turn) says n. What was under way ends too.
//!
//! A run that is one call, as every request is that no
//! [`RunLayer`](crate::RunLayer) knows an id for, has one turn.
//! [`RunLayer::owner_caps`](crate::RunLayer::owner_caps) limits how many such runs a
//! caller may have.
//!
//! # The last call
//!
//! With [`finaliser`](TurnCapLayer::finaliser) a run that has used up its turns does
//! not end at once: it closes. The call beyond the cap is refused as without it, and
//! so is every other, and every tool. The program may put one more call into a
//! request, with [`Run::finaliser`], say to have the model sum
//! up what it has; it and its attempts are admitted. The run ends, for its cap, when
//! that call was answered and nothing is under way any more, or when the limit has
//! passed, which calls through this layer see to. Ceilings go on.
//!
//! # Same instant
//!
//! A reason that is stored already wins, then a clock that has passed, whoever's it
//! is; then the cap. What passes in the instant in which the last call's limit does
//! wins over the cap as well.
//!
//! # Order
//!
//! Inside of [`RunLayer`](crate::RunLayer) and of
//! [`StopPhraseLayer`](crate::StopPhraseLayer), whose words a run at its cap can then
//! still say; outside of all that tries again, so that nothing is begun for a call that
//! will be refused. Further in it counts the same.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops what is inside, and if this layer opened
//! the run, ends it as aborted. A turn that was dropped was a turn.
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
//! More for one agent than for others, and time to sum up:
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
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    attempt::generates,
    error::BoxError,
    run::{Clock, Nanos, Run, TaskId, Terminated, TurnLimit, nanos},
    supervise::{Claim, Observer, Policy, SupervisedBody, SupervisedFuture},
};

type TurnsSource<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

/// Ends a run that has used up its turns: see the [module](self).
#[derive(Clone)]
pub struct TurnCapLayer {
    turns: Option<u32>,
    finaliser: Option<Duration>,
    counts: Option<TurnsSource<bool>>,
    per_agent: Option<TurnsSource<Option<u32>>>,
}

impl TurnCapLayer {
    /// At most `turns` per run.
    ///
    /// # Panics
    ///
    /// If `turns` is zero; use [`optional`](Self::optional) to leave it out.
    #[must_use]
    pub const fn new(turns: u32) -> Self {
        Self::optional(Some(turns))
    }

    /// The same; for `None` a layer that does nothing, or caps only the runs that
    /// [`per_agent`](Self::per_agent) has a number for.
    ///
    /// # Panics
    ///
    /// If `turns` is zero.
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
        }
    }

    /// What is a turn, in place of what the path says.
    #[must_use]
    pub fn counts(mut self, counts: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.counts = Some(Arc::new(counts));
        self
    }

    /// Another cap for some: 50 for one agent, 5 for another, told apart by the
    /// caller's key or by whatever the program knows of a request. `None`, and
    /// zero, mean the layer's own.
    ///
    /// A header that a caller may choose freely is no good sign: with it an agent
    /// would raise its own cap.
    #[must_use]
    pub fn per_agent(
        mut self,
        turns: impl Fn(&Parts) -> Option<u32> + Send + Sync + 'static,
    ) -> Self {
        self.per_agent = Some(Arc::new(turns));
        self
    }

    /// Lets a run that has used up its turns make one more call, within `limit`:
    /// see [`Run::finaliser`]. Until then it is closing:
    /// nothing else starts, and what is under way goes on.
    ///
    /// # Panics
    ///
    /// If `limit` is zero.
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
        TurnCap::new(inner, self.clone())
    }
}

impl fmt::Debug for TurnCapLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnCapLayer")
            .field("turns", &self.turns)
            .field("finaliser", &self.finaliser)
            .field("counts", &self.counts.is_some())
            .field("per_agent", &self.per_agent.is_some())
            .finish()
    }
}

/// The service of a [`TurnCapLayer`].
#[derive(Clone, Debug)]
pub struct TurnCap<S> {
    inner: S,
    // Shared, so that a service that is cloned per request clones cheaply.
    layer: Arc<TurnCapLayer>,
}

/// The response future of [`TurnCap`].
pub type TurnCapFuture<F> = SupervisedFuture<F, TurnPolicy>;

/// The response body of [`TurnCap`].
pub type TurnCapBody<B> = SupervisedBody<B, TurnPolicy>;

/// Which turn a request is whose run makes no calls of its own.
#[derive(Clone, Copy)]
struct RequestTurn {
    run: u64,
    number: u32,
}

impl<S> TurnCap<S> {
    fn new(inner: S, layer: TurnCapLayer) -> Self {
        Self {
            inner,
            layer: Arc::new(layer),
        }
    }
}

impl TurnCapLayer {
    /// The cap that this request counts towards; none if it does not count.
    fn of<B>(&self, request: Request<B>) -> (Option<TurnLimit>, Request<B>) {
        if self.counts.is_none() && self.per_agent.is_none() {
            let counts = self.turns.is_some() && generates(&request);
            let cap = self.turns.filter(|_| counts);
            return (self.cap(cap), request);
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
        let cap = self.cap(turns.flatten());
        (cap, Request::from_parts(parts, body))
    }

    fn cap(&self, turns: Option<u32>) -> Option<TurnLimit> {
        let finaliser = self.finaliser;
        turns.map(|turns| TurnLimit { turns, finaliser })
    }
}

/// Counts the request, unless a layer further out has.
#[allow(
    clippy::result_large_err,
    reason = "the cold path, and the type of every layer"
)]
fn admit<B>(found: &Run, cap: TurnLimit, request: &mut Request<B>) -> Result<(), Terminated> {
    let run = found.node().number();
    let known = request.extensions().get::<RequestTurn>();
    let known = known.filter(|turn| turn.run == run);
    let number = AtomicU32::new(known.map_or(0, |turn| turn.number));
    found.take_turn(cap, &number)?;
    let number = number.into_inner();
    if number > 0 {
        request.extensions_mut().insert(RequestTurn { run, number });
    }
    Ok(())
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for TurnCap<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    S::Error: Into<BoxError>,
    ResBody: Body<Data = Bytes>,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<TurnCapBody<ResBody>>;
    type Error = BoxError;
    type Future = TurnCapFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let (cap, mut request) = self.layer.of(request);
        let Some(cap) = cap else {
            return SupervisedFuture::inert(self.inner.call(request));
        };
        let entry = Claim::of(&mut request);
        let found = entry.run.clone();
        if let Err(end) = admit(&found, cap, &mut request) {
            if !found.node().is_over() {
                // A run that is found as it is, and is closing, lives on.
                return SupervisedFuture::refused(end.into());
            }
        }
        let policy = TurnPolicy::new(cap.finaliser.is_some());
        SupervisedFuture::new(entry, policy, request, |request| self.inner.call(request))
    }
}

/// Watches the time that a run has which is closing for its cap. What is counted is
/// counted before the call.
#[derive(Debug)]
#[doc(hidden)]
pub struct TurnPolicy {
    closes: bool,
}

impl TurnPolicy {
    const fn new(closes: bool) -> Self {
        Self { closes }
    }
}

impl Policy for TurnPolicy {
    const READS: bool = false;
    const TIMED: bool = true;

    fn pending(
        &mut self,
        found: &Run,
        _: Option<&Observer>,
        _: Duration,
        _: TaskId,
    ) -> Option<Nanos> {
        // Whoever waits is polled when the run begins to close.
        let until = || found.nearest().clocks.get(Clock::Drain).map(nanos);
        self.closes.then(until).flatten()
    }
}
