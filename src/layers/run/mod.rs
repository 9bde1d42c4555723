//! Finds or opens the run that a request belongs to, and opens its call.
//!
//! Without this layer a request that carries no run is a run of its own, and no other process can
//! name it. With this layer a run has an id that spans requests, and operators can list and abort
//! the run. A run that was cut stays ended: a client that retries it gets the stored reason until
//! the registry forgets the run, and the layer starts no upstream call.
//!
//! # What is counted
//!
//! The run id comes from a header (`x-run-id`) or a closure, the session likewise
//! (`x-session-id`). Each id belongs to an owner, by default a digest of the caller's credential,
//! so that one caller cannot reach the runs of another. A request without an id is a run of its
//! own, under a generated id. The response has the run id as `x-run-id`. A request with two
//! different ids, or two different sessions, is refused: by default with 400.
//!
//! A layer outside may name the run of a request without `x-run-id`, by a [`RequestRun`] in the
//! request's extensions. [`KnownAgents`] makes one from the headers and the body that known agents
//! send.
//!
//! A response never completes a run with a given id. Such a run ends by a cause of its own, such as
//! a limit, an abort, the end of its parent or [`Run::end`](crate::Run::end), or as completed after
//! the [`idle`](RunLayer::idle) time without work. If all requests of a run were refused before an
//! upstream was asked, the run may complete [at once](crate::registry#runs-that-were-never-used).
//!
//! # The summary of a call
//!
//! The hook of [`on_end`](RunLayer::on_end) runs once per call, and gets the sum of the tokens of
//! all its attempts.
//!
//! # Order
//!
//! This layer is the outermost, except for [`TerminalResponseLayer`](crate::TerminalResponseLayer).
//! [`OwnerCapLayer`](crate::OwnerCapLayer), further in, caps the runs of one owner.
//!
//! This layer also works inside of a layer that opened a run. If that outer run is in a registry
//! already, the outer run keeps its id, and the call belongs to it. Otherwise the outer run gets
//! the request's id, if no other run has that id. If another run has the id, the call belongs to
//! that other run, and also ends when the outer run does.
//!
//! If the request carries a call that the program [attached](crate::Run::attach), this layer opens
//! no call, and the request's id has no effect.
//!
//! # Cancel safety
//!
//! Dropping the future or the body ends the call as aborted, unless the answer is complete or a
//! reason is stored already. A run with a given id goes on.
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
//! Takes ids and owners from the program's own closures:
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

mod known_agents;
mod layer;
mod request_run;
mod service;

pub use self::{
    known_agents::{AgentHeaders, KnownAgents, NeedsBody},
    layer::RunLayer,
    request_run::RequestRun,
    service::{CallFailed, RunService},
};

pub(crate) use self::service::RunName;
