//! Calls that wait for an upstream, on a paused clock.

mod places;
mod shared;
mod silence;
mod waits;

use std::{
    convert::Infallible,
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;
use tower::Service;
use tower_agent::{BoxError, HealthGateLayer, llm::failure::TransportError};

use crate::support::Script;

/// llama.cpp's, while it loads.
const LOADING: &str =
    r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#;

/// How an upstream is, and who asked.
#[derive(Clone, Debug)]
struct Health {
    well: fn(Duration) -> bool,
    takes: Duration,
    start: Instant,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    asked: Vec<Duration>,
    under_way: usize,
    most: usize,
}

/// A probe that is under way.
struct Asking(Arc<Mutex<Seen>>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.lock().unwrap().under_way -= 1;
    }
}

impl Health {
    /// Well if `well` says so of the time since now.
    fn new(well: fn(Duration) -> bool) -> Self {
        Self {
            well,
            takes: Duration::ZERO,
            start: Instant::now(),
            seen: Arc::default(),
        }
    }

    /// To answer takes so long.
    const fn takes(mut self, time: Duration) -> Self {
        self.takes = time;
        self
    }

    /// When it was asked, in milliseconds.
    fn asked(&self) -> Vec<u128> {
        let seen = self.seen.lock().unwrap();
        seen.asked.iter().map(Duration::as_millis).collect()
    }

    fn under_way(&self) -> usize {
        self.seen.lock().unwrap().under_way
    }

    /// How many asked at the same time.
    fn most(&self) -> usize {
        self.seen.lock().unwrap().most
    }

    async fn ask(self) -> bool {
        let asking = {
            let mut seen = self.seen.lock().unwrap();
            seen.asked.push(self.start.elapsed());
            seen.under_way += 1;
            seen.most = seen.most.max(seen.under_way);
            Asking(Arc::clone(&self.seen))
        };
        if !self.takes.is_zero() {
            tokio::time::sleep(self.takes).await;
        }
        drop(asking);
        (self.well)(self.start.elapsed())
    }

    /// A gate that asks here.
    fn gate(&self) -> HealthGateLayer<Self> {
        HealthGateLayer::new(self.clone())
    }
}

impl Service<()> for Health {
    type Response = bool;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<bool, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        let asked = self.clone().ask();
        Box::pin(async move { Ok(asked.await) })
    }
}

/// The connection is refused.
fn refused() -> BoxError {
    let error = io::Error::from(io::ErrorKind::ConnectionRefused);
    TransportError::new(error).into()
}

/// Nobody listens.
fn down() -> Script {
    Script::before_head().fail_with(refused)
}

/// It listens, and loads its model.
fn loading() -> Script {
    Script::answer(503, LOADING)
}
