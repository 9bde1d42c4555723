//! An upstream that is called more than once.

use std::{
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use http::{HeaderMap, Request, Response, Uri};
use http_body_util::BodyExt;
use tokio::time::Instant;
use tower::Service;
use tower_agent::{BoxError, ReplayBody, Run};

use super::{Probe, Script, UpstreamBody, script::UpstreamFuture};

/// Plays one script a call, in order, and the last one for all that follow.
#[derive(Clone, Debug)]
pub(crate) struct Several {
    scripts: Arc<[Script]>,
    seen: Arc<Mutex<Vec<Seen>>>,
    probe: Probe,
    ready: Arc<Mutex<Vec<Option<BoxError>>>>,
}

/// A request, as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
    /// The attempt.
    pub(crate) run: Run,
}

impl Several {
    pub(crate) fn new(scripts: impl IntoIterator<Item = Script>) -> Self {
        Self {
            scripts: scripts.into_iter().collect(),
            seen: Arc::default(),
            probe: Probe::default(),
            ready: Arc::default(),
        }
    }

    /// What it answers when it is asked whether it is ready, first to last; then
    /// it always is.
    pub(crate) fn readiness(self, answers: impl IntoIterator<Item = Option<BoxError>>) -> Self {
        let mut answers: Vec<_> = answers.into_iter().collect();
        answers.reverse();
        *self.ready.lock().unwrap() = answers;
        self
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn calls(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    pub(crate) fn probe(&self) -> Probe {
        self.probe.clone()
    }

    /// The header of each call.
    pub(crate) fn header(&self, name: &str) -> Vec<Option<String>> {
        let text = |seen: &Seen| Some(seen.headers.get(name)?.to_str().unwrap().to_owned());
        self.seen().iter().map(text).collect()
    }
}

impl Service<Request<ReplayBody>> for Several {
    type Response = Response<UpstreamBody>;
    type Error = BoxError;
    type Future = UpstreamFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self.ready.lock().unwrap().pop().flatten() {
            Some(error) => Poll::Ready(Err(error)),
            None => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, request: Request<ReplayBody>) -> UpstreamFuture {
        let (head, body) = request.into_parts();
        // It never waits.
        let body = futures_util::FutureExt::now_or_never(body.collect()).unwrap();
        let mut seen = self.seen.lock().unwrap();
        let script = self.scripts[seen.len().min(self.scripts.len() - 1)].clone();
        seen.push(Seen {
            at: Instant::now(),
            uri: head.uri.clone(),
            headers: head.headers.clone(),
            body: String::from_utf8(body.unwrap().to_bytes().to_vec()).unwrap(),
            run: head.extensions.get::<Run>().unwrap().clone(),
        });
        let mut upstream = script.of_probe(self.probe.clone());
        upstream.call(Request::from_parts(head, ()))
    }
}
