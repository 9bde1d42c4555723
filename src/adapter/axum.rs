//! [`Run`] as an extractor: a handler's access to the run of its request.
//!
//! A handler must call tools and other models under the run of its request, or these
//! calls outlive the run. The extractor returns the node that an outer layer put
//! into the request.
//!
//! # Order
//!
//! The handler stands inside of a layer that opens runs, such as [`RunLayer`](crate::RunLayer). If
//! the request carries no run, the extractor answers 500.
//!
//! # Examples
//!
//! ```
//! use axum::{Router, routing::post};
//! use tower::ServiceBuilder;
//! use tower_agent::{Run, RunLayer, RunRegistry, TerminalResponseLayer, ToolError};
//!
//! async fn handler(run: Run) -> Result<String, ToolError<std::io::Error>> {
//!     run.tool("read").call(tokio::fs::read_to_string("notes")).await
//! }
//!
//! let app: Router = Router::new()
//!     .route("/", post(|run: Run| async move { handler(run).await.unwrap_or_default() }))
//!     .layer(
//!         ServiceBuilder::new()
//!             .layer(TerminalResponseLayer::new())
//!             .layer(RunLayer::new(RunRegistry::new())),
//!     );
//! ```

use std::{error::Error, fmt};

use axum_core::{
    body::Body,
    extract::FromRequestParts,
    response::{IntoResponse, Response},
};
use http::{StatusCode, request::Parts};

use crate::run::Run;

/// The rejection of a request into which no outer layer has put a run.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingRun;

impl fmt::Display for MissingRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("request carries no run: a layer that opens one is missing around the handler")
    }
}

impl Error for MissingRun {}

impl IntoResponse for MissingRun {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.to_string()));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    }
}

impl<S: Sync> FromRequestParts<S> for Run {
    type Rejection = MissingRun;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, MissingRun> {
        parts.extensions.get::<Self>().cloned().ok_or(MissingRun)
    }
}
