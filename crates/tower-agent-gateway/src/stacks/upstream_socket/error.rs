use std::{error::Error, fmt};

use tokio_tungstenite::tungstenite;

/// The error of a socket that ended, or became unusable, before the last event of a response.
#[derive(Debug)]
pub(super) enum SocketError {
    /// The upstream closed the socket, with this code if it named one.
    Closed(Option<u16>),
    /// The connection failed, or the upstream broke the protocol.
    Broken(tungstenite::Error),
    /// A message was binary.
    Binary,
    /// A message was not an event.
    NoEvent(serde_json::Error),
}

impl fmt::Display for SocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(None) => f.write_str("the upstream's socket ended before its response"),
            Self::Closed(Some(code)) => {
                write!(f, "the upstream closed its socket with the code {code}")
            }
            Self::Broken(_) => f.write_str("the upstream's socket failed"),
            Self::Binary => f.write_str("the upstream's socket sent a binary message"),
            Self::NoEvent(_) => {
                f.write_str("the upstream's socket sent a message that is not an event")
            }
        }
    }
}

impl Error for SocketError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Closed(_) | Self::Binary => None,
            Self::Broken(error) => Some(error),
            Self::NoEvent(error) => Some(error),
        }
    }
}

impl From<tungstenite::Error> for SocketError {
    fn from(error: tungstenite::Error) -> Self {
        Self::Broken(error)
    }
}

impl From<std::io::Error> for SocketError {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(error.into())
    }
}
