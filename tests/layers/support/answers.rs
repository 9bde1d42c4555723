//! What upstreams answer that are called more than once, and who asks them.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, util::BoxCloneService};
use tower_agent::{
    BoxError, Candidate, ModelFallbackLayer, RetryBudget, RetryBudgetLayer, Run,
    attempt::{AttemptBody, Tries},
    upstream::FailureClass,
};

use super::{DONE, PRELUDE, Script, Several, UpstreamBody, chat};

/// The body of [`failing`].
pub(crate) const ERROR: &str = r#"{"error":{"message":"no","type":"x"}}"#;

/// Repeats at once, so that times tell what else waits.
pub(crate) fn quick() -> RetryBudget {
    RetryBudget::new().delays(Duration::ZERO, Duration::ZERO)
}

/// An error that tells nothing but its status.
pub(crate) fn failing(status: u16) -> Script {
    saying(status, ERROR)
}

/// An answer with this body.
pub(crate) fn saying(status: u16, body: impl AsRef<[u8]>) -> Script {
    Script::json().status(status).data(body)
}

/// An error that says so by its `code`.
pub(crate) fn coded(status: u16, code: &str) -> Script {
    saying(
        status,
        format!(r#"{{"error":{{"message":"no","type":"x","code":"{code}"}}}}"#),
    )
}

/// Another supervisor's answer: its reason, about the run of this id.
pub(crate) fn supervised(reason: &'static str, id: &str) -> Script {
    let id: &'static str = id.to_owned().leak();
    let answer = failing(504).header("x-terminal-reason", reason);
    answer.header("x-run-id", id)
}

/// A chat stream that ends well.
pub(crate) fn healthy() -> Script {
    Script::sse().data(PRELUDE).data(chat("a")).data(DONE)
}

/// The bytes of [`healthy`].
pub(crate) fn healthy_text() -> String {
    [PRELUDE, &chat("a"), DONE].concat()
}

/// A layer that holds answers, around an upstream.
pub(crate) type Holding =
    BoxCloneService<Request<Full<Bytes>>, Response<AttemptBody<UpstreamBody>>, BoxError>;

/// Both layers that hold an answer to its commit, each around an upstream that
/// plays `scripts`, with a second try to make. They must not differ in it.
pub(crate) fn holding<const N: usize>(scripts: [Script; N]) -> [(Several, Holding); 2] {
    holding_for(scripts, None)
}

/// The same with a limit to how long an answer is held.
pub(crate) fn holding_for<const N: usize>(
    scripts: [Script; N],
    hold: Option<Duration>,
) -> [(Several, Holding); 2] {
    let mut repeats = RetryBudgetLayer::new(quick());
    let mut fallback = ModelFallbackLayer::new(["m", "n"].map(Candidate::new));
    if let Some(hold) = hold {
        (repeats, fallback) = (repeats.hold(hold), fallback.hold(hold));
    }
    let [first, second] = [Several::new(scripts.clone()), Several::new(scripts)];
    let repeats = repeats.layer(first.clone()).boxed_clone();
    let fallback = fallback.layer(second.clone()).boxed_clone();
    [(first, repeats), (second, fallback)]
}

/// What an answer says of the tries before it.
pub(crate) fn tries<B>(answer: &Response<B>) -> Vec<(Option<String>, FailureClass)> {
    let tries = answer.extensions().get::<Tries>().unwrap().all();
    let named = |candidate: &std::sync::Arc<str>| candidate.to_string();
    tries
        .iter()
        .map(|tried| (tried.candidate.as_ref().map(named), tried.class))
        .collect()
}

/// The node that a layer opened for this call, as its answer tells.
pub(crate) fn run_on<B>(answer: &Response<B>) -> Run {
    answer.extensions().get::<Run>().unwrap().clone()
}
