use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{broadcast, watch},
    task::AbortHandle,
    time::{sleep, timeout},
};
use tower_agent::{RunId, RunRegistry, Trajectory, config::ConfigError};
use tower_agent_redis::RedisRunStore;

use crate::{
    config::{Config, Replicas},
    telemetry::{LineWriter, TimedStore},
};

/// The time that a slow reader has for the last records.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The time that the store of `[replicas]` has to take the last news.
const LAST_NEWS: Duration = Duration::from_secs(1);

/// How often it is asked whether the store has taken the last news.
const LOOK: Duration = Duration::from_millis(5);

/// The runs of a gateway: their registry, their records and their end.
///
/// The value must outlive the app: when it is dropped, `/events` ends.
#[derive(Debug, Default)]
pub struct Runs {
    registry: RunRegistry,
    records: Option<LineWriter>,
    /// Set to true at the shutdown.
    stopping: watch::Sender<bool>,
    /// Set to true at the first signal to stop.
    draining: watch::Sender<bool>,
    peers: Option<SharedStore>,
    listening: Option<Listening>,
    /// The port that the gateway is about to listen at.
    port: Option<u16>,
}

/// The store that this gateway shares with others, and the settings by which it does.
#[derive(Clone, Debug)]
pub(crate) struct SharedStore {
    pub(crate) store: Arc<RedisRunStore>,
    pub(crate) settings: Replicas,
    /// The ids of runs whose ends other gateways tell.
    pub(crate) ends: broadcast::Sender<RunId>,
}

/// How many ends a request may lag behind that waits for one.
const ENDS: usize = 256;

impl SharedStore {
    /// Whether the store answers, and its news are read.
    pub(crate) fn is_up(&self) -> bool {
        self.store.stats().up
    }
}

/// The task that carries out what other gateways tell.
#[derive(Debug)]
struct Listening(AbortHandle);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Runs {
    /// Creates runs without records.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates runs with a trajectory in `out`, a line of JSON for each record.
    ///
    /// A separate thread writes the records, so that a slow reader delays no run. A record that
    /// finds no room in the queue is dropped, and the log says so.
    ///
    /// # Errors
    ///
    /// If the process can start no further thread.
    pub fn with_records(out: impl Write + Send + 'static) -> io::Result<Self> {
        let records = LineWriter::records(out)?;
        Ok(Self {
            registry: RunRegistry::new().trajectory(&Trajectory::new(records.clone())),
            records: Some(records),
            ..Self::new()
        })
    }

    /// Takes the port of this address into the name that this gateway has among others, unless
    /// `name_env` of `[replicas]` names it. Call it before [`share`](Self::share).
    ///
    /// The name is `HOST-PORT` then, and else that of the host.
    #[must_use]
    pub fn listening_at(mut self, address: SocketAddr) -> Self {
        // Port 0 is any free one.
        self.port = Some(address.port()).filter(|port| *port > 0);
        self
    }

    /// Shares the runs with other gateways by the store of `[replicas]`; without that table nothing
    /// changes.
    ///
    /// Call it before anything of the process makes an owner or a stack: their digests have the key
    /// of `secret_env` from then on. A task carries out what other gateways tell, for as long as the
    /// value lives.
    ///
    /// # Errors
    ///
    /// An error of the configuration, at its key: the store cannot be reached or used, other
    /// gateways have another secret, or the process has made digests before.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connection; the secret may stay installed.
    #[allow(clippy::disallowed_methods, reason = "it lives beside all requests")]
    pub async fn share(mut self, config: &Config) -> Result<Self, ConfigError> {
        let Some(settings) = config.replicas.clone() else {
            return Ok(self);
        };
        let store = settings.connect(self.port).await?;
        let ends = broadcast::Sender::new(ENDS);
        let timed = Arc::new(TimedStore::new(Arc::clone(&store), ends.clone()));
        self.registry = self.registry.share(timed);
        let task = tokio::spawn(self.registry.listen());
        self.listening = Some(Listening(task.abort_handle()));
        self.peers = Some(SharedStore {
            store,
            settings,
            ends,
        });
        Ok(self)
    }

    /// The registry, to find, observe and end runs.
    #[must_use]
    pub const fn registry(&self) -> &RunRegistry {
        &self.registry
    }

    /// Ends all runs as `Shutdown`, admits no more, and ends `/events`.
    pub fn shutdown(&self) {
        self.registry.shutdown();
        self.begin_drain();
        self.stopping.send_replace(true);
    }

    /// Tells the sockets of callers to close once their responses are through.
    pub(crate) fn begin_drain(&self) {
        self.draining.send_replace(true);
    }

    /// A receiver of the first signal to stop.
    pub(crate) fn draining(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    /// Waits until the records so far are written, for at most a second.
    ///
    /// Blocks the thread, so it is only for the end of the process.
    pub fn flush(&self) {
        if let Some(records) = &self.records {
            records.flush_within(LAST_LINES);
        }
    }

    /// The store that these runs share with other gateways.
    pub(crate) const fn peers(&self) -> Option<&SharedStore> {
        self.peers.as_ref()
    }

    /// Waits until the store of `[replicas]` has taken what was told so far, and tells the other gateways
    /// that this one goes: for at most a second, and not at all while the store is lost.
    pub(crate) async fn leave(&self) {
        let Some(peers) = &self.peers else { return };
        let waits = || {
            let stats = peers.store.stats();
            stats.up && stats.waiting > 0
        };
        let taken = async {
            while waits() {
                sleep(LOOK).await;
            }
            peers.store.leave().await;
        };
        if timeout(LAST_NEWS, taken).await.is_err() {
            tracing::warn!("the store of runs did not take the last news in time");
        }
    }

    /// A receiver of the shutdown, for streams that belong to no run.
    pub(crate) fn stopped(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }
}
