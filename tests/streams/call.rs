//! One call through a full stack, and what became of it.

use http::Request;
use tower_agent::{
    TerminalReason, TokenCapLayer, TokenCaps,
    llm::{dialect::Usage, failure::FailureClass},
    run::TokensSpent,
};

use crate::{
    answers::{Api, answers},
    support::{Place, Script, Stack, Summaries, Upstream, with_header},
};

/// The window of the caller's silence, in seconds.
pub(crate) const WINDOW: u64 = 30;

/// How the upstream's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyEnd {
    Clean,
    /// A transport error.
    Broken,
    /// Nothing more comes, and the body does not end.
    Open,
}

/// What the caller and the program got of a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallResult {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) text: String,
    pub(crate) error: Option<String>,
    pub(crate) served: Option<String>,
    pub(crate) reason: TerminalReason,
    pub(crate) stop_reason: Option<String>,
    pub(crate) usage: Option<Usage>,
    pub(crate) tokens: TokensSpent,
    /// The candidate of each request that reached the upstream.
    pub(crate) models: Vec<String>,
    pub(crate) tries: Vec<(Option<String>, FailureClass)>,
    pub(crate) seconds: f64,
}

/// The head and the body of a candidate's answer.
pub(crate) fn script<'a>(
    content_type: Option<&'static str>,
    chunks: impl IntoIterator<Item = &'a [u8]>,
    end: BodyEnd,
) -> Script {
    let script = content_type.map_or_else(Script::untyped, Script::of);
    let script = chunks.into_iter().fold(script, Script::data);
    match end {
        BodyEnd::Clean => script,
        BodyEnd::Broken => script.fail("reset"),
        BodyEnd::Open => script.never(),
    }
}

/// A content type as it is without a charset.
fn without_parameters(kind: &str) -> &str {
    kind.split(';').next().unwrap_or(kind)
}

/// Asks a stack in which the candidate `a` plays `script`, and `b` answers well.
pub(crate) async fn ask(api: Api, script: Script, asks_for_usage: bool) -> CallResult {
    let whole = answers().into_iter().find(|(_, of, _)| *of == api).unwrap();
    let upstream = Upstream::script(Script::sse().data(whole.2));
    upstream.play("a", script);
    let summaries = Summaries::default();
    let counter = TokenCapLayer::new(TokenCaps::new()).always_count();
    let stack = Stack::default()
        .terminal()
        .layer(Place::Run, summaries.layer())
        .disconnect()
        .step(2 * WINDOW)
        .layer(Place::TokenCap, counter)
        .candidates(["a", "b"])
        .retry(2)
        .attempt_step(WINDOW)
        .build(&upstream);
    let request: Request<_> = with_header(api.request(asks_for_usage), "x-run-id", "run");

    let outcome = stack.ask(request).await;

    let summary = summaries.one();
    let kind = outcome.header("content-type").map(without_parameters);
    CallResult {
        status: outcome.status,
        content_type: kind.unwrap_or_default().to_owned(),
        served: outcome.header("x-served-candidate").map(str::to_owned),
        error: outcome.error.as_ref().map(ToString::to_string),
        text: outcome.text,
        reason: summary.reason,
        stop_reason: summary.stop_reason.as_deref().map(str::to_owned),
        usage: summary.usage,
        tokens: upstream.run().tokens_spent().unwrap(),
        models: upstream.models(),
        tries: outcome.tries,
        seconds: outcome.at.as_secs_f64(),
    }
}
