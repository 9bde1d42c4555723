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
//! [`TurnCap`](crate::TerminalReason::TurnCap), before anything inside has seen it,
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
//! request, with [`Run::finaliser`](crate::Run::finaliser), say to have the model sum
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

mod layer;
mod policy;
mod service;

pub use self::{
    layer::TurnCapLayer,
    service::{TurnCap, TurnCapBody, TurnCapFuture},
};
