//! Failed answers that a later failure of the call must not hide.
//!
//! covers: F9

use tower_agent::{Candidate, ModelFallbackLayer, Run, llm::failure::FailureClass};

use super::{both, failed, models};
use crate::support::{ERROR, Outcome, Script, StackService, attach, failure, prompt};

/// What a candidate says that cannot read another one's turns.
const FOREIGN: [&str; 5] = [
    "messages.1.content.0: Invalid `signature` in `thinking` block",
    "Function call is missing a thought_signature in functionCall parts.",
    "The encrypted content VPy0 could not be verified.",
    "The reasoning_content in the thinking mode must be passed back to the API.",
    "The `reasoning_content` in the thinking mode must be passed back to the API.",
];

fn refusal(message: &str) -> Script {
    let message = message.replace('"', "\\\"");
    Script::answer(
        400,
        format!(r#"{{"error":{{"type":"invalid_request_error","message":"{message}"}}}}"#),
    )
}

fn windows() -> ModelFallbackLayer {
    ModelFallbackLayer::new([
        Candidate::new("a").context_window(8),
        Candidate::new("b").context_window(64),
    ])
}

struct Told {
    outcome: Outcome,
    call: Run,
}

async fn told(service: &StackService) -> Told {
    let run = Run::open();
    let (request, call) = attach(&run, prompt("a"));
    let outcome = service.ask(request).await;
    assert_eq!(run.in_flight(), 0);
    Told { outcome, call }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_turns_of_others_does_not_hide_that_the_first_was_busy() {
    for (status, class) in [
        (429, FailureClass::RateLimit),
        (503, FailureClass::Server),
        (529, FailureClass::Overloaded),
    ] {
        for message in FOREIGN {
            for (service, upstream) in both(&models(["a", "b"])) {
                upstream.play("a", failure(status).header("x-request-id", "r"));
                upstream.play("b", refusal(message));

                let Told { outcome, call } = told(&service).await;

                assert_eq!(outcome.status, status, "{message}");
                assert_eq!(outcome.headers["x-request-id"], "r");
                assert_eq!(outcome.headers["x-served-model"], "a");
                assert_eq!(outcome.failure.as_ref().map(|it| it.class), Some(class));
                let last = outcome.tries.last().cloned();
                assert_eq!(last, Some((Some("b".into()), FailureClass::Caller)));
                assert_eq!(outcome.whole(), ERROR);
                assert_eq!(call.terminal_reason(), failed(class));
                assert_eq!(upstream.models().last().unwrap(), "b");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn any_other_refusal_is_the_callers_to_hear() {
    let other = refusal("max_tokens: must be at least 1");
    let foreign = refusal(FOREIGN[0]);
    for (first, last) in [
        (failure(529), other),
        // Nobody was busy: a repeat would not help.
        (Script::error_code(404, "model_not_found"), foreign),
    ] {
        for (service, upstream) in both(&models(["a", "b"])) {
            upstream.play("a", first.clone());
            upstream.play("b", last.clone());

            let Told { outcome, call } = told(&service).await;

            assert_eq!(outcome.status, 400);
            assert_eq!(outcome.headers["x-served-model"], "b");
            assert_eq!(call.terminal_reason(), failed(FailureClass::Caller));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_of_several_is_the_one_that_is_told() {
    for (service, upstream) in both(&models(["a", "b", "c"])) {
        upstream.play("a", failure(529));
        upstream.play("b", failure(503));
        upstream.play("c", refusal(FOREIGN[0]));

        let Told { outcome, .. } = told(&service).await;

        assert_eq!(outcome.status, 529);
        assert_eq!(outcome.headers["x-served-model"], "a");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hop_that_cannot_be_reached_does_not_hide_the_overflow() {
    let overflow = Script::error_code(400, "context_length_exceeded");
    for (service, upstream) in both(&windows()) {
        upstream.play("a", overflow.clone());
        upstream.play("b", Script::before_head().fail("refused"));

        let Told { outcome, call } = told(&service).await;

        assert_eq!(outcome.status, 400);
        assert_eq!(outcome.headers["x-served-model"], "a");
        assert!(outcome.whole().contains("context_length_exceeded"));
        let overflow = failed(FailureClass::ContextOverflow);
        assert_eq!(call.terminal_reason(), overflow);
        assert_eq!(upstream.models().last().unwrap(), "b");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hop_that_answers_hides_the_overflow() {
    for (service, upstream) in both(&windows()) {
        upstream.play("a", Script::error_code(400, "context_length_exceeded"));
        upstream.play("b", failure(503));

        assert_eq!(
            told(&service).await.outcome.status,
            503,
            "it may serve soon"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_cut_is_not_kept() {
    for (service, upstream) in both(&models(["a", "b"])) {
        upstream.play("a", failure(529).fail("reset"));
        upstream.play("b", refusal(FOREIGN[0]));

        assert_eq!(told(&service).await.outcome.status, 400);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_served_keeps_nothing_of_it() {
    for (service, upstream) in both(&models(["a", "b"])) {
        upstream.play("a", failure(529));

        let Told { outcome, .. } = told(&service).await;

        assert_eq!(outcome.status, 200);
        assert_eq!(outcome.headers["x-served-model"], "b");
    }
}
