//! A ceiling and a step window of one node, as one layer.
//!
//! A [`HardCeilingLayer`] directly around a [`StepTimeoutLayer`] is two wrappers around each call, and
//! each of them looks at every poll and every frame. The layer of this module does the work of both in
//! one wrapper, for fewer instructions and less memory, and behaves as the two do. The two modules say
//! what they do: [`hard_ceiling`](super::hard_ceiling), [`step_timeout`](super::step_timeout).
//!
//! All settings of the two layers count, with their scopes and shadow modes. If neither layer sets a
//! limit, this one passes each call on. [`AgentStack`](crate::AgentStack) uses it around a run and
//! around each attempt.
//!
//! # Same instant
//!
//! A ceiling beats a window that passes at the same instant, as with two layers: see
//! [`hard_ceiling`](super::hard_ceiling).
//!
//! # Order
//!
//! Outside of a retry or fallback layer the limits are those of the call or its run, inside of one they
//! are those of an attempt. A layer that is to stand between the two needs them apart.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the inner one. If this layer opened the run, or was the first
//! layer to get a call that the program attached, a drop before the answer is complete also ends that
//! node as aborted.
//!
//! # Panics
//!
//! A pending poll panics outside of a tokio runtime with its timer enabled, if a limit is set.
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
//! use std::time::Duration;
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_agent::{HardCeilingLayer, StepTimeoutLayer, TerminalReason, TimeLimitsLayer};
//!
//! let ceiling = HardCeilingLayer::new(Duration::from_secs(1800));
//! let step = StepTimeoutLayer::new(Duration::from_secs(120));
//! let hung = ServiceBuilder::new()
//!     .layer(TimeLimitsLayer::new(ceiling, step))
//!     .service(service_fn(|_: Request<()>| {
//!         std::future::pending::<Result<Response<Full<Bytes>>, std::io::Error>>()
//!     }));
//!
//! let error = hung.oneshot(Request::new(())).await.unwrap_err();
//! assert_eq!(TerminalReason::find(&*error), Some(&TerminalReason::StepTimeout));
//! # }
//! ```

use http::Request;
use tower_layer::Layer;

use super::{hard_ceiling::HardCeilingLayer, step_timeout::StepTimeoutLayer};
use crate::supervise::{SupervisedFuture, SupervisedService, SupervisesCalls};

/// Ends a node at an absolute limit, and after a window without progress: see the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct TimeLimitsLayer {
    ceiling: HardCeilingLayer,
    step: StepTimeoutLayer,
}

impl TimeLimitsLayer {
    /// Makes a layer that does the work of `ceiling` around `step`.
    ///
    /// Either may be made by its `optional(None)`, and then sets no limit.
    #[must_use]
    pub const fn new(ceiling: HardCeilingLayer, step: StepTimeoutLayer) -> Self {
        Self { ceiling, step }
    }
}

impl<S> Layer<S> for TimeLimitsLayer {
    type Service = TimeLimits<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SupervisedService::new(inner, *self)
    }
}

/// The service of a [`TimeLimitsLayer`].
pub type TimeLimits<S> = SupervisedService<S, TimeLimitsLayer>;

impl SupervisesCalls for TimeLimitsLayer {
    #[inline]
    fn supervise<B, F>(
        &self,
        request: Request<B>,
        inner: impl FnOnce(Request<B>) -> F,
    ) -> SupervisedFuture<F> {
        if self.ceiling.is_off() && self.step.is_off() {
            return SupervisedFuture::inert(inner(request));
        }
        let within = |ceiling, request: &Request<B>, run: &crate::run::Run| {
            // The ceiling makes no call of a node that is over, so the step layer would not see it.
            if run.node().is_over() {
                return ceiling;
            }
            let settings = self.step.settings_for(request, run);
            match self.ceiling.is_off() {
                true => settings,
                false => settings.within(ceiling),
            }
        };
        self.ceiling.supervise_with(request, within, inner)
    }
}
