//! The upstream of a test: plays scripts, and records what reaches it.

use std::{
    collections::{BTreeMap, VecDeque},
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response};
use tokio::time::{Instant, Sleep, sleep};
use tower::Service;
use tower_agent::{BoxError, Run, TerminalReason};

use super::{
    playback::{Playback, UpstreamBody, UpstreamFuture},
    record::{DropRecord, Record, RequestRecord},
    request_body::text_of,
    script::Script,
};

/// A scripted service and its record; all clones share both.
///
/// It takes requests with any body. Give a clone of it to the layer, and ask the handle
/// afterwards.
#[derive(Debug)]
pub(crate) struct Upstream {
    scripts: Arc<[Script]>,
    scripts_by_model: Arc<Mutex<BTreeMap<String, Script>>>,
    readiness: Arc<Mutex<VecDeque<Option<BoxError>>>>,
    busy: Option<Duration>,
    timer: Option<Pin<Box<Sleep>>>,
    record: Record,
}

/// Of a service that is busy, each clone waits for its readiness anew.
impl Clone for Upstream {
    fn clone(&self) -> Self {
        Self {
            scripts: Arc::clone(&self.scripts),
            scripts_by_model: Arc::clone(&self.scripts_by_model),
            readiness: Arc::clone(&self.readiness),
            busy: self.busy,
            timer: None,
            record: self.record.clone(),
        }
    }
}

impl Upstream {
    /// Plays one script for every call.
    pub(crate) fn script(script: Script) -> Self {
        Self::scripts([script])
    }

    /// Plays one script a call, in order, and the last one for all that follow.
    pub(crate) fn scripts(scripts: impl IntoIterator<Item = Script>) -> Self {
        Self {
            scripts: scripts.into_iter().collect(),
            scripts_by_model: Arc::default(),
            readiness: Arc::default(),
            busy: None,
            timer: None,
            record: Record::default(),
        }
    }

    /// The answers of `poll_ready`, first to last; after them it is ready.
    pub(crate) fn readiness(self, answers: impl IntoIterator<Item = Option<BoxError>>) -> Self {
        *self.readiness.lock().unwrap() = answers.into_iter().collect();
        self
    }

    /// Ready at once for the first call, and only after `wait` for each further one.
    pub(crate) const fn busy(mut self, wait: Duration) -> Self {
        self.busy = Some(wait);
        self
    }

    /// From now on, plays this script for all calls that ask for `model`.
    pub(crate) fn play(&self, model: &str, script: Script) {
        let mut scripts = self.scripts_by_model.lock().unwrap();
        scripts.insert(model.to_owned(), script);
    }
}

/// What was recorded.
impl Upstream {
    /// How many calls came.
    pub(crate) fn calls(&self) -> usize {
        self.record.calls()
    }

    /// How often futures and bodies were polled.
    pub(crate) fn polls(&self) -> usize {
        self.record.polls()
    }

    /// How often bodies answered a poll: each frame, each error and each end.
    pub(crate) fn frames(&self) -> usize {
        self.record.frames()
    }

    /// How often `poll_ready` was called.
    pub(crate) fn readiness_polls(&self) -> usize {
        self.record.readiness_polls()
    }

    /// The requests, in order.
    pub(crate) fn requests(&self) -> Vec<RequestRecord> {
        self.record.requests()
    }

    /// The body of each request.
    pub(crate) fn bodies(&self) -> Vec<String> {
        let body = |request: &RequestRecord| request.body().to_owned();
        self.requests().iter().map(body).collect()
    }

    /// The model that each call asked for.
    pub(crate) fn models(&self) -> Vec<String> {
        let model = |request: &RequestRecord| model_of(request.body()).unwrap();
        self.requests().iter().map(model).collect()
    }

    /// The time of each call, since `start`.
    pub(crate) fn times(&self, start: Instant) -> Vec<Duration> {
        let time = |request: &RequestRecord| request.at - start;
        self.requests().iter().map(time).collect()
    }

    /// This header of each request.
    pub(crate) fn header(&self, name: &str) -> Vec<Option<String>> {
        let text = |request: &RequestRecord| {
            let value = request.headers.get(name)?;
            Some(value.to_str().unwrap().to_owned())
        };
        self.requests().iter().map(text).collect()
    }

    /// The node of each request that had one.
    pub(crate) fn runs(&self) -> Vec<Run> {
        let requests = self.requests();
        requests.into_iter().filter_map(|it| it.run).collect()
    }

    /// The node of the latest request that had one.
    pub(crate) fn run(&self) -> Run {
        self.runs().pop().unwrap()
    }

    /// The terminal reason of each request's node, as it is now.
    pub(crate) fn reasons(&self) -> Vec<Option<TerminalReason>> {
        self.runs().iter().map(Run::terminal_reason).collect()
    }

    /// The futures and bodies that were dropped before their script had ended.
    pub(crate) fn drops(&self) -> Vec<DropRecord> {
        self.record.drops()
    }

    /// The only one of [`drops`](Self::drops).
    ///
    /// # Panics
    ///
    /// If there was none, or more than one.
    pub(crate) fn dropped(&self) -> DropRecord {
        let drops = self.drops();
        assert_eq!(drops.len(), 1, "{drops:?}");
        drops[0].clone()
    }

    /// Whether there was a drop.
    pub(crate) fn is_dropped(&self) -> bool {
        !self.drops().is_empty()
    }
}

impl<B: 'static> Service<Request<B>> for Upstream {
    type Response = Response<UpstreamBody>;
    type Error = BoxError;
    type Future = UpstreamFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.record.count_readiness_poll();
        if let Some(wait) = self.busy.filter(|_| self.calls() > 0) {
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(wait)));
            ready!(timer.as_mut().poll(cx));
        }
        match self.readiness.lock().unwrap().pop_front().flatten() {
            Some(error) => Poll::Ready(Err(error)),
            None => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, request: Request<B>) -> UpstreamFuture {
        self.timer = None;
        let (head, body) = request.into_parts();
        let run = head.extensions.get::<Run>().cloned();
        let body = text_of(body);
        let model = body.as_deref().and_then(model_of);
        let call = self.record.push_request(RequestRecord {
            at: Instant::now(),
            uri: head.uri,
            headers: head.headers,
            body,
            run: run.clone(),
        });
        let of_model = model.and_then(|it| self.scripts_by_model.lock().unwrap().get(&it).cloned());
        let script = of_model.unwrap_or_else(|| {
            let last = self.scripts.len() - 1;
            self.scripts[call.min(last)].clone()
        });
        UpstreamFuture::new(Playback::new(script, self.record.clone(), run))
    }
}

/// The model that a JSON request asks for.
fn model_of(body: &str) -> Option<String> {
    let body: serde_json::Value = serde_json::from_str(body).ok()?;
    Some(body["model"].as_str()?.to_owned())
}
