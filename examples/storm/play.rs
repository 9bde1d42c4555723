//! One system in the storm.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::{
    runtime,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tower::{BoxError, ServiceExt};

use crate::{
    bound::Bound,
    load::{Agent, OUTAGE, agents, secs},
    peers::named,
    systems::{Stack, System},
    upstream::{Books, Entry, FIRST, OutageUpstream, X_AGENT, X_CALL},
};

/// Longer than all attempts of a call together.
const AFTERWARDS: Duration = secs(120);

/// What became of one system.
#[derive(Debug, PartialEq)]
pub(crate) struct SystemOutcome {
    /// What reached the candidates in the outage.
    pub(crate) first: CandidateCalls,
    pub(crate) second: CandidateCalls,
    /// What our budget grants the first at most in the outage.
    pub(crate) granted: usize,
    /// The first moment at which the first had got more repeats than that.
    pub(crate) broken: Option<Duration>,
    /// Calls of the outage whose callers stayed, by how they ended.
    pub(crate) served: usize,
    pub(crate) failed: usize,
    /// Calls before and after the outage that failed.
    pub(crate) failed_besides: usize,
    /// The time until the answer of the calls in `served` and `failed`.
    pub(crate) median: Duration,
    pub(crate) worst: Duration,
    /// Upstream calls that were begun for callers who had left.
    pub(crate) for_nobody: usize,
}

/// What reached a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CandidateCalls {
    pub(crate) all: usize,
    /// First attempts.
    pub(crate) traffic: usize,
}

/// A call whose caller stayed until its end.
#[derive(Clone, Copy, Debug)]
struct AnsweredCall {
    at: Duration,
    took: Duration,
    served: bool,
}

/// The storm from its beginning to its end, in simulated time.
pub(crate) fn play(system: &System) -> Result<SystemOutcome, BoxError> {
    // Runs are numbered, and waits spread, by the generator of this thread.
    fastrand::seed(1);
    let mut clock = runtime::Builder::new_current_thread();
    clock.enable_time().start_paused(true);
    clock.build()?.block_on(async {
        let upstream = OutageUpstream::new(system.shape.one_in);
        let stack = (system.start)(&upstream, system.shape)?;
        let mut callers = JoinSet::new();
        for agent in agents() {
            callers.spawn(ask(agent, stack.clone(), upstream.clone()));
        }
        let answered = callers.join_all().await.concat();
        sleep(AFTERWARDS).await;
        Ok(upstream.with(|books| SystemOutcome::of(books, &answered)))
    })
}

/// Makes the calls of a run, until its caller leaves.
async fn ask(agent: Agent, stack: Stack, upstream: OutageUpstream) -> Vec<AnsweredCall> {
    let begun = upstream.begun();
    let mut answered = Vec::new();
    let calls = async {
        for (call, at) in agent.calls.iter().enumerate() {
            sleep_until(begun + *at).await;
            let asked = Instant::now();
            let result = stack.clone().oneshot(request(agent.number, call)).await;
            answered.push(AnsweredCall {
                at: asked - begun,
                took: asked.elapsed(),
                served: result.is_ok(),
            });
        }
    };
    match agent.leaves {
        None => calls.await,
        Some(at) => {
            if timeout_at(begun + at, calls).await.is_err() {
                upstream.left(agent.number);
            }
        }
    }
    answered
}

fn request(agent: u32, call: usize) -> Request<Full<Bytes>> {
    let mut request = named(FIRST, Request::new(Full::default()));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = http::Uri::from_static("/v1/chat/completions");
    let headers = request.headers_mut();
    headers.insert("x-run-id", agent.into());
    headers.insert(X_AGENT, agent.into());
    headers.insert(X_CALL, call.into());
    request
}

impl SystemOutcome {
    fn of(books: &Books, answered: &[AnsweredCall]) -> Self {
        let outage = |answered: &&AnsweredCall| OUTAGE.contains(&answered.at);
        let mut took: Vec<_> = answered.iter().filter(outage).map(|it| it.took).collect();
        took.sort();
        let all = answered.iter().filter(|answered| !answered.served).count();
        let failed = answered
            .iter()
            .filter(outage)
            .filter(|it| !it.served)
            .count();
        Self {
            first: CandidateCalls::of(&books.first),
            second: CandidateCalls::of(&books.second),
            granted: Bound::of(&books.first).granted(OUTAGE.end),
            broken: Bound::broken(&books.first),
            served: took.len() - failed,
            failed,
            failed_besides: all - failed,
            median: took.get(took.len() / 2).copied().unwrap_or_default(),
            worst: took.last().copied().unwrap_or_default(),
            for_nobody: books.for_nobody(),
        }
    }

    /// The upstream calls that our budget allows the first in the outage.
    pub(crate) fn most(&self) -> usize {
        self.first.traffic + self.granted
    }

    pub(crate) fn keeps_our_promises(&self) -> bool {
        self.broken.is_none()
            && self.first.all <= self.most()
            && self.second.all == self.second.traffic
            && (self.second.all == 0 || self.failed == 0)
            && self.failed_besides == 0
            && self.for_nobody == 0
    }
}

impl CandidateCalls {
    fn of(entries: &[Entry]) -> Self {
        let outage = || entries.iter().filter(|entry| OUTAGE.contains(&entry.at));
        Self {
            all: outage().count(),
            traffic: outage().filter(|entry| entry.traffic).count(),
        }
    }
}
