//! A scripted upstream, and what tests ask of an answer.

mod answers;
mod events;
mod heard;
mod probe;
mod read;
mod script;
mod several;
mod told;

pub(crate) use self::{
    answers::{
        ERROR, coded, failing, healthy, healthy_text, holding, holding_for, quick, run_on, saying,
        supervised, tries,
    },
    events::{DONE, FINISH, PING, PRELUDE, STOP, USAGE, chat, content_block},
    heard::{Event as LogEvent, Heard},
    probe::Probe,
    read::{Read, ReadExt, poll_body, poll_once, reason_of, secs},
    script::{Script, Upstream, UpstreamBody, UpstreamFuture},
    several::Several,
    told::Told,
};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tower_agent::Run;

/// A chat request without a node.
pub(crate) fn request() -> Request<()> {
    Request::post("/v1/chat/completions").body(()).unwrap()
}

/// A chat request with a body, without a node.
pub(crate) fn prompt(model: &str, stream: bool) -> Request<Full<Bytes>> {
    let body = format!("{{\"model\":\"{model}\",\"stream\":{stream},\"messages\":[]}}");
    let request = Request::post("/v1/chat/completions");
    request.body(Full::from(body)).unwrap()
}

/// An Anthropic request without a node.
pub(crate) fn messages() -> Request<()> {
    Request::post("/v1/messages").body(()).unwrap()
}

/// A request whose path says nothing of its dialect.
pub(crate) fn plain() -> Request<()> {
    Request::post("/").body(()).unwrap()
}

/// A chat request that carries `run` itself as its node.
pub(crate) fn request_of(run: &Run) -> Request<()> {
    let mut request = request();
    request.extensions_mut().insert(run.clone());
    request
}

/// A chat request with a call of `run`, and the call.
pub(crate) fn call_of(run: &Run) -> (Request<()>, Run) {
    attached(run, request())
}

/// A request with a call of `run`, and the call.
pub(crate) fn attached<B>(run: &Run, request: Request<B>) -> (Request<B>, Run) {
    let request = run.attach(request);
    let call = request.extensions().get::<Run>().unwrap().clone();
    (request, call)
}

/// Does something later, from another task: nothing else wakes the test's.
pub(crate) fn later<T: Send + 'static>(
    seconds: u64,
    act: impl FnOnce() -> T + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(async move {
        tokio::time::sleep(secs(seconds)).await;
        act()
    })
}
