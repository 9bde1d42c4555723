//! Failed answers: their class, and the delay that they ask for.

use std::{
    io::{Error as IoError, ErrorKind},
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tower_agent_llm::{
    dialect::Dialect,
    failure::{Failure, FailureClass, RetrySame, TransportError, TryOther},
};

use super::{read, unnamed};

/// The wall clock of these tests: a day in 2026.
const NOW: Duration = Duration::from_secs(1_785_000_000);

fn failed(status: u16, headers: &[(&str, &str)], body: &str) -> Failure {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name: HeaderName = name.parse().unwrap();
        map.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    let status = StatusCode::from_u16(status).unwrap();
    let now = SystemTime::UNIX_EPOCH + NOW;
    Failure::of_answer(status, &map, body.as_bytes(), now).unwrap()
}

/// The delay of a 429 with these headers.
fn delay(headers: &[(&str, &str)]) -> Option<Duration> {
    failed(429, headers, "").retry_after
}

const fn millis(millis: u64) -> Option<Duration> {
    Some(Duration::from_millis(millis))
}

/// earendil-works/pi#9571, mastra-ai/mastra#23778, tavily-ai/tavily-python#166, open-telemetry/opentelemetry-js#7010: a
/// malformed `retry-after` became no delay at all, one of decades, or NaN. Expected: it is absent, so that the
/// caller's own backoff counts, and another header or the body may state a delay.
#[test]
fn a_malformed_delay_is_none() {
    for malformed in [
        "",
        "soon",
        "-3",
        "+3",
        "- 3",
        "NaN",
        "inf",
        "-inf",
        "Infinity",
        "1000abc",
        "120junk",
        "1,5",
        "0x10",
        "1e3",
        "1.2.3",
        ".",
        "12:30",
        "Wed, 99 Foo 2026 07:28:00 GMT",
        "2026-13-45",
        "\u{661}",
    ] {
        let failure = failed(429, &[("retry-after", malformed)], "");
        assert_eq!(failure.class, FailureClass::RateLimit, "{malformed:?}");
        assert_eq!(failure.retry_after, None, "{malformed:?}");
        let twice = [("retry-after", malformed), ("retry-after", "7")];
        assert_eq!(delay(&twice), millis(7000), "{malformed:?}");
        let beside = [("retry-after-ms", malformed), ("retry-after", "7")];
        assert_eq!(delay(&beside), millis(7000), "{malformed:?}");
        let body = r#"{"error":{"message":"Rate limit reached. Please try again in 20s."}}"#;
        let failure = failed(429, &[("retry-after", malformed)], body);
        assert_eq!(failure.retry_after, millis(20_000), "{malformed:?}");
    }
}

/// lidge-jun/opencodex#4046, interviewstreet/hiring-agent#386, joshuaswarren/remnic#657: dates, fractions and zero were
/// no delays, or ended the program. Expected: each form of the standard, fractions, and zero for what has passed.
#[test]
fn each_form_of_a_delay_is_read() {
    for (text, expected) in [
        ("0", 0),
        ("3", 3000),
        (" 3 ", 3000),
        ("1.5", 1500),
        ("0.001", 1),
        ("Sat, 25 Jul 2026 17:20:30 GMT", 30_000),
        ("Saturday, 25-Jul-26 17:20:30 GMT", 30_000),
        ("Sat Jul 25 17:20:30 2026", 30_000),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0),
        ("1785000030", 30_000),
    ] {
        assert_eq!(delay(&[("retry-after", text)]), millis(expected), "{text}");
    }
    assert_eq!(
        delay(&[("retry-after-ms", "250.5")]),
        Some(Duration::from_micros(250_500))
    );
}

/// anthropics/anthropic-sdk-python#1827: a date in a year beyond the calendar's ended the program. Expected: no panic
/// for any year, and a delay of 30 days at most.
#[test]
fn a_date_of_any_year_is_a_delay_of_thirty_days_at_most() {
    let most = Duration::from_secs(30 * 24 * 60 * 60);
    for year in [
        "0000",
        "0001",
        "1600",
        "1969",
        "9999",
        "10000",
        "99999",
        "999999999999",
    ] {
        let date = format!("Fri, 31 Dec {year} 23:59:59 GMT");
        assert!(
            delay(&[("retry-after", &date)]).is_none_or(|delay| delay <= most),
            "{date}"
        );
    }
    for seconds in [
        "99999999999999999999",
        "184467440737095516150.5",
        "31536000",
    ] {
        assert_eq!(
            delay(&[("retry-after", seconds)]).map(|it| it.min(most)),
            delay(&[("retry-after", seconds)])
        );
    }
    assert_eq!(delay(&[("retry-after", "31536000")]), Some(most));
}

/// danielmiessler/Fabric#364, microsoft/action-python#12, openai/codex#153: the delay stands in the message alone, as
/// Groq, Azure and OpenAI write it. Expected: that delay, never rounded down.
#[test]
fn a_delay_in_a_message_is_read() {
    for (message, expected) in [
        (
            "Rate limit reached for model `m` on tokens per minute (TPM): Limit 7000, Used 0, Requested ~6903. Please try again in 50.597142857s. Visit https://example.com for more information.",
            Duration::from_nanos(50_597_142_857),
        ),
        (
            "Requests to the Creates a completion for the chat message Operation have exceeded call rate limit of your current S0 pricing tier. Please retry after 3 seconds. Please go here: https://example.com",
            Duration::from_secs(3),
        ),
        ("Please try again in 28ms.", Duration::from_millis(28)),
        (
            "Please try again in 1m26.4s.",
            Duration::from_millis(86_400),
        ),
    ] {
        for body in [
            format!(
                r#"{{"error":{{"message":"{message}","type":"tokens","code":"rate_limit_exceeded"}}}}"#
            ),
            format!(r#"{{"error":{{"message":"{message}"}}}}"#),
        ] {
            let failure = failed(429, &[], &body);
            assert_eq!(failure.class, FailureClass::RateLimit, "{body}");
            assert_eq!(failure.retry_after, Some(expected), "{body}");
        }
    }
}

/// justrach/codegraff#398: the wait of a used-up plan is told in seconds, four days of them. Expected: a quota, which is
/// no rate limit to repeat, until that time.
#[test]
fn a_wait_of_days_is_a_quota() {
    let body = r#"{"error":{"message":"Rate limit reached, try again in 350000 seconds"}}"#;
    let failure = failed(429, &[], body);
    assert_eq!(failure.class, FailureClass::Quota);
    assert_eq!(failure.retry_after, Some(Duration::from_secs(350_000)));
    assert!(!failure.is_worth_repeating());
}

/// CortexLM/cortex-code#407: the time of a reset was read as a Unix time alone, and durations were ignored. Expected:
/// durations, seconds and Unix times of a limit that is used up, and none of a limit with something left.
#[test]
fn the_reset_of_a_used_up_limit_is_read_in_each_form() {
    for (reset, seconds) in [
        ("1s", 1),
        ("1m30s", 90),
        ("6m0s", 360),
        ("60", 60),
        ("1785000060", 60),
        ("1785000060000", 60),
        ("2026-07-25T17:21:00Z", 60),
    ] {
        for limit in ["requests", "tokens"] {
            let remaining = format!("x-ratelimit-remaining-{limit}");
            let name = format!("x-ratelimit-reset-{limit}");
            let of = |left: &str| delay(&[(&remaining, left), (&name, reset)]);
            assert_eq!(
                of("0"),
                Some(Duration::from_secs(seconds)),
                "{name}: {reset}"
            );
            assert_eq!(of("5"), None, "{name}: {reset}");
        }
    }
}

/// throttled/throttled#55: `x-ratelimit-reset` says when a limit is renewed as a whole, `retry-after` when the next
/// request is served. Expected: the latter, where both come.
#[test]
fn the_next_request_may_come_before_the_whole_reset() {
    let headers = [
        ("retry-after", "1"),
        ("x-ratelimit-limit", "6"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "6"),
    ];
    assert_eq!(delay(&headers), millis(1000));
    assert_eq!(delay(&headers[1..]), millis(6000));
}

/// continuedev/continue#6185, BerriAI/litellm#25078: Mistral has no capacity left for a model, which comes with a type of
/// the caller's fault, and was taken for a rate limit. Expected: overloaded under any status.
#[test]
fn a_tier_without_capacity_is_overloaded() {
    let body = r#"{"object":"error","message":"Service tier capacity exceeded for this model.","type":"invalid_request_error","param":null,"code":null}"#;
    for status in [429, 503, 400, 500] {
        let failure = failed(status, &[], body);
        assert_eq!(failure.class, FailureClass::Overloaded, "{status}");
        assert_eq!(failure.class.retry(), RetrySame::Slowly);
    }
    let nested = format!(r#"{{"error":{body}}}"#);
    let story = read(Dialect::OpenAiChat, unnamed([&*nested]));
    let failure = Failure::of_stream(&story.failure.unwrap(), SystemTime::UNIX_EPOCH);
    assert_eq!(failure.class, FailureClass::Overloaded);
}

/// cline/cline#9085, raycast/extensions#31107: Mistral's rate limit reaches the caller as the text of an SDK's error, in
/// which its body stands. Expected: a rate limit, as Mistral sends it, and as a proxy repeats it under 500.
#[test]
fn a_rate_limit_in_the_text_of_an_sdk_is_one() {
    let body = r#"{"object":"error","message":"Rate limit exceeded","type":"rate_limited","param":null,"code":"1300","raw_status_code":429}"#;
    assert_eq!(failed(429, &[], body).class, FailureClass::RateLimit);
    let text = format!("API error occurred: Status 429 Content-Type application/json Body {body}");
    let wrapped = format!(r#"{{"error":{{"message":{text:?}}}}}"#);
    for status in [429, 500] {
        let failure = failed(status, &[], &wrapped);
        assert_eq!(failure.class, FailureClass::RateLimit, "{status}");
    }
}

/// amd/gaia#3766: Fireworks answers 412 for an account that is suspended at its spending limit, which was told as a
/// passing fault and repeated. Expected: a quota, which only another account helps.
#[test]
fn a_suspended_account_is_a_quota() {
    let message = "Account acme is suspended, possibly due to reaching the monthly spending limit or failure to pay past invoices. Please go to https://example.com/account/billing for more information.";
    for body in [
        format!(r#"{{"error":{{"message":"{message}","code":"PRECONDITION_FAILED"}}}}"#),
        format!(r#"{{"error":{{"object":"error","type":"error","message":"{message}"}}}}"#),
        format!(r#"{{"code":"PRECONDITION_FAILED","message":"{message}"}}"#),
    ] {
        let failure = failed(412, &[], &body);
        assert_eq!(failure.class, FailureClass::Quota, "{body}");
        assert_eq!(failure.fallback(), TryOther::Credential);
        assert!(!failure.is_worth_repeating());
    }
}

/// GordeyZuev/LEAP#6: Fireworks answers 429 with a text as its error, and the message beside it. Expected: a rate limit
/// with that message.
#[test]
fn a_message_beside_an_error_that_is_a_text_is_read() {
    let body = r#"{"error":"Too Many Requests","message":"You have exceeded your usage limits. Please try again later or contact us to explore dedicated capacity."}"#;
    assert_eq!(failed(429, &[], body).class, FailureClass::RateLimit);
    assert!(failed(429, &[], body).is_worth_repeating());
}

/// huggingface/agents-course#386: the month's credits are used up, under 402. Expected: a quota, although the message
/// neither names one nor says until when.
#[test]
fn used_up_credits_are_a_quota() {
    let body = r#"{"error":"You have exceeded your monthly included credits for Inference Providers. Subscribe to PRO to get 20x more monthly included credits."}"#;
    let failure = failed(402, &[], body);
    assert_eq!(failure.class, FailureClass::Quota);
    assert!(failure.message.starts_with("You have exceeded"));
}

/// HKUDS/Vibe-Trading#308, nearai/ironclaw#5578, bespokelabsai/curator#261: Gemini's compatible API ends an answer that it
/// blocked with its own stop reason, and the answer was a success. Expected: a content filter for each of them.
#[test]
fn each_block_of_gemini_is_a_content_filter() {
    for reason in [
        "SAFETY",
        "RECITATION",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
    ] {
        let class = Failure::of_stop(reason).map(|failure| failure.class);
        assert_eq!(class, Some(FailureClass::ContentFilter), "{reason}");
        for body in [
            format!(
                r#"{{"choices":[{{"index":0,"message":{{"role":"assistant","content":null}},"finish_reason":"{reason}"}}]}}"#
            ),
            format!(r#"{{"candidates":[{{"finishReason":"{reason}","content":{{"parts":[]}}}}]}}"#),
        ] {
            assert_eq!(
                failed(200, &[], &body).class,
                FailureClass::ContentFilter,
                "{body}"
            );
        }
    }
    for reason in ["stop", "length", "STOP", "MAX_TOKENS", "end_turn"] {
        assert_eq!(Failure::of_stop(reason), None, "{reason}");
    }
}

/// us/crw#419, hyperium/hyper#2136, TrueLayer/reqwest-middleware#14: a connection that its peer had closed failed a call
/// that nobody repeated, because the error was of no class. Expected: a transport error, which is worth another try,
/// wherever it stands in the chain; only of a refused connection is it known that nothing was sent.
#[test]
fn a_lost_connection_is_a_failure_of_the_transport() {
    for kind in [
        ErrorKind::UnexpectedEof,
        ErrorKind::ConnectionReset,
        ErrorKind::BrokenPipe,
        ErrorKind::ConnectionRefused,
    ] {
        let bare = IoError::new(kind, "connection closed before message completed");
        assert_eq!(Failure::of_error(&bare).class, FailureClass::Transport);
        let wrapped = IoError::other(TransportError::new(bare));
        let failure = Failure::of_error(&wrapped);
        assert_eq!(failure.class, FailureClass::Transport);
        assert!(failure.is_worth_repeating());
        let is_refused = kind == ErrorKind::ConnectionRefused;
        assert_eq!(
            TransportError::is_refused(&TransportError::new(IoError::from(kind))),
            is_refused
        );
    }
}
