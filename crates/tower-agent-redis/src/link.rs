//! The connection on which the store is asked, and the breaker before it.

use std::{fmt, sync::Mutex, time::Duration};

use redis::{ErrorKind, RedisError, aio::MultiplexedConnection};
use tokio::{sync::Notify, time::Instant};

use crate::lock;

/// After so many failures in a row nothing is asked until the store has proved to be well.
const FAILURES: u32 = 3;

/// A question that was dropped after this time is one that the store did not answer. The caller
/// of a younger one has gone.
const LATE: Duration = Duration::from_millis(20);

/// The connection, while the store is well.
#[derive(Default)]
pub(crate) struct Link {
    state: Mutex<LinkState>,
    /// Wakes the task that tells news and mends the link.
    pub(crate) wake: Notify,
}

#[derive(Default)]
struct LinkState {
    connection: Option<MultiplexedConnection>,
    /// Counts the connections, so that a late failure of an old one does no harm.
    generation: u64,
    failures: u32,
    /// When a failure was counted last.
    failed: Option<Instant>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("is_up", &self.is_up())
            .finish_non_exhaustive()
    }
}

impl Link {
    /// The connection and its number; `None` while nothing may be asked.
    pub(crate) fn get(&self) -> Option<(MultiplexedConnection, u64)> {
        let state = lock(&self.state);
        let connection = state.connection.clone()?;
        Some((connection, state.generation))
    }

    pub(crate) fn is_up(&self) -> bool {
        lock(&self.state).connection.is_some()
    }

    pub(crate) fn generation(&self) -> u64 {
        lock(&self.state).generation
    }

    pub(crate) fn set_up(&self, connection: MultiplexedConnection) {
        let mut state = lock(&self.state);
        state.connection = Some(connection);
        state.generation += 1;
        state.failures = 0;
    }

    pub(crate) fn succeeded(&self, generation: u64) {
        let mut state = lock(&self.state);
        if state.generation == generation {
            state.failures = 0;
        }
    }

    /// Records what went wrong with a command that was sent at this time. What the store says about
    /// one key leaves the link as it is.
    pub(crate) fn failed(&self, generation: u64, sent: Instant, trouble: &Trouble) {
        let mut state = lock(&self.state);
        if state.generation != generation || state.connection.is_none() {
            return;
        }
        match trouble {
            Trouble::Damaged(_) | Trouble::NoScript => return,
            Trouble::Broken(_) => state.failures = FAILURES,
            // Commands that were under way together fail together, and once: their callers may all
            // have left at a moment in which this process had no time.
            Trouble::Failed(_) if state.failed.is_some_and(|failed| sent < failed) => return,
            Trouble::Failed(_) => {
                state.failures += 1;
                state.failed = Some(Instant::now());
            }
        }
        if state.failures < FAILURES {
            return;
        }
        state.connection = None;
        drop(state);
        tracing::warn!(target: "tower_agent", cause = %trouble, "the store of runs is lost");
        self.wake.notify_one();
    }

    /// Watches a question, which its caller may drop.
    pub(crate) fn watch(&self, generation: u64) -> Watch<'_> {
        Watch {
            link: self,
            generation,
            since: Instant::now(),
            is_over: false,
        }
    }
}

/// A question under way. Its drop is a failure of the store if it was late by then.
pub(crate) struct Watch<'a> {
    link: &'a Link,
    generation: u64,
    since: Instant,
    is_over: bool,
}

impl Watch<'_> {
    pub(crate) fn succeeded(&mut self) {
        self.is_over = true;
        self.link.succeeded(self.generation);
    }

    pub(crate) fn failed(&mut self, trouble: &Trouble) {
        self.is_over = true;
        self.link.failed(self.generation, self.since, trouble);
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.is_over && self.since.elapsed() >= LATE {
            let late = Trouble::Failed("no answer in time".into());
            self.link.failed(self.generation, self.since, &late);
        }
    }
}

/// What went wrong with a command.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// The key does not hold what replicas write; the rest of the store may be well.
    Damaged(String),
    /// The server does not know the script: it has forgotten all.
    NoScript,
    /// The connection is of no use any more.
    Broken(String),
    /// The command failed.
    Failed(String),
}

impl Trouble {
    pub(crate) fn of(error: &RedisError) -> Self {
        let text = error.to_string();
        match error.code() {
            Some("NOSCRIPT") => return Self::NoScript,
            // `ERR` is what a script says that meets values which no replica writes.
            Some("DAMAGED" | "WRONGTYPE" | "ERR") => return Self::Damaged(text),
            Some("READONLY" | "MASTERDOWN" | "NOAUTH" | "NOPERM" | "MOVED") => {
                return Self::Broken(text);
            }
            _ => {}
        }
        match error.kind() {
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Self::Damaged(text),
            ErrorKind::AuthenticationFailed => Self::Broken(text),
            _ if error.is_connection_dropped() => Self::Broken(text),
            _ => Self::Failed(text),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoScript => f.write_str("the server has forgotten the scripts"),
            Self::Damaged(text) | Self::Broken(text) | Self::Failed(text) => f.write_str(text),
        }
    }
}
