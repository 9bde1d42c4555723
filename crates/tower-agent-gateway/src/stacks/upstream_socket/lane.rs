//! The socket that a caller's lane keeps between its turns.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{HeaderMap, HeaderName, Request, Uri, header};
use tokio::time::Instant;

use super::{continuation::Turn, event::UpstreamEvent, socket::UpstreamSocket};

/// The age at which a socket is replaced: at 60 minutes OpenAI ends one with an error.
const MOST_AGE: Duration = Duration::from_secs(55 * 60);

/// How long a socket may be idle. Nothing answers its pings meanwhile, and balancers forget it.
const MOST_IDLE: Duration = Duration::from_secs(4 * 60);

/// The headers of a request that say for whom a socket is.
static CREDENTIALS: [HeaderName; 6] = [
    header::AUTHORIZATION,
    header::COOKIE,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    HeaderName::from_static("openai-organization"),
    HeaderName::from_static("openai-project"),
];

/// One lane of a caller's WebSocket, in the extensions of its requests.
///
/// The lane keeps one socket to an upstream from the end of a response to the next request. Clones
/// are the same lane; when the last one is dropped, the socket closes.
#[derive(Clone, Default)]
pub(crate) struct UpstreamLane(Arc<Mutex<LaneState>>);

#[derive(Default)]
struct LaneState {
    is_busy: bool,
    kept: Option<Box<KeptSocket>>,
}

/// The right to use a lane, which one request has at a time, until its drop.
pub(super) struct LaneLease(UpstreamLane);

/// An open socket, with what it was opened for and what its upstream has in memory.
pub(super) struct KeptSocket {
    pub(super) socket: UpstreamSocket,
    target: Target,
    /// The response that the next request may continue.
    pub(super) turn: Option<Turn>,
    opened: Instant,
    used: Instant,
}

/// An upstream's URL, and the account that asks it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Target {
    uri: Uri,
    credentials: HeaderMap,
}

impl UpstreamLane {
    /// Takes the lane; `None` while another request has it.
    pub(super) fn lease(&self) -> Option<LaneLease> {
        let is_busy = std::mem::replace(&mut self.state().is_busy, true);
        (!is_busy).then(|| LaneLease(self.clone()))
    }

    fn state(&self) -> MutexGuard<'_, LaneState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `Debug` shows neither the prompts in the socket's buffers nor its credentials.
impl fmt::Debug for UpstreamLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamLane").finish_non_exhaustive()
    }
}

impl LaneLease {
    /// Takes the lane's socket, if it can serve a request to `target`. Any other socket closes.
    pub(super) fn take(&self, target: &Target) -> Option<Box<KeptSocket>> {
        let mut kept = self.0.state().kept.take()?;
        let can_serve = kept.target == *target
            && kept.opened.elapsed() < MOST_AGE
            && kept.used.elapsed() < MOST_IDLE
            && kept.is_open();
        can_serve.then_some(kept)
    }

    /// Gives the lane back with a socket for its next request.
    pub(super) fn keep(self, mut kept: Box<KeptSocket>) {
        kept.used = Instant::now();
        self.0.state().kept = Some(kept);
    }
}

impl Drop for LaneLease {
    fn drop(&mut self) {
        self.0.state().is_busy = false;
    }
}

impl KeptSocket {
    pub(super) fn new(socket: UpstreamSocket, target: Target) -> Self {
        let now = Instant::now();
        Self {
            socket,
            target,
            turn: None,
            opened: now,
            used: now,
        }
    }

    /// Whether nothing has come since the last response that ends or disturbs the next one.
    fn is_open(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            match self.socket.poll_text(&mut cx) {
                Poll::Pending => return true,
                // Such as the state of a rate limit.
                Poll::Ready(Ok(text))
                    if UpstreamEvent::read(&text).is_ok_and(|it| it.is_aside()) => {}
                Poll::Ready(_) => return false,
            }
        }
    }
}

impl Target {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let mut credentials = HeaderMap::new();
        for name in &CREDENTIALS {
            for value in request.headers().get_all(name) {
                credentials.append(name, value.clone());
            }
        }
        Self {
            uri: request.uri().clone(),
            credentials,
        }
    }
}
