//! Requests, with and without a node.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tower_agent::Run;

/// A chat request without a body, and without a node.
pub(crate) fn request() -> Request<()> {
    Request::post("/v1/chat/completions").body(()).unwrap()
}

/// An Anthropic request without a body.
pub(crate) fn messages() -> Request<()> {
    Request::post("/v1/messages").body(()).unwrap()
}

/// A request whose path names no dialect.
pub(crate) fn plain() -> Request<()> {
    Request::post("/").body(()).unwrap()
}

/// A chat request that asks this model for a stream.
pub(crate) fn prompt(model: &str) -> Request<Full<Bytes>> {
    prompt_as(model, true)
}

/// A chat request that asks this model for one JSON answer.
pub(crate) fn prompt_json(model: &str) -> Request<Full<Bytes>> {
    prompt_as(model, false)
}

/// A chat request that asks this model for a stream, or for one JSON answer.
pub(crate) fn prompt_as(model: &str, stream: bool) -> Request<Full<Bytes>> {
    let body = format!("{{\"model\":\"{model}\",\"stream\":{stream},\"messages\":[]}}");
    let request = Request::post("/v1/chat/completions");
    request.body(Full::from(body)).unwrap()
}

/// A chat request that carries `run` itself as its node.
pub(crate) fn request_of(run: &Run) -> Request<()> {
    let mut request = request();
    request.extensions_mut().insert(run.clone());
    request
}

/// A chat request as a call of `run`, and the call.
pub(crate) fn call_of(run: &Run) -> (Request<()>, Run) {
    attach(run, request())
}

/// The request as a call of `run`, and the call.
pub(crate) fn attach<B>(run: &Run, request: Request<B>) -> (Request<B>, Run) {
    let request = run.attach(request);
    let call = request.extensions().get::<Run>().unwrap().clone();
    (request, call)
}

/// The request with one more header.
pub(crate) fn with_header<B>(
    mut request: Request<B>,
    name: &'static str,
    value: &str,
) -> Request<B> {
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}
