use std::sync::Arc;

use super::Run;
use crate::run::reason::TerminalReason;

impl Run {
    /// Puts a call of this run into the request, for the layers that the
    /// request will go through.
    ///
    /// The first of them settles the call. If none ever sees the request, the
    /// call ends as [`Aborted`](TerminalReason::Aborted) when the last clone
    /// of the request is dropped.
    ///
    /// If the run is over the call is over from its birth, and the first layer
    /// answers so.
    #[must_use]
    pub fn attach<B>(&self, request: http::Request<B>) -> http::Request<B> {
        self.open_call().carried_by(request)
    }

    /// Puts this call into the request; the first layer that sees it settles it.
    pub(in crate::run) fn carried_by<B>(self, mut request: http::Request<B>) -> http::Request<B> {
        self.node().payload.set_unclaimed();
        request.extensions_mut().insert(Ticket::new(self.clone()));
        request.extensions_mut().insert(self);
        request
    }
}

/// Settles an attached call that no layer ever saw.
#[derive(Clone)]
struct Ticket {
    _last: Arc<Unclaimed>,
}

struct Unclaimed(Run);

impl Ticket {
    fn new(call: Run) -> Self {
        Self {
            _last: Arc::new(Unclaimed(call)),
        }
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if self.0.node().payload.claim() {
            self.0.settle(TerminalReason::Aborted);
        }
    }
}
