//! Why no other attempt followed a failed one, in the error, the event and the log.
//!
//! covers: B1, F9

use tower_agent::{Candidate, RunRegistry};

use crate::support::{
    DONE, LogCapture, Outcome, PRELUDE, Script, Stack, Upstream, chat, healthy, no_delay,
    prompt_as, secs,
};

/// One case: the script of each attempt, the words of the denial, and the clauses of the message.
struct Case {
    stack: Stack,
    scripts: Vec<Script>,
    stream: bool,
    words: &'static str,
    clauses: &'static str,
}

fn silent() -> Script {
    Script::before_head().never()
}

fn reset() -> Script {
    Script::before_head().fail("reset by peer")
}

fn stack(candidates: &[&str]) -> Stack {
    let candidates = candidates.iter().map(|name| Candidate::new(*name));
    let stack = Stack::default().terminal().run(&RunRegistry::new());
    stack.fallback(candidates).attempt_step(10)
}

fn cases() -> Vec<Case> {
    let alone = || stack(&["a"]).budget(no_delay());
    vec![
        Case {
            stack: alone(),
            scripts: vec![silent()],
            stream: false,
            words: "unary_silence, no_candidate",
            clauses: "a silent answer that does not stream is not asked for again, \
                      and no other model was left",
        },
        Case {
            stack: alone(),
            scripts: vec![silent(), silent()],
            stream: true,
            words: "repeated_silence, no_candidate",
            clauses: "a silent model is asked again once only, and no other model was left",
        },
        Case {
            stack: stack(&["a"]).retry(1),
            scripts: vec![silent()],
            stream: true,
            words: "spent, no_candidate",
            clauses: "its attempts were used up, and no other model was left",
        },
        Case {
            stack: stack(&["a", "b"]),
            scripts: vec![silent(), silent()],
            stream: false,
            words: "no_candidate",
            clauses: "no other model was left",
        },
        Case {
            stack: alone().budget(no_delay().shared(0.0, 0)),
            scripts: vec![reset()],
            stream: true,
            words: "bucket, no_candidate",
            clauses: "the shared budget of repeats was used up, and no other model was left",
        },
        Case {
            stack: alone().ceiling(11).budget(no_delay().min_attempt(secs(2))),
            scripts: vec![silent()],
            stream: true,
            words: "time_left",
            clauses: "too little time was left",
        },
        Case {
            stack: stack(&["a", "b"]).budget(no_delay()),
            scripts: vec![Script::sse().data(PRELUDE).data(chat("a")).never()],
            stream: true,
            words: "committed",
            clauses: "a part of the answer was delivered",
        },
    ]
}

#[tokio::test(start_paused = true)]
async fn the_error_the_event_and_the_log_say_why_no_other_attempt_followed() {
    for case in cases() {
        let Case { words, clauses, .. } = case;
        let upstream = Upstream::scripts(case.scripts);
        let service = case.stack.build(&upstream);
        let heard = LogCapture::start();

        let outcome = Outcome::of(tower::ServiceExt::oneshot(
            service,
            prompt_as("a", case.stream),
        ))
        .await;

        let message = format!("No other attempt followed: {clauses}.");
        assert!(outcome.text.contains(&message), "{words}: {}", outcome.text);
        let [ended] = &heard.events("call ended")[..] else {
            panic!("{:?}", heard.events("call ended"));
        };
        assert_eq!(ended["denied"], words);
        let mut words: Vec<_> = words.split(", ").collect();
        let stopped = heard.events("no further attempt");
        if words == ["committed"] {
            assert!(stopped.is_empty(), "the attempt had served: {stopped:?}");
            continue;
        }
        assert_eq!(stopped.last().unwrap()["denied"], words.pop().unwrap());
        let not_repeated = stopped.last().unwrap().get("not_repeated");
        assert_eq!(not_repeated.map(|word| &**word), words.pop());
    }
}

/// A repeat, or another candidate, takes the denial before it back.
#[tokio::test(start_paused = true)]
async fn a_call_that_was_served_after_all_has_no_denial() {
    let registry = RunRegistry::new();
    let stack = Stack::default()
        .terminal()
        .run(&registry)
        .budget(no_delay());
    let stack = stack.candidates(["a", "b"]).attempt_step(10);
    let upstream = Upstream::scripts([silent(), healthy()]);
    let heard = LogCapture::start();

    let outcome = stack.build(&upstream).ask(prompt_as("a", false)).await;

    assert_eq!(outcome.status, 200);
    outcome.whole();
    let [ended] = &heard.events("call ended")[..] else {
        panic!("{:?}", heard.events("call ended"));
    };
    assert_eq!(ended["reason"], "completed");
    assert!(!ended.contains_key("denied"), "{ended:?}");
}

/// The end of the run is why nothing followed, and not the failure before it.
#[tokio::test(start_paused = true)]
async fn a_run_that_ended_meanwhile_has_no_denial() {
    let stack = stack(&["a"]).ceiling(5);
    let upstream = Upstream::scripts([Script::sse().data(chat("a")).never().data(DONE)]);
    let heard = LogCapture::start();

    let outcome = stack.build(&upstream).ask(prompt_as("a", true)).await;

    assert!(outcome.text.contains("max_turn_time"), "{}", outcome.text);
    assert!(
        !outcome.text.contains("No other attempt"),
        "{}",
        outcome.text
    );
    assert!(!heard.events("call ended")[0].contains_key("denied"));
}
