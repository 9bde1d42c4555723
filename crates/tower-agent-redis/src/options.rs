//! The options of a store.

use std::time::Duration;

use crate::ConnectError;

/// Options of a [`RedisRunStore`](crate::RedisRunStore).
///
/// ```
/// use std::time::Duration;
/// use tower_agent_redis::RedisOptions;
///
/// let options = RedisOptions::new()
///     .prefix("staging")
///     .replica("gateway-1")
///     .ttl(Duration::from_secs(7200));
/// ```
#[derive(Clone, Debug)]
pub struct RedisOptions {
    pub(crate) prefix: String,
    pub(crate) replica: Option<String>,
    pub(crate) ttl: Duration,
    pub(crate) may_be_lost: bool,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            prefix: "ta1".into(),
            replica: None,
            ttl: Duration::from_secs(3600),
            may_be_lost: false,
        }
    }
}

impl RedisOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What all keys begin with; `ta1` by default.
    ///
    /// Replicas of one prefix share their runs. At most 64 letters, digits and `._-`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The name of this replica for people: in the store, and in the
    /// [answers](crate::ReplicaAnswers) that other replicas get. None by default.
    ///
    /// A random number follows it in the store, so that two replicas may have one name; such two are
    /// shown with their numbers. At most 64 letters, digits and `._-`.
    #[must_use]
    pub fn replica(mut self, name: impl Into<String>) -> Self {
        self.replica = Some(name.into());
        self
    }

    /// How long the store keeps a live run of which no replica says that it still has it; an hour by
    /// default, and at least 3 s.
    ///
    /// Each replica says so every third of the time. So only runs of replicas that have died expire.
    /// The end of a run is kept for [`RunRegistry::REMEMBERED`](tower_agent::RunRegistry::REMEMBERED)
    /// after the last question about it, whatever this time is.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl.max(Duration::from_secs(3));
        self
    }

    /// Begins without the server if it cannot be reached, as if it had been lost.
    ///
    /// By default [`connect`](crate::RedisRunStore::connect) fails. A server that answers, but is
    /// too old or refuses the credential, is an error in any case.
    #[must_use]
    pub const fn may_be_lost(mut self) -> Self {
        self.may_be_lost = true;
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConnectError> {
        let is_name = |text: &str| {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
            (1..=64).contains(&text.len()) && text.bytes().all(allowed)
        };
        if !is_name(&self.prefix) {
            return Err(ConnectError::option("prefix", &self.prefix));
        }
        match &self.replica {
            Some(name) if !is_name(name) => Err(ConnectError::option("replica", name)),
            _ => Ok(()),
        }
    }
}
