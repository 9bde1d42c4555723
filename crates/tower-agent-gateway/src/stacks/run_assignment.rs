//! Names the runs of agents that send no `x-run-id`.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Body, Bytes};
use futures_util::{
    StreamExt,
    future::Either,
    stream::{self, BoxStream},
};
use http::{Request, Response};
use http_body::Body as _;
use tokio::time::{Instant, timeout_at};
use tower::{Service, ServiceExt};
use tower_agent::layers::run::KnownAgents;

use crate::config::MAX_BODY;

/// The longest wait for a body. Then the stack gets the request, and the run's clocks start.
const PATIENCE: Duration = Duration::from_secs(10);

/// Inserts the run of a [known agent](KnownAgents) into the request's extensions.
///
/// If an agent's run can only be found in the request's body, this service reads the body first. A
/// body that is too long, too slow or broken goes to the stack unchanged: first the part that was
/// read, then the rest or the error. Such a request gets no run from this service.
#[derive(Clone, Debug)]
pub(crate) struct RunAssignment<S> {
    agents: Arc<KnownAgents>,
    inner: S,
}

type AgentAnswer = Result<Response<Body>, Infallible>;

impl<S> RunAssignment<S> {
    pub(crate) fn new(agents: KnownAgents, inner: S) -> Self {
        let agents = Arc::new(agents);
        Self { agents, inner }
    }
}

impl<S> Service<Request<Body>> for RunAssignment<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, Pin<Box<dyn Future<Output = AgentAnswer> + Send>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        match self.agents.run_of_head(&parts) {
            Ok(run) => {
                if let Some(run) = run {
                    parts.extensions.insert(run);
                }
                Either::Left(self.inner.call(Request::from_parts(parts, body)))
            }
            Err(_needs_body) => {
                let (agents, inner) = (Arc::clone(&self.agents), self.inner.clone());
                Either::Right(Box::pin(async move {
                    let body = match read(body).await {
                        Ok(bytes) => {
                            if let Some(run) = agents.run_of(&parts, &bytes) {
                                parts.extensions.insert(run);
                            }
                            Body::from(bytes)
                        }
                        Err(body) => body,
                    };
                    inner.oneshot(Request::from_parts(parts, body)).await
                }))
            }
        }
    }
}

/// Reads a body. If it cannot be read whole, the error is a body with the same bytes or error.
async fn read(body: Body) -> Result<Bytes, Body> {
    // At its first byte the stack refuses a body that announces more than its limit.
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(body);
    }
    let until = Instant::now() + PATIENCE;
    let mut rest = body.into_data_stream().boxed();
    let (mut read, mut len) = (Vec::new(), 0);
    loop {
        let next = timeout_at(until, rest.next()).await;
        match next {
            Ok(Some(Ok(data))) => {
                len += data.len();
                read.push(data);
                if len > MAX_BODY {
                    return Err(whole(read, rest));
                }
            }
            Ok(None) => return Ok(joined(read, len)),
            Ok(Some(Err(error))) => {
                let failed = stream::once(async { Err(error) }).boxed();
                return Err(whole(read, failed));
            }
            Err(_elapsed) => return Err(whole(read, rest)),
        }
    }
}

fn whole(read: Vec<Bytes>, rest: BoxStream<'static, Result<Bytes, axum::Error>>) -> Body {
    Body::from_stream(stream::iter(read.into_iter().map(Ok)).chain(rest))
}

fn joined(mut read: Vec<Bytes>, len: usize) -> Bytes {
    if read.len() == 1 {
        return read.swap_remove(0);
    }
    let mut all = Vec::with_capacity(len);
    // Each part is freed once it is copied.
    for data in read {
        all.extend_from_slice(&data);
    }
    all.into()
}
