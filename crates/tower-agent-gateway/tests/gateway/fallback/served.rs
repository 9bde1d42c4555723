//! Whatever goes wrong before the first content, the next candidate serves,
//! after what must be waited for and with no call more than allowed.
//!
//! covers: T55

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::{
    net::{Ask, CHAT, ClosedPort, STREAM, Upstream, WHOLE, asks, error_event, run},
    support::Config,
};

/// The window before the first content, where that is what fails. The one who
/// serves has it too.
const WINDOW: Duration = Duration::from_secs(2);

/// How the first candidate fails: its model, whether the call streams, whether
/// it may be asked again, and what it takes each time.
const FAILURES: [(&str, bool, bool, Duration); 14] = [
    // Nor is the same asked again after a silence, while another can serve.
    ("silent", true, false, WINDOW),
    // What does not stream is silent while it thinks: it moves on at once.
    ("silent", false, false, WINDOW),
    ("prelude", true, false, WINDOW),
    ("cut-prelude", true, true, Duration::ZERO),
    ("error-event", true, true, Duration::ZERO),
    ("500", true, true, Duration::ZERO),
    ("500", false, true, Duration::ZERO),
    // Who is overloaded is left alone where another can serve.
    ("529", true, false, Duration::ZERO),
    ("529", false, false, Duration::ZERO),
    // It asks for a wait that the other does not need.
    ("429", true, false, Duration::ZERO),
    ("429", false, false, Duration::ZERO),
    ("429-hour", true, false, Duration::ZERO),
    ("429-hour", false, false, Duration::ZERO),
    ("410", false, false, Duration::ZERO),
];

fn limits(attempts: u32) -> String {
    format!(
        "[retry]\nmax_attempts_per_candidate = {attempts}\n\
         base_delay = \"10ms\"\nmax_delay = \"20ms\"\n[attempt]\n"
    )
}

/// Each failure in front of an upstream and a gateway of its own, so that calls
/// and times are its own.
async fn fails_over(attempts: u32) {
    let each = FAILURES
        .iter()
        .map(async |&(model, stream, repeats, takes)| {
            let what = format!("{model}, stream {stream}, {attempts} attempts");
            let limits = match takes {
                Duration::ZERO => limits(attempts),
                window => limits(attempts) + &format!("first_token_timeout = \"{window:?}\""),
            };
            let (upstream, gateway) = Config::new(limits)
                .start_with_model(&["ok", model, "no"])
                .await;

            let begun = Instant::now();
            let answer = gateway.post(CHAT, asks(model, stream)).ask().await;
            let took = begun.elapsed();

            assert_eq!(answer.status, 200, "{what}");
            let calls = if repeats { attempts } else { 1 };
            assert_eq!(answer.headers["x-served-model"], "ok", "{what}");
            assert_eq!(answer.headers["x-attempt"], (calls + 1).to_string());
            let wanted = if stream { STREAM } else { WHOLE };
            assert_eq!(answer.text(), wanted, "{what}");
            let first = std::iter::repeat_n(model, calls as usize);
            let models: Vec<_> = first.chain(["ok"]).collect();
            assert_eq!(upstream.models(), models, "{what}");
            assert!(took >= takes * calls, "{what}: {took:?}");
        });
    join_all(each).await;
}

#[test]
fn with_one_attempt_the_next_candidate_serves() {
    run(fails_over(1));
}

#[test]
fn with_two_attempts_the_same_is_asked_again_where_that_helps() {
    run(fails_over(2));
}

/// It asked for more time than the test has.
#[test]
fn with_one_attempt_nobody_is_waited_for() {
    run(async {
        let (upstream, gateway) = Config::new(limits(1))
            .start_with_model(&["429-later", "ok"])
            .await;
        for stream in [false, true] {
            let answer = gateway.post(CHAT, asks("429-later", stream)).ask().await;
            assert_eq!(answer.headers["x-served-model"], "ok");
        }
        assert_eq!(upstream.models(), ["429-later", "ok", "429-later", "ok"]);
    });
}

/// Nothing listens there, so nothing counts there.
#[test]
fn a_refused_connection_is_served_by_the_next() {
    run(async {
        let (upstream, closed) = (Upstream::model().await, ClosedPort::new());
        let gateway = Config::new("[retry]\nbase_delay = \"10ms\"")
            .candidate("gone", closed.addr)
            .candidate("ok", upstream.addr)
            .start()
            .await;
        for stream in [false, true] {
            let answer = gateway.post(CHAT, asks("gone", stream)).ask().await;
            assert_eq!(answer.status, 200);
            assert_eq!(answer.headers["x-served-model"], "ok");
            assert_eq!(answer.headers["x-attempt"], "3");
        }
        assert_eq!(upstream.models(), ["ok", "ok"]);
    });
}

/// Without another there is nothing to wait an hour for.
#[test]
fn an_hour_of_retry_after_is_answered_at_once_where_there_is_no_other() {
    run(async {
        let (upstream, gateway) = Config::new(limits(3)).start_with_model(&["429-hour"]).await;
        let answer = gateway.post(CHAT, asks("429-hour", false)).ask().await;
        assert_eq!(answer.status, 429);
        assert_eq!(answer.headers["retry-after"], "3600");
        assert_eq!(upstream.count(), 1);
    });
}

#[test]
fn after_the_first_content_no_other_is_tried() {
    run(async {
        let limits = "[attempt]\nstep_timeout = \"2s\"\n[retry]";
        let (upstream, gateway) = Config::new(limits).start_with_model(&["stall", "ok"]).await;
        let answer = gateway.post(CHAT, asks("stall", true)).ask().await;
        let text = answer.text();
        let (before, data) = error_event(text);
        assert!(before.contains("\"content\":\"t\""), "{text}");
        assert_eq!(data["code"], "step_timeout");
        assert_eq!(upstream.models(), ["stall"]);
    });
}

/// A short hold hands on what there is, and gives the others away for it.
#[test]
fn what_was_held_for_long_enough_is_committed() {
    run(async {
        let limits = "[attempt]\nfirst_token_timeout = \"3s\"\nhold = \"100ms\"\n[retry]";
        let (upstream, gateway) = Config::new(limits)
            .start_with_model(&["prelude", "ok"])
            .await;
        let answer = gateway.post(CHAT, asks("prelude", true)).ask().await;
        // At the end of its window it would have been given up for the other.
        assert_eq!(answer.headers["x-served-model"], "prelude");
        let text = answer.text();
        let (_, data) = error_event(text);
        assert_eq!(data["code"], "step_timeout");
        assert_eq!(upstream.models(), ["prelude"]);
    });
}

#[test]
fn who_is_named_comes_first_then_the_others_as_listed() {
    run(async {
        let upstream = Upstream::model().await;
        let gateway = Config::default()
            .candidate("500", upstream.addr)
            .set("name = \"first\"")
            .candidate("529", upstream.addr)
            .set("name = \"second\"")
            .candidate("503", upstream.addr)
            .set("name = \"third\"")
            .start()
            .await;
        for (model, order) in [
            ("first", ["500", "529", "503"]),
            ("third", ["503", "500", "529"]),
            ("whatever", ["500", "529", "503"]),
            // A model is no name once it has another.
            ("529", ["500", "529", "503"]),
        ] {
            let before = upstream.count();
            let answer = gateway.post(CHAT, asks(model, false)).ask().await;
            let last = order[2];
            assert_eq!(answer.status.as_str(), last, "{model}");
            assert_eq!(upstream.models()[before..], order, "{model}");
        }
        let models = gateway.json("/v1/models").await;
        let ids: Vec<_> = (0..3).map(|at| models["data"][at]["id"].clone()).collect();
        assert_eq!(ids, ["first", "second", "third"]);
    });
}
