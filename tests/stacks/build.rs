//! The stack of a plan.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use tower::{Layer, Service, ServiceExt, service_fn, util::BoxService};
use tower_agent::{
    BoxError, ClientDisconnectLayer, HardCeilingLayer, PumpLayer, RunLayer, RunRegistry,
    StepTimeoutLayer, TerminalResponseLayer,
};

use crate::{
    plan::{Kind, Plan},
    trace::Trace,
    upstream,
};

pub(crate) type Boxed = BoxService<Request<()>, Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>;

fn boxed<S, B>(service: S) -> Boxed
where
    S: Service<Request<()>, Response = Response<B>> + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let service = service.map_response(|answer: Response<B>| {
        answer.map(|body| body.map_err(Into::into).boxed_unsync())
    });
    BoxService::new(service.map_err(Into::into))
}

const fn ticks(ticks: u64) -> Duration {
    Duration::from_secs(ticks)
}

pub(crate) fn stack(plan: &Plan, trace: &Trace, registry: &RunRegistry) -> Boxed {
    let (script, seen) = (plan.clone(), trace.clone());
    let upstream = service_fn(move |request: Request<()>| upstream::call(&script, &seen, &request));
    let stack = plan
        .layers
        .iter()
        .rev()
        .fold(boxed(upstream), |inner, kind| match *kind {
            Kind::Step {
                window,
                first,
                resets_on,
                scope,
            } => {
                let layer = StepTimeoutLayer::new(ticks(window)).first(ticks(first));
                boxed(layer.resets_on(resets_on).scope(scope).layer(inner))
            }
            Kind::Ceiling {
                limit,
                timeout,
                scope,
            } => {
                let layer =
                    HardCeilingLayer::optional(limit.map(ticks)).timeout(timeout.map(ticks));
                boxed(layer.scope(scope).layer(inner))
            }
            Kind::Disconnect(scope) => {
                boxed(ClientDisconnectLayer::new().scope(scope).layer(inner))
            }
            Kind::Pump(frames) => boxed(PumpLayer::new(frames).layer(inner)),
            Kind::Run => boxed(RunLayer::new(registry.clone()).layer(inner)),
        });
    if plan.terminal {
        boxed(TerminalResponseLayer::new().layer(stack))
    } else {
        stack
    }
}
