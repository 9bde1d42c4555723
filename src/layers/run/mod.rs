//! Finds or opens the run that a request belongs to, and opens its call.
//!
//! Without it each request is a run of its own, and nobody outside can name
//! it. With it a run has an id that spans requests, that operators can list
//! and abort, and that stays ended once it was ended: a client that retries a
//! run which was cut gets the stored reason, and no upstream call starts.
//!
//! # What is counted
//!
//! The id comes from a header (`x-run-id`) or a closure, the session likewise
//! (`x-session-id`). Ids belong to an owner, by default a digest of the
//! caller's credential, so that one caller cannot touch another's runs. A
//! request without an id is a run of its own, under an id that is made up. The
//! answer carries the id as `x-run-id`.
//!
//! A run that was given an id is never completed by an answer: it ends by a
//! reason, by [`Run::end`](crate::Run::end), or as completed after
//! [`idle`](RunLayer::idle) with nothing in flight.
//!
//! # What a call came to
//!
//! [`on_end`](RunLayer::on_end) is told once per call, with the tokens of all
//! its attempts.
//!
//! # Order
//!
//! Outermost but for [`TerminalResponseLayer`](crate::TerminalResponseLayer).
//! Further in it still works: a run that an outer layer opened is given the id
//! if that is free; else the call belongs to the run of that id, and also ends
//! when the outer one does.
//!
//! # Cancel safety
//!
//! Dropping the future or the body settles the call as aborted, unless
//! somebody stored a better reason; the run of an id lives on.
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_agent::{RunLayer, RunRegistry};
//!
//! let registry = RunRegistry::new();
//! let service = ServiceBuilder::new()
//!     .layer(RunLayer::new(registry.clone()))
//!     .service(service_fn(|_: Request<()>| async {
//!         Ok::<_, std::io::Error>(Response::new(Full::new(Bytes::from("hi"))))
//!     }));
//!
//! let request = Request::builder().header("x-run-id", "r-1").body(()).unwrap();
//! let answer = service.oneshot(request).await.unwrap();
//! assert_eq!(answer.headers()["x-run-id"], "r-1");
//! assert_eq!(registry.list().len(), 1);
//! # }
//! ```
//!
//! Ids and owners of the program's own:
//!
//! ```
//! use std::time::Duration;
//! use tower_agent::{Owner, RunLayer, RunRegistry};
//!
//! let layer = RunLayer::new(RunRegistry::new())
//!     .id_by(|parts| Some(parts.uri.query()?.strip_prefix("run=")?.to_owned()))
//!     .owner_by(|_| Owner::default())
//!     .idle(Duration::from_secs(60));
//! ```

mod layer;
mod service;
mod source;

pub use self::{
    layer::RunLayer,
    service::{CallFailed, RunBody, RunFuture, RunService},
};
