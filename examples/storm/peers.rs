//! What both peers need around them.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};

use crate::{
    systems::{ATTEMPT, Stack},
    upstream::OutageUpstream,
};

pub(crate) type Asked = Request<Full<Bytes>>;
pub(crate) type Answer = Response<Full<Bytes>>;

/// One attempt of one candidate; an answer that is a failure is an error.
pub(crate) fn attempt(
    upstream: &OutageUpstream,
    model: &'static str,
) -> BoxCloneSyncService<Asked, Answer, BoxError> {
    let upstream = upstream.clone();
    let send = service_fn(move |request| {
        let sent = upstream.clone().oneshot(named(model, request));
        async move { judged(sent.await?) }
    });
    BoxCloneSyncService::new(ServiceBuilder::new().timeout(ATTEMPT).service(send))
}

/// Runs each call in a task of its own, as a server does that is to finish what
/// it has begun.
#[expect(clippy::disallowed_methods, reason = "as chat servers do")]
pub(crate) fn detached(stack: Stack) -> Stack {
    BoxCloneSyncService::new(service_fn(move |request| {
        let call = tokio::spawn(stack.clone().oneshot(request));
        async move { call.await? }
    }))
}

fn judged(answer: Answer) -> Result<Answer, BoxError> {
    match answer.status().is_server_error() {
        true => Err(answer.status().to_string().into()),
        false => Ok(answer),
    }
}

/// The request for one of the candidates.
pub(crate) fn named(model: &str, mut request: Asked) -> Asked {
    let body = format!("{{\"model\":\"{model}\",\"stream\":true,\"messages\":[]}}");
    *request.body_mut() = body.into();
    request
}
