//! Ends the runs of a session when its user says a word, without asking a model.
//!
//! A user who wants an agent to stop writes so, in the only place there is: the
//! chat. The message becomes one more turn for a model to think about, while the
//! agent that it was about goes on. With this layer the message itself ends it.
//!
//! # What is a word to stop
//!
//! The last message of the request, if a user said it, it is text alone, and as a
//! whole one of the phrases; letter case and punctuation do not count on either
//! side, so `STOP!!!` is `/stop`, and `please stop` is not. Requests of OpenAI's
//! chat and Responses and of Anthropic's messages are read. Off without phrases.
//!
//! It needs a session, see [`RunLayer`](crate::RunLayer), and ends all other live
//! runs of it that the same owner has, as
//! [`Aborted`](crate::TerminalReason::Aborted). The request itself is answered with
//! 200 and one message of an assistant's, in the request's dialect, as a stream if
//! it asked for one; no inner call is made, and its own run goes on.
//!
//! # Order
//!
//! Inside of [`RunLayer`](crate::RunLayer) and of the layers that limit the call, whose
//! clocks then bound the reading of the request; outside of all that counts or calls,
//! such as [`TurnCapLayer`](crate::TurnCapLayer): inside of that, a run at its cap is
//! answered 422 and the other runs go on. Of an
//! owner at its cap it hears no word, unless
//! [`RunLayer::hears_stop`](crate::RunLayer::hears_stop) is set. The
//! inner service must be `Clone`, and takes a [`ReplayBody`](crate::ReplayBody).
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops what is inside. What was ended stays ended.
//!
//! # Panics
//!
//! Polling panics outside of a tokio runtime with its timer enabled, once something
//! is waited for.
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_agent::BoxError> {
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_agent::{ReplayBody, RunLayer, RunRegistry, StopPhraseLayer};
//!
//! let registry = RunRegistry::new();
//! let service = ServiceBuilder::new()
//!     .layer(RunLayer::new(registry.clone()))
//!     .layer(StopPhraseLayer::new(registry, ["/stop"]))
//!     .service(service_fn(|_: Request<ReplayBody>| async {
//!         Err::<Response<Full<Bytes>>, _>(std::io::Error::other("was asked"))
//!     }));
//!
//! let said = r#"{"model":"m","messages":[{"role":"user","content":"Stop!"}]}"#;
//! let request = Request::post("/v1/chat/completions").header("x-session-id", "chat-7");
//! let answer = service.oneshot(request.body(Full::<Bytes>::from(said))?).await?;
//! assert_eq!(answer.status(), 200);
//! # Ok(())
//! # }
//! ```

mod layer;
mod phrases;
mod reply;
mod stop;

pub use self::layer::{StopPhrase, StopPhraseBody, StopPhraseFuture, StopPhraseLayer};
