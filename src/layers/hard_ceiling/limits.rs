use std::time::Duration;

use http::Request;

use crate::run::Limits;

/// The limits of a layer, or of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CeilingLimits {
    pub(super) ceiling: Option<Duration>,
    pub(super) timeout: Option<Duration>,
}

impl CeilingLimits {
    pub(super) const fn is_empty(self) -> bool {
        self.ceiling.is_none() && self.timeout.is_none()
    }

    /// With what the program set for this request in their place.
    #[inline]
    pub(super) fn replaced_by<B>(mut self, request: &Request<B>) -> Self {
        if let Some(limits) = request.extensions().get::<Limits>() {
            let set = |limit: Option<Duration>| limit.filter(|limit| !limit.is_zero());
            self.ceiling = set(limits.ceiling).or(self.ceiling);
            self.timeout = set(limits.timeout).or(self.timeout);
        }
        self
    }
}
