use std::time::Duration;

use super::{
    super::wire::{SSE_HEAD, TOKEN, chunk},
    Call, Play, Step,
};

/// The end of a stream, with what it cost.
const REST: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";

/// How long a slow model takes.
const SLOW: Duration = Duration::from_millis(700);

/// What is sent before the first content.
const PRELUDE: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";

const ERROR: &str =
    "data: {\"error\":{\"message\":\"no\",\"type\":\"server_error\",\"code\":null}}\n\n";

/// A whole stream, as it is served to a request that is answered well.
pub(crate) const STREAM: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"served\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

/// A whole answer that does not stream.
pub(crate) const WHOLE: &str = "{\"ok\": true}";

/// Far more than sockets and windows hold.
const FLOOD: usize = 256 * 1024 * 1024;

/// How the model answers a request, by the word in its `user` or `model`.
pub(super) fn play(call: &Call) -> Play {
    let request = call.json();
    let word = request["user"].as_str().or(request["model"].as_str());
    match word.unwrap_or_default() {
        "silent" => Play::Silent,
        // One token, then nothing.
        "stall" => Play::Tokens(1),
        // Tokens as fast as they go.
        "flood" => Play::Flood(FLOOD),
        "prelude" => Play::Script(vec![begin(PRELUDE), Step::Hang]),
        "cut-prelude" => Play::keep(stream(PRELUDE)),
        "error-event" => Play::keep(stream(ERROR)),
        // A token, and later the rest, with what it cost.
        "slow" => Play::Script(vec![begin(TOKEN), Step::Pause(SLOW), end(REST)]),
        "slow-503" => Play::Script(vec![Step::Pause(SLOW), Step::write(failure(503, ""))]),
        // The same, but once the test resumes it.
        "held" => Play::Script(vec![begin(TOKEN), Step::Hold, end(REST)]),
        "held-503" => Play::Script(vec![Step::Hold, Step::write(failure(503, ""))]),
        "limited" => Play::keep(limited()),
        "429" => Play::keep(failure(429, "retry-after: 1\r\n")),
        // Longer than a test waits, and not too long to be waited for.
        "429-later" => Play::keep(failure(429, "retry-after: 50\r\n")),
        "409-later" => Play::keep(failure(409, "retry-after: 50\r\n")),
        "429-hour" => Play::keep(failure(429, "retry-after: 3600\r\n")),
        number if number.parse::<u16>().is_ok() => Play::keep(failure(number.parse().unwrap(), "")),
        _ if request["stream"] == true => Play::keep(stream(STREAM)),
        _ => Play::keep(whole("200 OK", "content-type: application/json\r\n", WHOLE)),
    }
}

fn begin(events: &str) -> Step {
    Step::write(format!("{SSE_HEAD}{}", chunk(events)))
}

fn end(events: &str) -> Step {
    Step::write(format!("{}0\r\n\r\n", chunk(events)))
}

/// A stream of these events that ends well.
fn stream(events: &str) -> String {
    format!("{SSE_HEAD}{}0\r\n\r\n", chunk(events))
}

fn whole(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n{body}")
}

/// The body of a refusal: no JSON library would write it so.
pub(crate) fn refusal(status: u16) -> String {
    format!(
        "{{ \"error\" : {{\"message\":\"{status}, sorry\",\n\t\"type\":\"t\", \"n\":1.0}} }}\r\n"
    )
}

fn failure(status: u16, headers: &str) -> String {
    let headers = format!("content-type: application/json\r\nx-request-id: req_2\r\n{headers}");
    whole(&format!("{status} Failure"), &headers, &refusal(status))
}

fn limited() -> String {
    let headers = "content-type: text/plain\r\nx-should-retry: true\r\nretry-after: 7\r\n\
                   retry-after-ms: 6500\r\nx-request-id: req_1\r\nkeep-alive: timeout=5\r\n";
    whole("429 Too Many Requests", headers, "{\"slow\": \"down\"}")
}
