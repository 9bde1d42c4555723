//! Redis or Valkey as the store by which several processes share the runs of
//! [tower-agent](tower_agent).
//!
//! [`RedisRunStore`] is a [`RunStore`]: an end at one replica ends the run on all, a cap on turns
//! holds for the sum of all replicas, a run's age counts from its first opening, an abort of a
//! session ends its runs everywhere, and cooldowns and sticky sessions hold for all.
//! [`registry::store`](tower_agent::registry::store) says what holds.
//!
//! # Examples
//!
//! ```no_run
//! use tower_agent::{AgentStack, RunRegistry, registry::SharedSecret};
//! use tower_agent_redis::{RedisOptions, RedisRunStore};
//!
//! # async fn run() -> Result<(), tower_agent::BoxError> {
//! // The same in all replicas.
//! let secret = SharedSecret::new(std::env::var("REPLICA_SECRET")?.as_bytes())?;
//! let url = "redis://localhost:6379";
//! let store = RedisRunStore::connect(url, &secret, RedisOptions::new()).await?;
//! let registry = RunRegistry::new().share(store);
//! tokio::spawn(registry.listen());
//! let stack = AgentStack::server(&registry).max_turns(30);
//! # Ok(())
//! # }
//! ```
//!
//! # The server
//!
//! Redis or Valkey from version 7 on; one server, or a master that sentinels name. A Redis Cluster
//! is not supported. The server must not evict keys: with a `maxmemory-policy` of `allkeys-*` it
//! forgets ends and turns, and [`connect`](RedisRunStore::connect) logs a warning.
//!
//! # Time
//!
//! | what | limit |
//! |---|---|
//! | a connection is made | 1 s |
//! | a question | its caller's, which is 50 ms for a [`RunStoreLayer`], and 1 s at most |
//! | a command that nobody waits for | 200 ms |
//! | a read of the log | 400 ms, and 2 s until the socket counts as dead |
//! | a question to other replicas | its caller's, and 50 ms more |
//!
//! After three failures in a row, and at once after a broken connection, the store is *lost*:
//! questions fail without a wait. A task goes on to connect, at first after 100 ms, then after
//! twice the time before, up to 30 s. The store is *back* once it took three writes within 25 ms
//! each, and all ends that have waited. Both are one log line each.
//!
//! What streams spend is told every 100 ms, and that a replica lives on every 10 s for each owner with
//! open runs under a cap: the runs of a replica that died count for 30 s.
//!
//! # What waits
//!
//! [`tell`](RunStore::tell) never waits. News are told in their order, again until the store has
//! taken them. At most [`RunRegistry::ENDED`] ends wait; beyond them the oldest is dropped, and
//! [counted](RedisStats::dropped). What a replica told in the last minute before a loss is told
//! again, as a failover loses writes. So is what it knows of its live runs, if the server has
//! lost them, and the cooldowns that run. A session's candidate is a hint: it does not wait.
//!
//! # Questions between programs
//!
//! [`ask_replicas`](RedisRunStore::ask_replicas) puts a text to the programs of all other replicas, which
//! [`answer`](RedisRunStore::answer) it, and names those that were silent. The gateway shows by it what
//! runs at the others. A question goes to each replica at most once, and has at most 16 KiB; an answer
//! has at most 4 MiB. Both have a connection of their own, so that a long answer holds up no request. It
//! is made at the first of them.
//!
//! A replica is named as [`RedisOptions::replica`] says; one that was given no name, by its id.
//!
//! # What is stored
//!
//! Ids of runs, names of sessions, the reasons, times and turns of runs, and labels of candidates. Of an
//! owner only its [digest](tower_agent::Owner::digest); of hosts and accounts, too. And, for seconds, what
//! programs ask and answer each other.
//!
//! | key below `ta1:{00}` to `ta1:{15}` | type | what |
//! |---|---|---|
//! | `:run:<owner>:<id>` | hash | the run: its incarnation, opening, session, parent, end, what was added to its limits, whether it is suspended, and the turns of each part |
//! | `:ses:<owner>:<session>` | sorted set | the live runs of a session |
//! | `:id:<id>`, `:sid:<session>` | set | the owners that have runs of an id, or in a session |
//! | `:cand:<owner>:<session>` | hash | the candidates of a session, for as long as a live run is kept |
//! | `:cool` | hash | the cooldowns, in `{00}`, until the last one ends |
//! | `:frozen` | hash | whose new runs are refused, in `{00}` |
//! | `:own:<owner>` | hash | what each replica has counted for an owner: its open runs, and the turns, tokens and cost of each minute of the last hour |
//! | `:own:<owner>:<period>:<beginning>` | hash | what each replica has counted for an owner in a day, week or month, and the sums; from the beginning on, in seconds since 1970 |
//! | `:log` | stream | about 10,000 news |
//! | `:secret` | string | the fingerprint of the secret, in `{00}` |
//! | `:replicas` | sorted set | when each replica said last that it lives, in `{00}` |
//! | `:ask` | stream | about 1,000 questions between programs, in `{00}`, for a minute |
//! | `:re:<barrier>`, `:re:<question>` | list | the replicas that have come as far, or the answers, for five seconds |
//!
//! A key that holds something else is logged by its name, and questions about it fail, as if the
//! store were lost for that run alone. News about candidates that cannot be stored are told
//! nevertheless.
//!
//! [`RunStore`]: tower_agent::registry::store::RunStore
//! [`RunStore::tell`]: tower_agent::registry::store::RunStore::tell
//! [`RunStoreLayer`]: tower_agent::layers::run_store::RunStoreLayer
//! [`RunRegistry::ENDED`]: tower_agent::RunRegistry::ENDED

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::disallowed_methods,
        reason = "these are tests"
    )
)]

mod address;
mod candidates;
mod error;
mod freezes;
mod keys;
mod known;
mod link;
mod listen;
mod options;
mod owners;
mod questions;
mod queue;
mod scripts;
mod shared;
mod tell;
mod unsaid;
mod window;
mod wire;

pub use self::{
    error::{ConnectError, ConnectErrorKind},
    options::RedisOptions,
    questions::{AskError, ReplicaAnswer, ReplicaAnswers},
};

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};

use redis::{RedisError, aio::MultiplexedConnection};
use tokio::task::AbortHandle;
use tower_agent::registry::{
    SharedSecret,
    store::{
        Heard, NewsSubject, OwnerElsewhere, OwnerQuestion, Reach, Recalled, RunNews, RunQuestion,
        RunStore, StoreFuture, StoreLost, StoredCooldowns, StoredFreezes,
    },
};

use self::{
    address::Address,
    link::Trouble,
    listen::{Reader, listen},
    shared::Shared,
    tell::{ANSWER, OTHER_SECRET, Teller},
};

/// A store on Redis or Valkey: see the [crate's docs](crate).
///
/// One store is one replica: give each registry a store of its own.
pub struct RedisRunStore {
    shared: Arc<Shared>,
    tasks: [AbortHandle; 2],
}

impl fmt::Debug for RedisRunStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisRunStore")
            .field("replica", &self.shared.commands.replica)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// What a [`RedisRunStore`] has counted, for metrics.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedisStats {
    /// Whether the store is asked, and its log is read.
    pub up: bool,
    /// The number of questions.
    pub questions: u64,
    /// The number of questions that got no answer, with those whose callers gave up.
    pub lost: u64,
    /// The number of news that the store has never got: too many waited, or the key of a run is
    /// damaged.
    pub dropped: u64,
    /// The number of news that wait for the store.
    pub waiting: u64,
    /// The time since the log was read last. Up to 400 ms while nothing happens.
    pub lag: Duration,
}

impl RedisRunStore {
    /// Connects to a server, and begins to listen.
    ///
    /// `secret` is that of all replicas of the prefix: with another one no owner would be the same. The
    /// call [installs](SharedSecret::install) it in this process, so connect before the first stack is
    /// built.
    ///
    /// | URL | |
    /// |---|---|
    /// | `redis://[user:password@]host[:port][/db]` | a server |
    /// | `rediss://...` | the same with TLS; needs the feature `tls` |
    /// | `redis+sentinel://[user:password@]host:port,host:port/master[/db]` | the master of this name, which these sentinels know; the account is the master's |
    ///
    /// The store has two tasks, which end when it is dropped. News that wait are then lost.
    ///
    /// With the feature `tls`, a `rediss://` URL makes ring the process' default provider of
    /// cryptography for rustls, unless there is one.
    ///
    /// # Errors
    ///
    /// The URL, an option or the secret cannot be used, the server cannot be reached within seconds,
    /// refuses the connection, or is older than version 7.
    ///
    /// # Panics
    ///
    /// The call panics outside of a Tokio runtime.
    #[allow(
        clippy::disallowed_methods,
        reason = "tasks of the store's own, outside of the request path"
    )]
    pub async fn connect(
        url: &str,
        secret: &SharedSecret,
        options: RedisOptions,
    ) -> Result<Arc<Self>, ConnectError> {
        options.check()?;
        let address = Address::parse(url)?;
        let installed = secret.install();
        installed
            .map_err(|error| ConnectError::new(ConnectErrorKind::Secret, error.to_string()))?;
        let shared = Arc::new(Shared::new(address, secret, &options));
        let reader = match begin(&shared).await {
            Ok((connection, reader)) => {
                shared.link.set_up(connection);
                shared.counts.listens.store(true, Ordering::Release);
                Some(reader)
            }
            Err(error) if error.kind() == ConnectErrorKind::Unreachable && options.may_be_lost => {
                tracing::warn!(target: "tower_agent", cause = %error, "the store of runs is lost");
                None
            }
            Err(error) => return Err(error),
        };
        let tasks = [
            tokio::spawn(Teller::new(Arc::clone(&shared)).work()).abort_handle(),
            tokio::spawn(listen(Arc::clone(&shared), reader)).abort_handle(),
        ];
        Ok(Arc::new(Self { shared, tasks }))
    }

    /// Checks a URL and options without a connection: what [`connect`](Self::connect) would say of them.
    ///
    /// # Errors
    ///
    /// The URL or an option cannot be used.
    pub fn check(url: &str, options: &RedisOptions) -> Result<(), ConnectError> {
        options.check()?;
        Address::parse(url).map(drop)
    }

    /// What the store has counted so far.
    #[must_use]
    pub fn stats(&self) -> RedisStats {
        let counts = &self.shared.counts;
        RedisStats {
            up: self.shared.link.is_up() && counts.listens.load(Ordering::Acquire),
            questions: counts.questions.load(Ordering::Relaxed),
            lost: counts.lost.load(Ordering::Relaxed),
            dropped: counts.dropped.load(Ordering::Relaxed),
            waiting: self.shared.waiting() as u64,
            lag: lock(&counts.read).elapsed(),
        }
    }
}

impl Drop for RedisRunStore {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl RunStore for RedisRunStore {
    fn ask(self: Arc<Self>, question: RunQuestion) -> StoreFuture<Result<Recalled, StoreLost>> {
        Box::pin(async move { self.shared.answer(question).await })
    }

    fn ask_owner(
        self: Arc<Self>,
        question: OwnerQuestion,
    ) -> StoreFuture<Result<OwnerElsewhere, StoreLost>> {
        Box::pin(async move { self.shared.answer_owner(question).await })
    }

    fn tell(&self, news: RunNews) {
        self.shared.tell(news);
    }

    fn reach(
        self: Arc<Self>,
        subject: NewsSubject,
        wait: Duration,
    ) -> StoreFuture<Result<Reach, StoreLost>> {
        Box::pin(async move { self.shared.reach(&subject, wait).await })
    }

    fn next(self: Arc<Self>) -> StoreFuture<Heard> {
        Box::pin(async move { self.shared.next().await })
    }

    fn cooldowns(self: Arc<Self>) -> StoreFuture<Result<StoredCooldowns, StoreLost>> {
        Box::pin(async move { self.shared.cooldowns().await })
    }

    fn frozen(self: Arc<Self>) -> StoreFuture<Result<StoredFreezes, StoreLost>> {
        Box::pin(async move { self.shared.frozen().await })
    }
}

/// Makes both connections, and checks the server.
async fn begin(shared: &Shared) -> Result<(MultiplexedConnection, Reader), ConnectError> {
    let mut connection = shared.address.open(ANSWER).await.map_err(unusable)?;
    connection.set_response_timeout(address::CONNECT);
    let cmd = redis::cmd("INFO");
    let info: String = cmd.query_async(&mut connection).await.map_err(unusable)?;
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.strip_prefix(':')).map(str::trim)
    };
    let version = field("redis_version").unwrap_or("unknown");
    let major = version
        .split('.')
        .next()
        .and_then(|it| it.parse::<u32>().ok());
    if major.is_none_or(|major| major < 7) {
        let text = format!("its version is {version}, and 7 is needed");
        return Err(ConnectError::new(ConnectErrorKind::TooOld, text));
    }
    if let Some(policy) = field("maxmemory_policy").filter(|it| it.starts_with("allkeys-")) {
        tracing::warn!(
            target: "tower_agent",
            policy,
            "the store of runs evicts keys: ends and turns will be forgotten"
        );
    }
    let prepared = shared.commands.prepare(&mut connection).await;
    if !prepared.map_err(unusable)? {
        return Err(ConnectError::new(ConnectErrorKind::Secret, OTHER_SECRET));
    }
    let reader = Reader::open(shared, &[]).await.map_err(unusable)?;
    let live = shared.commands.live(&mut connection).await;
    live.map_err(unusable)?;
    Ok((connection, reader))
}

fn unusable(error: RedisError) -> ConnectError {
    let kind = match Trouble::of(&error) {
        Trouble::Failed(_) if error.code().is_some() => ConnectErrorKind::Refused,
        Trouble::Broken(_) if error.is_connection_dropped() => ConnectErrorKind::Unreachable,
        Trouble::Failed(_) => ConnectErrorKind::Unreachable,
        _ => ConnectErrorKind::Refused,
    };
    ConnectError::new(kind, error.to_string())
}

/// Locks what no panic can leave half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[derive(Debug)]
pub struct RedisReadme;
