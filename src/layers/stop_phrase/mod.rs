//! Ends the runs of a session when its user sends a stop phrase.
//!
//! A user stops an agent by writing to it in the chat. Without this layer that message
//! becomes one more turn for a model, while the agent goes on. With this layer the
//! message itself ends the agent's runs, and no model is called.
//!
//! # What a stop phrase is
//!
//! A request is a stop phrase if its last message, apart from instructions, has the role of the
//! user, is text alone, and as a whole is one of the layer's phrases. Letter case and punctuation
//! count neither in the phrase nor in the message, so `STOP!!!` matches `/stop`, and `please stop`
//! does not. The layer reads requests of OpenAI's chat and Responses and of Anthropic's messages.
//! Every other request goes to the inner service, and so does each request if the layer has no
//! phrases.
//!
//! A stop phrase also needs a session, see [`RunLayer`](crate::RunLayer), and a known dialect: if
//! neither the path nor the request's extensions name it, a body with `input` may belong to any
//! dialect, and the request goes to the inner service.
//!
//! At a stop phrase the layer ends all other live runs of the session with the same owner, as
//! [`Aborted`](crate::TerminalReason::Aborted). It answers with 200 and one assistant message, in
//! the request's dialect, as a stream if the request asked for one. It makes no inner call, and
//! does not abort the run of the request. With an [`OwnerCapLayer`](crate::OwnerCapLayer) further
//! in, the stop phrase opens no run and is not a turn.
//!
//! # Order
//!
//! This layer belongs inside of [`RunLayer`](crate::RunLayer) and of the layers that
//! limit the call: their deadlines then bound the reading of the request. The layer belongs
//! outside of all layers that count or call, such as
//! [`OwnerCapLayer`](crate::OwnerCapLayer) and [`TurnCapLayer`](crate::TurnCapLayer):
//! inside of those, a caller at a cap would get a 422 and its other runs would go on. In an
//! [`AgentStack`](crate::AgentStack) this layer refuses requests over a cap of their owner before it
//! reads them, unless they may be stop phrases: with a session, and only if there are phrases. The
//! inner service must be `Clone`, and takes a [`ReplayBody`](crate::ReplayBody).
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the inner one. If this layer opened the run, or was the
//! first layer to get a call that the program attached, a drop before the answer is complete also
//! ends that node as aborted. Ended runs stay ended.
//!
//! # Panics
//!
//! A pending poll of a call with a deadline panics outside of a tokio runtime with its timer
//! enabled.
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
mod reader;
mod reply;

pub use self::layer::{StopPhrase, StopPhraseBody, StopPhraseFuture, StopPhraseLayer};
