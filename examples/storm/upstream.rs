//! Two candidates that answer within two seconds of the simulated clock, and
//! write each call down.

use std::{
    collections::{HashMap, HashSet},
    future,
    io::{Error, ErrorKind},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tokio::time::{Instant, sleep};
use tower::{BoxError, Service};

use crate::load::{OUTAGE, secs, within};

/// The candidate that breaks down, and the one that never does.
pub(crate) const FIRST: &str = "first";
pub(crate) const SECOND: &str = "second";

/// The headers with the number of an agent, and with the number of its call.
pub(crate) const X_AGENT: &str = "x-agent";
pub(crate) const X_CALL: &str = "x-call";

const ANSWER: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n\n\
                      data: [DONE]\n\n";
const ERROR: &str = "{\"error\":{\"message\":\"no\",\"type\":\"error\"}}";

/// Cheap to clone; all clones write in the same books.
#[derive(Clone, Debug)]
pub(crate) struct OutageUpstream {
    begun: Instant,
    /// Of how many calls in the outage the first candidate fails one.
    one_in: u32,
    books: Arc<Mutex<Books>>,
}

/// What came in, in the order of time.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) first: Vec<Entry>,
    pub(crate) second: Vec<Entry>,
    /// The agents that have left.
    left: HashSet<u32>,
    /// How often each candidate saw each call of each agent.
    tries: HashMap<(bool, u32, u32), u32>,
}

/// A call that reached a candidate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) at: Duration,
    /// Whether it is the first that this candidate sees of a caller's call.
    pub(crate) traffic: bool,
    /// Whether its caller had left before it was begun.
    pub(crate) for_nobody: bool,
}

impl OutageUpstream {
    /// The storm begins.
    pub(crate) fn new(one_in: u32) -> Self {
        Self {
            begun: Instant::now(),
            one_in,
            books: Arc::default(),
        }
    }

    pub(crate) fn begun(&self) -> Instant {
        self.begun
    }

    pub(crate) fn left(&self, agent: u32) {
        self.with(|books| books.left.insert(agent));
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut Books) -> T) -> T {
        look(&mut self.books.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn answer(self, headers: HeaderMap, body: Bytes) -> Result<Response<Full<Bytes>>, Error> {
        let asked: Value = serde_json::from_slice(&body)?;
        let second = asked["model"] == SECOND;
        let (agent, call) = (number(&headers, X_AGENT), number(&headers, X_CALL));
        let at = self.begun.elapsed();
        let tries = self.with(|books| books.enter(at, second, agent, call));

        // By the call and its try, so that every system meets the same.
        let seed = u64::from(agent) << 32 | u64::from(call) << 16 | u64::from(tries);
        let mut rng = fastrand::Rng::with_seed(seed);
        if second || !OUTAGE.contains(&at) || rng.u32(0..self.one_in) > 0 {
            sleep(within(&(secs(0)..secs(2)), &mut rng)).await;
            return Ok(answer(StatusCode::OK, "text/event-stream", ANSWER));
        }
        match rng.u32(0..3) {
            0 => Err(ErrorKind::ConnectionRefused.into()),
            1 => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                Ok(answer(status, "application/json", ERROR))
            }
            _ => future::pending().await,
        }
    }
}

impl Books {
    /// Answers how often this candidate has seen this call before.
    fn enter(&mut self, at: Duration, second: bool, agent: u32, call: u32) -> u32 {
        let seen = self.tries.entry((second, agent, call)).or_default();
        let before = std::mem::replace(seen, *seen + 1);
        let entry = Entry {
            at,
            traffic: before == 0,
            for_nobody: self.left.contains(&agent),
        };
        let entries = match second {
            true => &mut self.second,
            false => &mut self.first,
        };
        entries.push(entry);
        before
    }

    /// Calls that were begun for callers who had left.
    pub(crate) fn for_nobody(&self) -> usize {
        let entries = self.first.iter().chain(&self.second);
        entries.filter(|entry| entry.for_nobody).count()
    }
}

impl<B> Service<Request<B>> for OutageUpstream
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Full<Bytes>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let upstream = self.clone();
        let (head, body) = request.into_parts();
        Box::pin(async move {
            let body = body.collect().await.map_err(Error::other)?.to_bytes();
            upstream.answer(head.headers, body).await
        })
    }
}

fn answer(status: StatusCode, kind: &'static str, body: &'static str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(body));
    *answer.status_mut() = status;
    let kind = http::HeaderValue::from_static(kind);
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

fn number(headers: &HeaderMap, name: &str) -> u32 {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}
