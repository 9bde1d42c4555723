//! Caps the open runs of an owner, by default a caller's key, and its turns and tokens in an hour, a day,
//! a week and a month.
//!
//! An agent that sends a new run id with each request, or none, escapes a cap on the turns of a
//! run. By default the owner of a run is the caller's key, whatever the run id, so this layer
//! counts per [`Owner`](crate::Owner).
//!
//! # What is counted
//!
//! - [Open runs](OwnerCaps::max_open_runs): the live runs that a request opened, or that the
//!   program [reopened](RunRegistry::reopen) or opened by [`supersede`](RunRegistry::supersede). A
//!   request that names no run is one such run while it is in progress.
//! - [Turns in an hour](OwnerCaps::turns_per_hour): the admitted requests, of all runs, that
//!   [`TurnCapLayer`](crate::TurnCapLayer) counts as turns by default.
//! - [Tokens in an hour](OwnerCaps::tokens_per_hour), and their cost: those of all runs, counted as
//!   [`TokenCapLayer`](crate::TokenCapLayer) counts them.
//! - Both in a day, a week and a month of the registry's
//!   [calendar](crate::RunRegistry::set_calendar), such as
//!   [`tokens_per_month`](OwnerCaps::tokens_per_month): from the first layer with such a cap on. An
//!   account is kept in memory until its periods are over, so let no caller invent owners.
//!
//! All layers of one registry share one count. Replicas that [share](crate::RunRegistry::share) their
//! runs share it too: see [below](#several-replicas). The layer counts no request of a run that has ended,
//! and no call that the program attached to a run. The tokens of attached calls count once a
//! request of their run has passed this layer.
//!
//! A request over a cap ends as [`TurnCap`](crate::TerminalReason::TurnCap), or, over a cap on
//! tokens or cost, as [`TokenCap`](crate::TerminalReason::TokenCap), with a message that names the
//! cap. This layer does not read the request's body. In an [`AgentStack`](crate::AgentStack) no layer
//! further out does either, unless the request may be a [stop phrase](crate::layers::stop_phrase). A run that was admitted before goes on. A new
//! run that the layer refuses leaves the registry, unless observers know it or another call of it
//! is in progress.
//!
//! Count and admission are one step: of many simultaneous requests no more are admitted than a cap
//! on runs or turns allows, and requests with the same new id count as one run.
//!
//! A stream of a counted request ends as `TokenCap` after the first frame at which its owner has
//! exceeded a cap on tokens or cost, unless the upstream has said by then why it stops. That ends
//! the call, and not a run that spans calls.
//!
//! The layer counts its refusals. At most once a minute, for each owner and cap, it reports the
//! number of requests refused since its last report: as a warning, and as a line of the registry's
//! [`Trajectory`](crate::run::Trajectory).
//!
//! By default the owner is the caller's key, so a caller with several keys is several owners, and a
//! caller that invents keys escapes the caps. Unless an outer layer refuses unknown keys, set
//! the owner of each request with [`RunLayer::owner_by`](crate::RunLayer::owner_by).
//!
//! # Several replicas
//!
//! With a [store](crate::registry::store), and a
//! [`RunStoreLayer`](crate::layers::run_store::RunStoreLayer) that [knows this
//! layer](crate::layers::run_store::RunStoreLayer::owners), the caps hold for the sum of all
//! replicas: exactly for runs and turns, and for tokens up to what the others spend between two
//! frames of a stream, or in the quarter of a second in which a replica tells it. The hour and the periods outlive a restart. A run with requests
//! at several replicas counts at the one that opened it first, until its part there is over; the
//! runs of a replica that died count for 30 seconds. While the store does not answer, what was
//! learned of the others within the hour counts on.
//!
//! # Order
//!
//! This layer belongs inside of [`RunLayer`](crate::RunLayer), which opens the run, and
//! of [`StopPhraseLayer`](crate::StopPhraseLayer), so that a caller at a cap can still
//! stop its running agents; outside of all layers that count or call. Without a
//! `RunLayer` of the same registry further out, this layer counts and refuses no request. Nor does
//! a second layer of the same registry in one stack: the caps of the outermost one hold.
//!
//! A new run is in the registry before this layer admits the run, but observers get the run's
//! `Opened` notice only at the admission. If a stack of the same registry lacks this layer,
//! observers get that notice before the run's first other notice, or before the run's end.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the inner one. The counts stay: a turn or a token counts
//! for 60 to 61 minutes and until its periods end, a run counts until it ends.
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_agent::BoxError> {
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{Service, ServiceBuilder, service_fn};
//! use tower_agent::{OwnerCapLayer, OwnerCaps, RunLayer, RunRegistry, TerminalReason};
//!
//! let registry = RunRegistry::new();
//! let mut service = ServiceBuilder::new()
//!     .layer(RunLayer::new(registry.clone()))
//!     .layer(OwnerCapLayer::new(registry, OwnerCaps::new().max_open_runs(1)))
//!     .service(service_fn(|_: Request<()>| async {
//!         Ok::<_, std::io::Error>(Response::new(Full::new(Bytes::from("hello"))))
//!     }));
//!
//! let of_run = |id| Request::builder().header("x-run-id", id).body(());
//! service.call(of_run("one")?).await?;
//! let refused = service.call(of_run("two")?).await.unwrap_err();
//! assert_eq!(TerminalReason::find(&*refused), Some(&TerminalReason::TurnCap));
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use tower_layer::Layer;

use crate::{
    attempt::generates,
    registry::{AdmittedUnread, AskedOwner, OwnerCaps, OwnerTokens, RunRegistry, Uncounted},
    run::Run,
    supervise::{
        Claim, LayerHooks, LayerSettings, Observer, SupervisedFuture, SupervisedService,
        SupervisesCalls,
    },
};

/// Caps an owner's open runs, and its turns and tokens in windows of time: see the [module](self).
#[derive(Clone, Debug)]
pub struct OwnerCapLayer {
    registry: RunRegistry,
    caps: Option<OwnerCaps>,
}

impl OwnerCapLayer {
    /// Makes a layer that caps owners in `registry`.
    ///
    /// Use the registry of the [`RunLayer`](crate::RunLayer) further out, and create this layer
    /// before the `RunLayer` serves its first request: earlier requests are not counted.
    #[must_use]
    pub fn new(registry: RunRegistry, caps: OwnerCaps) -> Self {
        Self::optional(registry, Some(caps))
    }

    /// Makes a layer that caps owners in `registry`; with `None` it sets no cap.
    #[must_use]
    pub fn optional(registry: RunRegistry, caps: Option<OwnerCaps>) -> Self {
        if let Some(caps) = &caps {
            registry.count_owners().count_for(caps);
        }
        Self { registry, caps }
    }

    /// The caps, if there are any.
    pub(crate) const fn caps(&self) -> Option<OwnerCaps> {
        self.caps
    }
}

/// The hooks that compare an owner's tokens with the caps at each frame of a stream, until the
/// upstream says why it stops.
#[derive(Debug)]
struct OwnerCapping {
    caps: OwnerCaps,
    tokens: Arc<OwnerTokens>,
}

impl OwnerCapLayer {
    fn capping(&self, caps: OwnerCaps, call: &Run) -> Option<OwnerCapping> {
        if !caps.caps_tokens() {
            return None;
        }
        let tokens = self.registry.owner_tokens(call)?;
        Some(OwnerCapping { caps, tokens })
    }
}

impl LayerHooks for OwnerCapping {
    fn frame(&mut self, run: &Run, _data: Option<&Bytes>, observer: Option<&Observer>) {
        let marks = observer.and_then(Observer::marks);
        if marks.is_none_or(|marks| marks.has_stopped()) {
            return;
        }
        if let Some(limit) = self.caps.token_limit(&self.tokens.spent(), true) {
            run.tokens().end_for_owner(limit);
        }
    }
}

impl<S> Layer<S> for OwnerCapLayer {
    type Service = OwnerCap<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SupervisedService::new(inner, self.clone())
    }
}

/// The service of an [`OwnerCapLayer`].
pub type OwnerCap<S> = SupervisedService<S, OwnerCapLayer>;

impl SupervisesCalls for OwnerCapLayer {
    fn supervise<B, F>(
        &self,
        mut request: Request<B>,
        inner: impl FnOnce(Request<B>) -> F,
    ) -> SupervisedFuture<F> {
        let is_uncounted = request.extensions_mut().remove::<Uncounted>().is_some();
        if is_uncounted {
            // Admit the run also without caps, as after a reload that removes them: at the
            // admission observers get the run's `Opened` notice.
            let caps = self.caps.unwrap_or_default();
            let admitted = request.extensions_mut().remove::<AdmittedUnread>();
            if let Some(call) = request.extensions().get::<Run>() {
                if admitted.is_none() {
                    let asked = AskedOwner::take(request.extensions());
                    self.registry.admit(call, caps, generates(&request), asked);
                }
                if let Err(end) = call.check() {
                    return SupervisedFuture::refused(end.into());
                }
                if let Some(capping) = self.capping(caps, call) {
                    let claim = Claim::of(&mut request);
                    let settings = LayerSettings::hooks(capping).counting().frames();
                    return SupervisedFuture::new(claim, settings, request, inner);
                }
            }
        }
        SupervisedFuture::inert(inner(request))
    }
}
