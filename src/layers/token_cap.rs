//! Ends a run that has used up its caps on tokens or on their cost.
//!
//! A cap on turns does not bound the cost of a run: one turn may send 200 kB of history, and one
//! answer may go on for an hour. The invoice shows that cost a month later. This layer counts
//! tokens while an answer streams, and ends the run in mid-stream.
//!
//! # What is counted
//!
//! The layer counts the tokens of all attempts of a run and of its sub-agents, also those of
//! streams that failed or were cut. Each run has the caps of the layer that its own requests pass.
//! A run has no caps if only its sub-agents make requests.
//!
//! Without a cap the layer counts nothing, unless [`always_count`](TokenCapLayer::always_count) is
//! set.
//!
//! The layer compares a run with its caps at each request, and at each frame of a stream until the
//! upstream says why it stops. A request or frame of a sub-agent also checks the runs above it. Of
//! several runs over a cap the outermost ends.
//!
//! - Output: the tokens of answers, with those of reasoning and of tool calls.
//! - Input: the tokens of [prompts](#prompts). Tokens that an upstream read from its cache count
//!   only [on request](TokenCaps::count_cached_input); their cost counts if they have a
//!   [price](crate::run::Price::cached_input).
//! - Cost: the tokens times the [price](crate::Candidate::price) of the candidate that was asked.
//!
//! # Estimates
//!
//! Some upstreams state the tokens of an answer at its end, and some never. Until an upstream
//! states them, four bytes of generated text, as they stand in the JSON of the stream, count as one
//! token. Each number that the upstream states replaces the estimate of the text so far, but for a
//! zero: some upstreams state no tokens with every answer. If reasoning stands under several keys,
//! only the longest of these texts counts.
//!
//! An answer that is not a stream is counted at its end; if it states no usage, the text in its
//! JSON is estimated. If an end rests on an estimate, its message says `estimated`, and
//! [`Terminated::is_estimated`](crate::Terminated::is_estimated) is true.
//!
//! # Prompts
//!
//! A prompt is estimated if its upstream has read it and states no usage: with an answer of success,
//! or with none, because the call was left or ended after its request was sent. Each attempt counts
//! its own prompt once, when it ends. What is refused costs nothing: an attempt that fails before
//! its answer, a failed answer, and an error under a good status without content before it. Neither
//! do a request that was not sent yet, and one for which no model generates, such as embeddings.
//!
//! Four bytes of the request's body, as it is sent, are one token. A string of its JSON counts
//! 1,500 tokens if it is an image or a file: a `data:` URL, or 256 bytes or more in base64 with
//! letters of both cases and digits. So does a body that is not a JSON object.
//!
//! If a [pump](crate::layers::pump) reads a call on after its caller has left, its prompt counts
//! when the caller leaves, and the usage replaces the estimate if it comes.
//!
//! A [`RetryBudgetLayer`](crate::RetryBudgetLayer) or a
//! [`ModelFallbackLayer`](crate::ModelFallbackLayer) further in makes the estimate, as it holds the
//! body. Without either of them only the usage that upstreams state counts for prompts.
//!
//! # Answers that are not read
//!
//! The text of a compressed answer is not counted, as no layer reads it, so no cap cuts it. A
//! [`ModelFallbackLayer`](crate::ModelFallbackLayer) asks for plain answers; without one, set
//! `accept-encoding: identity` on the request of a client that accepts compressed answers.
//!
//! The layer changes no request: it adds neither `stream_options` nor `max_tokens`.
//!
//! # When a run ends
//!
//! A stream that exceeds a cap ends the run as [`TokenCap`](crate::TerminalReason::TokenCap), after
//! the frame that exceeds the cap, and with the run all calls in progress. Once the upstream of a
//! stream has said why it stops, the layer delivers the rest of the stream, unless another call
//! ends the run.
//!
//! A request of a run that has used a whole cap ends the run too, and the inner service does not
//! get that request. Calls that are in progress at the same time may use more than the cap, as an
//! answer that is not a stream shows its tokens at its end.
//!
//! With [`ask_at`](TokenCapLayer::ask_at) observers get a notice when a run nears a cap, so that
//! the program can ask a person.
//!
//! # Pauses
//!
//! With [`pause`](TokenCapLayer::pause) a run waits at a cap for an operator, as it does at a
//! [cap on turns](crate::layers::turn_cap#pauses): a request of a run that has used a whole cap is held,
//! and a turn that was counted for it is given back if it is refused. A stream that exceeds a cap is cut
//! behind that frame, as `TokenCap`, and the run is paused: the call ends alone. Other streams of the
//! run are cut at their next frame, too. Each request of the run that this layer sees is held, also one
//! that is not a turn.
//!
//! # Same instant
//!
//! A stored reason wins. At a request a passed absolute deadline then wins over the cap; at a frame
//! the cap wins, because a ready frame wins over a clock.
//!
//! # Order
//!
//! This layer belongs inside of [`TurnCapLayer`](crate::TurnCapLayer), and outside of retry and
//! fallback layers, so that no attempt begins for a call that this layer refuses.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the inner one. If this layer opened the run, or was the
//! first layer to get a call that the program attached, a drop before the answer is complete also
//! ends that node as aborted. The tokens of a dropped stream stay counted.
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_agent::BoxError> {
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::{BodyExt, Full};
//! use tower::{Service, ServiceBuilder, service_fn};
//! use tower_agent::{Run, TerminalReason, TokenCapLayer, TokenCaps};
//!
//! let mut model = ServiceBuilder::new()
//!     .layer(TokenCapLayer::new(TokenCaps::new().max_output_tokens(100)))
//!     .service(service_fn(|_: Request<()>| async {
//!         let answer = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":120}}"#;
//!         Ok::<_, std::io::Error>(Response::new(Full::new(Bytes::from(answer))))
//!     }));
//!
//! let run = Run::open();
//! model.call(run.attach(Request::new(()))).await?.into_body().collect().await?;
//! assert_eq!(run.tokens_spent().unwrap().output_tokens, 120);
//!
//! let refused = model.call(run.attach(Request::new(()))).await.unwrap_err();
//! assert_eq!(TerminalReason::find(&*refused), Some(&TerminalReason::TokenCap));
//! # Ok(())
//! # }
//! ```
//!
//! Asks a person when a run has used 80 % of what it may cost:
//!
//! ```
//! use tower_agent::{TokenCapLayer, TokenCaps};
//!
//! let layer = TokenCapLayer::new(TokenCaps::new().max_cost(2.0)).ask_at(0.8);
//! ```

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Extensions, Request};
use tower_layer::Layer;
use tower_service::Service;

use super::turn_cap::give_turn_back;
use crate::{
    run::{HeldBy, PauseAtCap, Run, RunTokenCaps, TokenCaps, TurnRefused},
    supervise::{
        AdmitsHeld, Claim, HeldFuture, HoldingService, HoldsCalls, LayerHooks, LayerSettings,
        Observer, SupervisedFuture,
    },
};

/// Ends a run that has used up its caps on tokens or on their cost: see the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct TokenCapLayer {
    of_run: RunTokenCaps,
    without_caps: WithoutCaps,
}

/// What the layer does if no cap is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WithoutCaps {
    /// The layer does nothing.
    Inert,
    /// The layer has the run count its tokens, and counts those of whole answers.
    Count,
    /// The layer has the run count its tokens; an inner layer, which makes attempts, counts
    /// those of whole answers.
    CountAttempts,
}

impl TokenCapLayer {
    /// Makes a layer with these caps for each run; if none is set, it counts nothing unless it
    /// [always counts](Self::always_count).
    #[must_use]
    pub const fn new(caps: TokenCaps) -> Self {
        Self {
            of_run: RunTokenCaps {
                caps,
                ask_at: None,
                pause: None,
                near_at: None,
            },
            without_caps: WithoutCaps::Inert,
        }
    }

    /// Counts the tokens of a run without a cap, too, for [`Run::tokens_spent`] and all that reports
    /// them.
    #[must_use]
    pub const fn always_count(mut self) -> Self {
        self.without_caps = WithoutCaps::Count;
        self
    }

    /// Counts as [`always_count`](Self::always_count) does, outside of a layer that makes attempts.
    #[must_use]
    pub(crate) const fn always_count_attempts(mut self) -> Self {
        self.without_caps = WithoutCaps::CountAttempts;
        self
    }

    /// Whether a cap is set.
    pub(crate) const fn is_capped(&self) -> bool {
        self.of_run.caps.is_set()
    }

    /// Sends a notice when a run has used this part of a cap, such as 0.8.
    ///
    /// The notice is [`NearTokenCap`](crate::RunNotice::NearTokenCap). A
    /// [`Watchdog`](crate::Watchdog) with a [question](crate::Watchdog::question) then asks a
    /// person, while the run works on. If the person lets the run continue, the run may use its
    /// caps [once more](crate::Run::extend_tokens), and the watchdog asks again at this part of the
    /// extended cap. If the person stops the run, the run ends at once; without an answer the caps
    /// hold as before.
    ///
    /// # Panics
    ///
    /// Panics if `part` is not a number above 0 and up to 1.
    #[must_use]
    pub const fn ask_at(mut self, part: f64) -> Self {
        assert!(part > 0.0 && part <= 1.0, "a part of a cap is from 0 to 1");
        self.of_run.ask_at = Some(part);
        self
    }
}

impl TokenCapLayer {
    /// Sends a [`NearCap`](crate::RunNotice::NearCap) when a run has used this part of a cap, such as 0.8.
    /// Unlike [`ask_at`](Self::ask_at) it asks nobody.
    ///
    /// # Panics
    ///
    /// Panics if `part` is not a number above 0 and up to 1.
    #[must_use]
    pub const fn near_at(mut self, part: f64) -> Self {
        assert!(part > 0.0 && part <= 1.0, "a part of a cap is from 0 to 1");
        self.of_run.near_at = Some(part);
        self
    }

    /// Pauses a run that has used up a cap, instead of its end: see [the module](self#pauses).
    #[must_use]
    pub const fn pause(mut self, pause: PauseAtCap) -> Self {
        self.of_run.pause = Some(pause);
        self
    }
}

impl From<TokenCaps> for TokenCapLayer {
    fn from(caps: TokenCaps) -> Self {
        Self::new(caps)
    }
}

impl<S> Layer<S> for TokenCapLayer {
    type Service = TokenCap<S>;

    fn layer(&self, inner: S) -> Self::Service {
        HoldingService::new(inner, *self)
    }
}

/// The service of a [`TokenCapLayer`].
pub type TokenCap<S> = HoldingService<S, TokenCapLayer>;

/// The hooks that check a run's caps at each frame of a stream, until the upstream says why it
/// stops. At the end of the call the hooks send the notice of a near cap, if it is due.
#[derive(Debug)]
struct Capping(RunTokenCaps);

impl LayerHooks for Capping {
    fn frame(&mut self, run: &Run, _data: Option<&Bytes>, observer: Option<&Observer>) {
        let marks = observer.and_then(Observer::marks);
        if marks.is_some_and(|marks| !marks.has_stopped()) {
            run.tokens().cap(&self.0);
        }
    }

    /// Sends the notice if it is due: the tokens of an answer that is not a stream are known now.
    fn release(&mut self, run: &Run) {
        run.tokens().ask_at_cap(&self.0);
    }
}

/// Admits a held request under its caps, or one that none caps once no pause holds it.
#[derive(Debug)]
struct HeldRequest(Option<RunTokenCaps>);

impl AdmitsHeld for HeldRequest {
    fn poll_admit(
        &mut self,
        found: &Run,
        _: &mut Extensions,
        ticket: u64,
        _: &mut Context<'_>,
    ) -> Poll<Result<(), TurnRefused>> {
        Poll::Ready(match &self.0 {
            Some(caps) => found.tokens().admit(caps, Some(ticket)),
            None => found.still_held(HeldBy::TokenCap, ticket),
        })
    }

    fn give_up(&mut self, found: &Run, extensions: &Extensions) {
        give_turn_back(found, extensions);
    }
}

impl HoldsCalls for TokenCapLayer {
    fn supervise<S, B>(
        &self,
        mut request: Request<B>,
        service: &mut S,
    ) -> SupervisedFuture<HeldFuture<S, B>>
    where
        S: Service<Request<B>> + Clone,
    {
        let caps = self.of_run;
        let is_capped = self.is_capped();
        if !is_capped && self.without_caps == WithoutCaps::Inert {
            return SupervisedFuture::inert(HeldFuture::called(service.call(request)));
        }
        let claim = Claim::of(&mut request);
        let found = claim.run.clone();
        let (held, settings);
        if is_capped {
            held = match found.tokens().admit(&caps, None) {
                Ok(()) => false,
                Err(TurnRefused::Held(_)) => true,
                Err(TurnRefused::Ended(end)) => {
                    if !found.node().is_over() {
                        // The run is closing and not over: refuse this call alone, and settle it if
                        // that is the duty of this layer.
                        if claim.settles {
                            found.settle(end.reason.clone());
                        }
                        return SupervisedFuture::refused(end.into());
                    }
                    false
                }
            };
            settings = LayerSettings::hooks(Capping(caps)).counting().frames();
        } else {
            found.tokens().count();
            held = found.holds_turn(HeldBy::TokenCap, None).is_some();
            if !held && !claim.settles && self.without_caps == WithoutCaps::CountAttempts {
                return SupervisedFuture::inert(HeldFuture::called(service.call(request)));
            }
            settings = LayerSettings::passive().counting();
        }
        SupervisedFuture::new(claim, settings, request, |request| {
            if held {
                let wait = caps.pause.unwrap_or_default().wait;
                let admits = HeldRequest(is_capped.then_some(caps));
                return HeldFuture::held(service, request, found, HeldBy::TokenCap, admits, wait);
            }
            HeldFuture::called(service.call(request))
        })
    }
}
