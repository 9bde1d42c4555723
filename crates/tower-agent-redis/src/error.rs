//! The error of a connect.

use std::{error::Error, fmt};

/// The error of [`RedisRunStore::connect`](crate::RedisRunStore::connect).
///
/// Its text never has the URL, which may hold a password.
#[derive(Debug)]
pub struct ConnectError {
    kind: ConnectErrorKind,
    text: String,
}

/// What went wrong at a connect.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectErrorKind {
    /// The URL cannot be used.
    Url,
    /// An option has a value that is not allowed.
    Option,
    /// The server does not answer in time, or cannot be reached.
    Unreachable,
    /// The server refuses the connection or a command, as with a wrong password.
    Refused,
    /// The server is older than Redis 7.
    TooOld,
    /// The replicas of this prefix have another secret, or this process has one already, or has made
    /// digests without one.
    Secret,
}

impl ConnectError {
    /// What went wrong.
    #[must_use]
    pub const fn kind(&self) -> ConnectErrorKind {
        self.kind
    }

    pub(crate) fn url(text: impl Into<String>) -> Self {
        Self::new(ConnectErrorKind::Url, text)
    }

    pub(crate) fn option(name: &str, value: &str) -> Self {
        let value: String = value.chars().take(40).collect();
        let text = format!("{name} {value:?}: write 1 to 64 letters, digits and ._-");
        Self::new(ConnectErrorKind::Option, text)
    }

    pub(crate) fn new(kind: ConnectErrorKind, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { kind, text }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            ConnectErrorKind::Url => "the URL of the store of runs cannot be used",
            ConnectErrorKind::Option => "an option of the store of runs is not allowed",
            ConnectErrorKind::Unreachable => "the store of runs cannot be reached",
            ConnectErrorKind::Refused => "the store of runs refuses the connection",
            ConnectErrorKind::TooOld => "the store of runs is too old",
            ConnectErrorKind::Secret => "the secret of the store of runs cannot be used",
        };
        write!(f, "{what}: {}", self.text)
    }
}

impl Error for ConnectError {}
