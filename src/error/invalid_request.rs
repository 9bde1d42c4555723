use std::{error::Error, fmt};

/// A request that cannot be processed as it is: the caller is told why, with a
/// status of 400.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidRequest {
    message: String,
}

impl InvalidRequest {
    /// `message` is for the caller: it names the place that is wrong.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
        }
    }
}

impl fmt::Display for InvalidRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for InvalidRequest {}
