use http::StatusCode;
use tower_layer::Layer;

use super::service::TerminalResponse;
use crate::{error::BoxError, run::TerminalReason};

/// Turns ends into answers: see the [module](super).
#[derive(Clone, Copy, Debug)]
pub struct TerminalResponseLayer {
    statuses: Statuses,
}

/// How reasons and other errors become statuses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Statuses {
    pub(super) reason: fn(&TerminalReason) -> StatusCode,
    pub(super) error: fn(&BoxError) -> Option<StatusCode>,
}

impl Statuses {
    pub(super) const DEFAULT: Self = Self {
        reason: TerminalReason::status,
        error: |_| None,
    };
}

impl TerminalResponseLayer {
    /// Statuses as [`TerminalReason::status`] says.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            statuses: Statuses::DEFAULT,
        }
    }

    /// Other statuses for reasons.
    #[must_use]
    pub const fn status(mut self, status: fn(&TerminalReason) -> StatusCode) -> Self {
        self.statuses.reason = status;
        self
    }

    /// Statuses for errors of the program's own; `None` leaves the default.
    /// Not asked about the end of a run.
    #[must_use]
    pub const fn error_status(mut self, status: fn(&BoxError) -> Option<StatusCode>) -> Self {
        self.statuses.error = status;
        self
    }
}

impl Default for TerminalResponseLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for TerminalResponseLayer {
    type Service = TerminalResponse<S>;

    fn layer(&self, inner: S) -> Self::Service {
        TerminalResponse::new(inner, self.statuses)
    }
}
