//! One candidate that fails: nobody stands in, and nothing is waited for.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::{
    net::{Ask, CHAT, Upstream, asks, refusal, run},
    support::Config,
};

/// The window before the first content, where that is what fails.
const WINDOW: Duration = Duration::from_secs(1);

/// How it fails, whether the call streams, the status, and what is in the body.
const FAILURES: [(&str, bool, u16, &str); 9] = [
    ("silent", true, 504, "step_timeout"),
    ("silent", false, 504, "step_timeout"),
    ("prelude", true, 504, "step_timeout"),
    // Nothing of the stream was handed on: its error has the status of its name.
    ("error-event", true, 500, "\"type\":\"server_error\""),
    ("cut-prelude", true, 502, "upstream_failed"),
    ("500", true, 500, "500, sorry"),
    ("529", false, 529, "529, sorry"),
    // It asks for more time than the test has.
    ("429-later", false, 429, "429, sorry"),
    ("429-hour", true, 429, "429, sorry"),
];

#[test]
fn with_one_attempt_it_is_one_call_and_answered_at_once() {
    run(async {
        let each = FAILURES
            .iter()
            .map(async |&(model, stream, status, holds)| {
                let what = format!("{model}, stream {stream}");
                let upstream = Upstream::model().await;
                let (least, limits) = match status {
                    504 => (
                        WINDOW,
                        format!("[attempt]\nfirst_token_timeout = \"{WINDOW:?}\""),
                    ),
                    _ => (Duration::ZERO, String::new()),
                };
                let gateway = Config::new(limits)
                    .candidates(&[model], upstream.addr)
                    .start()
                    .await;

                let begun = Instant::now();
                let answer = gateway.post(CHAT, asks(model, stream)).ask().await;
                assert_eq!(answer.status, status, "{what}");
                let text = answer.text();
                let took = begun.elapsed();

                assert!(text.contains(holds), "{what}: {text}");
                assert!(text.matches("event: error").count() <= 1, "{what}: {text}");
                if ![502, 504].contains(&status) && model != "error-event" {
                    assert_eq!(text, refusal(status), "{what}");
                }
                assert!(took >= least, "{what}: {took:?}");
                assert_eq!(upstream.count(), 1, "{what}");
            });
        join_all(each).await;
    });
}
