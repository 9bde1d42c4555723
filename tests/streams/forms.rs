//! Any stream, in any chunks and under any content type: the caller gets the same bytes, and the
//! call has the same outcome.

use std::env;

use proptest::{collection::vec, prelude::*, sample::select};

use tower_agent::TerminalReason;

use crate::{
    answers::{Api, answers},
    call::{BodyEnd, CallResult, ask, script},
};

/// The content types that upstreams, proxies and balancers give an event stream.
const TYPES: [Option<&str>; 8] = [
    Some("text/event-stream"),
    Some("text/event-stream; charset=utf-8"),
    Some("text/plain"),
    Some("text/plain; charset=utf-8"),
    Some("application/json"),
    Some("application/json; charset=utf-8"),
    Some("application/octet-stream"),
    None,
];

/// What upstreams and proxies put between the events of an answer. All lines end in LF here.
const BETWEEN: [&str; 12] = [
    ": OPENROUTER PROCESSING\n",
    ": keep-alive\n\n",
    ":\n",
    "\n",
    "event: ping\ndata: {\"type\": \"ping\"}\n\n",
    "event: keepalive\ndata: {}\n\n",
    "data: {\"type\":\"response.heartbeat\"}\n\n",
    "data: {\"prompt_progress\":{\"total\":9,\"processed\":4}}\n\n",
    "data: {}\n\n",
    "data:\n\n",
    "id: 7\nretry: 3000\n\n",
    "error: null\n\n",
];

/// A whole answer, and what is done to it.
#[derive(Clone, Debug)]
struct Plan {
    answer: usize,
    /// Where else something stands, as a number of events, modulo their number.
    between: Vec<(usize, &'static str)>,
    /// An error of the API, where, and the form that it has.
    error: Option<(usize, usize, usize)>,
    /// The text of an event is longer than what is kept of one.
    is_long: bool,
    /// How many of the last events are missing.
    dropped: usize,
    /// How many of the last bytes are missing.
    cut: usize,
    starts_with_bom: bool,
    line_end: &'static str,
    end: BodyEnd,
    asks_for_usage: bool,
}

fn plan() -> impl Strategy<Value = Plan> {
    let between = (0_usize..40, select(&BETWEEN[..]));
    let error = prop::option::weighted(0.3, (0_usize..40, 0_usize..3, 0_usize..6));
    let dropped = prop_oneof![3 => Just(0_usize), 1 => 1_usize..4];
    let cut = prop_oneof![3 => Just(0_usize), 2 => 1_usize..3, 1 => 1_usize..300];
    let line_end = prop_oneof![4 => Just("\n"), 1 => Just("\r\n"), 1 => Just("\r")];
    let end = select(
        &[
            BodyEnd::Clean,
            BodyEnd::Clean,
            BodyEnd::Broken,
            BodyEnd::Open,
        ][..],
    );
    let is_long = prop::bool::weighted(0.02);
    let flags = (is_long, any::<bool>(), prop::bool::weighted(0.1));
    let parts = (0_usize..100, vec(between, 0..4), error, flags);
    (parts, (dropped, cut, line_end, end)).prop_map(
        |((answer, between, error, flags), (dropped, cut, line_end, end))| Plan {
            answer,
            between,
            error,
            is_long: flags.0,
            dropped,
            cut,
            starts_with_bom: flags.2,
            line_end,
            end,
            asks_for_usage: flags.1,
        },
    )
}

/// Error events that upstreams of the API send within a stream.
fn errors(api: Api) -> [&'static str; 3] {
    match api {
        Api::Chat => [
            include_str!(
                "../../crates/tower-agent-llm/tests/fixtures/upstream/openai/stream_error.json"
            ),
            include_str!(
                "../../crates/tower-agent-llm/tests/fixtures/upstream/openrouter/stream_provider.json"
            ),
            include_str!(
                "../../crates/tower-agent-llm/tests/fixtures/upstream/vllm/stream_error.json"
            ),
        ],
        Api::Messages => [
            include_str!(
                "../../crates/tower-agent-llm/tests/fixtures/upstream/anthropic/stream_overloaded.json"
            ),
            include_str!(
                "../../crates/tower-agent-llm/tests/fixtures/upstream/anthropic/stream_api_error.json"
            ),
            include_str!(
                "../../crates/tower-agent-llm/tests/fixtures/upstream/anthropic/stream_timeout.json"
            ),
        ],
        Api::Responses => [
            include_str!(
                "../../crates/tower-agent-llm/tests/fixtures/upstream/openai/stream_responses_server_error.json"
            ),
            include_str!(
                "../../crates/tower-agent-llm/tests/fixtures/upstream/openai/stream_responses_overloaded.json"
            ),
            include_str!(
                "../../crates/tower-agent-llm/tests/fixtures/upstream/openai/stream_responses_event.json"
            ),
        ],
    }
}

/// An error in one of the forms that it comes in.
fn framed(error: &str, form: usize) -> String {
    let error = error.trim_end();
    match form {
        0 => format!("data: {error}\n\n"),
        1 => format!("event: error\ndata: {error}\n\n"),
        2 => format!("error: {error}\n\n"),
        3 => format!("{error}\n\n"),
        4 => format!("{}\n", error.replacen(',', ",\n\n  ", 1)),
        _ => format!("data: {}\n\n", error.replacen(", ", ",\ndata:  ", 2)),
    }
}

impl Plan {
    fn api(&self) -> Api {
        let answers = answers();
        answers[self.answer % answers.len()].1
    }

    fn stream(&self) -> Vec<u8> {
        let answers = answers();
        let (_, api, stream) = &answers[self.answer % answers.len()];
        let mut events: Vec<_> = stream.split_inclusive("\n\n").map(str::to_owned).collect();
        events.truncate(events.len().saturating_sub(self.dropped).max(1));
        if self.is_long {
            let text = format!("{}re", "r".repeat(1 << 20));
            for (from, to) in [("Héllo", &text), ("a re", &text), ("path", &text)] {
                if let Some(event) = events.iter_mut().find(|it| it.contains(from)) {
                    *event = event.replace(from, to);
                    break;
                }
            }
        }
        if let Some((at, error, form)) = self.error {
            // JSON at the start of a body makes it no stream, unless its head says so.
            let is_bare = matches!(form, 3 | 4);
            let at = (at % (events.len() + 1)).max(usize::from(is_bare));
            events.insert(at, framed(errors(*api)[error], form));
        }
        for (at, between) in &self.between {
            let at = at % (events.len() + 1);
            events.insert(at, (*between).to_owned());
        }
        let text = events.concat();
        // The first bytes stay: without them a body is a stream by its head alone.
        let text = &text.as_bytes()[..text.len() - self.cut.min(text.len() - 16)];
        let mut stream = Vec::new();
        if self.starts_with_bom {
            stream.extend_from_slice(b"\xEF\xBB\xBF");
        }
        for byte in text {
            match byte {
                b'\n' => stream.extend_from_slice(self.line_end.as_bytes()),
                byte => stream.push(*byte),
            }
        }
        stream
    }

    fn play(&self, content_type: Option<&'static str>, sizes: &[usize]) -> CallResult {
        let stream = self.stream();
        // A stream of a mebibyte comes in chunks that are as much longer.
        let scale = stream.len() / 4096 + 1;
        let mut chunks = Vec::new();
        let mut rest = &stream[..];
        let mut sizes = sizes.iter().cycle();
        while !rest.is_empty() {
            let size = sizes.next().map_or(rest.len(), |size| size * scale);
            let (chunk, behind) = rest.split_at(size.min(rest.len()));
            chunks.push(chunk);
            rest = behind;
        }
        let script = script(content_type, chunks, self.end);
        run(ask(self.api(), script, self.asks_for_usage))
    }
}

/// Runs a call on a paused clock of its own.
fn run(call: impl Future<Output = CallResult>) -> CallResult {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.unwrap().block_on(call)
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        Just(vec![1]),
        vec(1_usize..5, 1..9),
        vec(1_usize..400, 1..9)
    ]
}

fn cases() -> u32 {
    let cases = env::var("STREAMS_CASES");
    cases.map_or(400, |cases| cases.parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn chunks_and_content_types_change_nothing(
        plan in plan(),
        forms in vec((select(&TYPES[..]), sizes()), 2),
    ) {
        let expected = plan.play(TYPES[0], &[]);
        let terminator = match plan.api() {
            Api::Chat => "data: [DONE]",
            Api::Messages => r#"data: {"type":"message_stop"}"#,
            Api::Responses => "",
        };
        let text = expected.text.trim_end();
        prop_assert!(
            !text.contains(terminator) || text.ends_with(terminator),
            "something follows the terminator: {}", text
        );
        let is_sound = plan.error.is_none() && plan.dropped + plan.cut == 0;
        if is_sound {
            prop_assert_eq!(&expected.reason, &TerminalReason::Completed);
            prop_assert_eq!(expected.served.as_deref(), Some("a"));
        }
        for (content_type, sizes) in forms {
            let result = plan.play(content_type, &sizes);
            prop_assert_eq!(
                &result, &expected,
                "{:?} in {:?} of\n{}", content_type, sizes,
                String::from_utf8_lossy(&plan.stream()[..plan.stream().len().min(6000)])
            );
        }
    }
}

/// Bare JSON at the start makes no stream by its bytes, and is the error that it is all the same.
#[test]
fn an_error_without_framing_is_one_under_any_content_type() {
    for (_, api, _) in answers() {
        // An event of the Responses API is no body of an answer.
        let errors = errors(api)
            .into_iter()
            .filter(|it| !it.contains("\"response\""));
        for (error, form) in errors.flat_map(|it| [(it, 3), (it, 4)]) {
            for behind in ["", "data: [DONE]\n\n", "event: done\ndata: {}\n\n"] {
                let body = framed(error, form) + behind;
                let mut classes = Vec::new();
                for content_type in TYPES {
                    let script = script(content_type, [body.as_bytes()], BodyEnd::Clean);
                    let result = run(ask(api, script, false));
                    assert_eq!(
                        result.served.as_deref(),
                        Some("b"),
                        "{content_type:?}: {body}"
                    );
                    classes.push(result.tries);
                }
                classes.dedup();
                assert_eq!(classes.len(), 1, "{body}: {classes:?}");
            }
        }
    }
}
