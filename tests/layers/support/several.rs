//! An upstream that is called more than once.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderMap, Request, Response, Uri};
use http_body_util::BodyExt;
use tokio::time::Instant;
use tower::Service;
use tower_agent::{BoxError, ReplayBody, Run, TerminalReason};

use super::{Probe, Script, UpstreamBody, script::UpstreamFuture};

/// Plays one script a call, in order, and the last one for all that follow.
#[derive(Clone, Debug)]
pub(crate) struct Several {
    scripts: Arc<[Script]>,
    of_models: Arc<Mutex<BTreeMap<String, Script>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    probe: Probe,
    ready: Arc<Mutex<Vec<Option<BoxError>>>>,
    asked: Arc<AtomicUsize>,
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
            of_models: Arc::default(),
            seen: Arc::default(),
            probe: Probe::default(),
            ready: Arc::default(),
            asked: Arc::default(),
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

    /// From now on this model plays a script of its own, whoever was before.
    pub(crate) fn play(&self, model: &str, script: Script) {
        let mut of_models = self.of_models.lock().unwrap();
        of_models.insert(model.to_owned(), script);
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn calls(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// How often it was asked whether it is ready.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    pub(crate) fn probe(&self) -> Probe {
        self.probe.clone()
    }

    /// The model that each call asked for.
    pub(crate) fn models(&self) -> Vec<String> {
        let model = |seen: &Seen| model_of(&seen.body).unwrap();
        self.seen().iter().map(model).collect()
    }

    /// When each call came, since `start`.
    pub(crate) fn times(&self, start: Instant) -> Vec<Duration> {
        self.seen().iter().map(|seen| seen.at - start).collect()
    }

    /// What each attempt came to.
    pub(crate) fn reasons(&self) -> Vec<Option<TerminalReason>> {
        let reason = |seen: &Seen| seen.run.terminal_reason();
        self.seen().iter().map(reason).collect()
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
        self.asked.fetch_add(1, Ordering::SeqCst);
        match self.ready.lock().unwrap().pop().flatten() {
            Some(error) => Poll::Ready(Err(error)),
            None => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, request: Request<ReplayBody>) -> UpstreamFuture {
        let (head, body) = request.into_parts();
        // It never waits.
        let body = futures_util::FutureExt::now_or_never(body.collect()).unwrap();
        let body = String::from_utf8(body.unwrap().to_bytes().to_vec()).unwrap();
        let mut seen = self.seen.lock().unwrap();
        let own = model_of(&body).and_then(|it| self.of_models.lock().unwrap().get(&it).cloned());
        let script = own.unwrap_or_else(|| {
            let last = self.scripts.len() - 1;
            self.scripts[seen.len().min(last)].clone()
        });
        seen.push(Seen {
            at: Instant::now(),
            uri: head.uri.clone(),
            headers: head.headers.clone(),
            body,
            run: head.extensions.get::<Run>().unwrap().clone(),
        });
        let mut upstream = script.of_probe(self.probe.clone());
        upstream.call(Request::from_parts(head, ()))
    }
}

/// The model that a JSON request asks for.
fn model_of(body: &str) -> Option<String> {
    let body: serde_json::Value = serde_json::from_str(body).ok()?;
    Some(body["model"].as_str()?.to_owned())
}
