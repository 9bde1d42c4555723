use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::{Request, header, uri::Authority};

use super::rounds::Rounds;
use crate::{body::MAX_BODY, upstream::Judgement};

/// What is asked and how often unless the program says otherwise.
const EVERY: Duration = Duration::from_secs(5);

/// What a layer was told, and what all calls through it know together.
pub(super) struct Gate<P> {
    /// Behind a lock, for a probe need not be `Sync`.
    probe: Arc<Mutex<P>>,
    pub(super) rounds: Arc<Rounds>,
    pub(super) every: Duration,
    pub(super) timeout: Duration,
    pub(super) patience: Option<Duration>,
    pub(super) silence: Option<Duration>,
    pub(super) authority: Option<Authority>,
    pub(super) judgement: Judgement,
    pub(super) max_body: usize,
}

impl<P> Gate<P> {
    pub(super) fn new(probe: P) -> Self {
        Self {
            probe: Arc::new(Mutex::new(probe)),
            rounds: Arc::default(),
            every: EVERY,
            timeout: EVERY,
            patience: None,
            silence: None,
            authority: None,
            judgement: Judgement::new(),
            max_body: MAX_BODY,
        }
    }

    /// A probe to be made.
    pub(super) fn probe(&self) -> P
    where
        P: Clone,
    {
        let probe = self.probe.lock();
        probe.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the request goes to the upstream that is meant.
    pub(super) fn applies<B>(&self, request: &Request<B>) -> bool {
        let Some(meant) = &self.authority else {
            return true;
        };
        match request.uri().authority() {
            Some(authority) => authority == meant,
            None => {
                let host = request.headers().get(header::HOST);
                host.and_then(|host| host.to_str().ok()) == Some(meant.as_str())
            }
        }
    }
}

/// Not derived: the probe is shared, and need not be `Clone` for it.
impl<P> Clone for Gate<P> {
    fn clone(&self) -> Self {
        Self {
            probe: Arc::clone(&self.probe),
            rounds: Arc::clone(&self.rounds),
            authority: self.authority.clone(),
            judgement: self.judgement.clone(),
            ..*self
        }
    }
}

impl<P> fmt::Debug for Gate<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthGateLayer")
            .field("every", &self.every)
            .field("timeout", &self.timeout)
            .field("patience", &self.patience)
            .field("watch_silence", &self.silence)
            .field("upstream", &self.authority)
            .field("is_closed", &self.rounds.is_closed())
            .finish_non_exhaustive()
    }
}
