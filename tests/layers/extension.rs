//! Limits of a run that an operator raises.
//!
//! covers: H12

use std::time::Duration;

use tokio::time::sleep;
use tower_agent::{
    HardCeilingLayer, Run, RunExtension, Scope, TerminalReason, TokenCapLayer, TokenCaps,
    TurnCapLayer,
};

use crate::support::{
    Place, Script, Stack, StackService, Upstream, call_of, prompt_json, request, secs,
};

const TURN_CAP: Option<TerminalReason> = Some(TerminalReason::TurnCap);
const TOKEN_CAP: Option<TerminalReason> = Some(TerminalReason::TokenCap);

fn turns(turns: u32) -> RunExtension {
    RunExtension::new().turns(turns)
}

async fn turn(service: &StackService, run: &Run) -> Option<TerminalReason> {
    service.ask(run.attach(prompt_json("a"))).await.reason
}

/// The layers around an upstream whose answers have ten tokens of output and 5 of input.
fn capped(caps: TokenCaps) -> StackService {
    let answer = r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":10}}"#;
    let upstream = Upstream::script(Script::json().data(answer));
    let stack = Stack::default().layer(Place::TokenCap, TokenCapLayer::new(caps));
    stack.build(&upstream)
}

#[tokio::test(start_paused = true)]
async fn more_turns_are_so_many_more_whenever_they_are_added() {
    let upstream = Upstream::script(Script::json().data("{}"));
    let service = Stack::default().turn_cap(2).build(&upstream);
    let run = Run::open();
    // Before a layer has counted a turn, in the midst, and at the cap.
    run.extend(turns(1)).unwrap();
    assert_eq!(run.snapshot().max_turns, None, "no layer caps it yet");
    for _ in 0..2 {
        assert_eq!(turn(&service, &run).await, Some(TerminalReason::Completed));
    }
    run.extend(turns(1)).unwrap();
    for _ in 0..2 {
        assert_eq!(turn(&service, &run).await, Some(TerminalReason::Completed));
    }
    assert_eq!(run.snapshot().max_turns, Some(4));
    run.extend(turns(2)).unwrap();
    for _ in 0..2 {
        assert_eq!(turn(&service, &run).await, Some(TerminalReason::Completed));
    }
    assert_eq!((run.turns(), run.snapshot().max_turns), (6, Some(6)));
    assert_eq!(turn(&service, &run).await, TURN_CAP);
    let end = run.terminated().unwrap();
    assert_eq!(end.at_turn(), Some(6));
    assert!(end.message().contains("its limit of 6 turns"), "{end}");
    assert_eq!(upstream.calls(), 6);
    let refused = run.extend(turns(5)).unwrap_err();
    assert_eq!(refused.reason, TerminalReason::TurnCap);
    assert_eq!(run.snapshot().max_turns, Some(6), "it stays as it ended");
    // Another run has the cap of the layer.
    let other = Run::open();
    assert_eq!(
        turn(&service, &other).await,
        Some(TerminalReason::Completed)
    );
    assert_eq!(other.snapshot().max_turns, Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_layer_without_a_cap_stays_without_one_and_another_cap_is_raised_too() {
    let upstream = Upstream::script(Script::json().data("{}"));
    let uncapped = TurnCapLayer::optional(None).always_count();
    let uncapped = Stack::default().layer(Place::TurnCap, uncapped);
    let run = Run::open();
    run.extend(turns(1)).unwrap();
    for _ in 0..3 {
        let of_none = turn(&uncapped.build(&upstream), &run).await;
        assert_eq!(of_none, Some(TerminalReason::Completed));
    }
    assert_eq!(run.snapshot().max_turns, None);
    let three = Stack::default().turn_cap(3).build(&upstream);
    assert_eq!(turn(&three, &run).await, Some(TerminalReason::Completed));
    assert_eq!(run.snapshot().max_turns, Some(4));
    assert_eq!(turn(&three, &run).await, TURN_CAP);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_closes_at_its_cap_is_opened_no_more() {
    let upstream = Upstream::script(Script::json().wait(5.0).data("{}"));
    let service = Stack::default().turn_cap(1).build(&upstream);
    let run = Run::open();
    let (first, _) = call_of(&run);
    let under_way = tokio::spawn({
        let service = service.clone();
        async move { service.ask(first).await.reason }
    });
    sleep(secs(1)).await;
    assert_eq!(turn(&service, &run).await, TURN_CAP);
    let refused = run.extend(turns(1)).unwrap_err();
    assert_eq!(refused.reason, TerminalReason::TurnCap);
    assert_eq!(run.snapshot().max_turns, Some(1));
    assert_eq!(under_way.await.unwrap(), Some(TerminalReason::Completed));
    assert_eq!(run.terminal_reason(), TURN_CAP);
}

#[tokio::test(start_paused = true)]
async fn more_tokens_are_added_to_both_caps_and_count_from_what_is_spent() {
    let caps = TokenCaps::new().max_output_tokens(15).max_total_tokens(40);
    let service = capped(caps);
    let run = Run::open();
    for _ in 0..2 {
        assert_eq!(turn(&service, &run).await, Some(TerminalReason::Completed));
    }
    // It has spent 20 of 15 tokens of output, and 30 of 40 in all.
    run.extend(RunExtension::new().tokens(10)).unwrap();
    let json = serde_json::to_value(run.snapshot().token_caps).unwrap();
    assert_eq!(json["max_output_tokens"], 30);
    assert_eq!(json["max_total_tokens"], 50);
    assert_eq!(turn(&service, &run).await, Some(TerminalReason::Completed));
    // Once more the caps of the layer, beside what was added.
    run.extend_tokens();
    let json = serde_json::to_value(run.snapshot().token_caps).unwrap();
    assert_eq!(json["max_output_tokens"], 45);
    assert_eq!(json["max_total_tokens"], 90);
    for _ in 0..2 {
        assert_eq!(turn(&service, &run).await, Some(TerminalReason::Completed));
    }
    assert_eq!(turn(&service, &run).await, TOKEN_CAP);
    let message = run.terminated().unwrap().message();
    assert!(message.contains("45 output tokens"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn more_cost_is_added_without_an_error_of_its_sum() {
    let service = Stack::default()
        .layer(
            Place::TokenCap,
            TokenCapLayer::new(TokenCaps::new().max_cost(0.1)),
        )
        .build(&Upstream::script(Script::json().data("{}")));
    let run = Run::open();
    assert_eq!(turn(&service, &run).await, Some(TerminalReason::Completed));
    for _ in 0..2 {
        run.extend(RunExtension::new().cost(0.1)).unwrap();
    }
    let json = serde_json::to_value(run.snapshot().token_caps).unwrap();
    assert_eq!(json, serde_json::json!({ "max_cost": 0.3 }));
}

#[tokio::test(start_paused = true)]
async fn more_time_moves_the_ceiling_as_often_as_it_is_given() {
    let ceiling = HardCeilingLayer::new(secs(10)).scope(Scope::Run);
    let service = Stack::default()
        .layer(Place::Ceiling, ceiling)
        .build(&Upstream::script(Script::sse().never()));
    let run = Run::open();
    let more = |seconds| RunExtension::new().time(secs(seconds));
    // A deadline that a layer sets later is moved as well.
    run.extend(more(5)).unwrap();
    let call = tokio::spawn({
        let request = run.attach(request());
        async move { service.ask(request).await }
    });
    sleep(secs(1)).await;
    let left = |run: &Run| run.snapshot().deadlines.ceiling;
    assert_eq!(left(&run), Some(secs(14)));
    run.extend(more(20)).unwrap();
    assert_eq!(left(&run), Some(secs(34)));
    assert!(run.extend_once(secs(1)), "the program has its own, once");
    assert!(!run.extend_once(secs(1)));
    assert_eq!(left(&run), Some(secs(35)));
    let outcome = call.await.unwrap();
    assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
    assert_eq!(outcome.at, secs(36));
    assert!(run.extend(more(20)).is_err(), "it has ended");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_has_passed_is_moved_no_more() {
    let ceiling = HardCeilingLayer::new(secs(10)).scope(Scope::Run);
    let stack = Stack::default().layer(Place::Ceiling, ceiling);
    let service = stack.build(&Upstream::script(Script::json().data("{}")));
    let run = Run::open();
    assert_eq!(turn(&service, &run).await, Some(TerminalReason::Completed));
    sleep(secs(10)).await;
    let refused = run.extend(RunExtension::new().time(secs(60))).unwrap_err();
    assert_eq!(refused.reason, TerminalReason::HardCeiling);
    assert_eq!(run.elapsed(), secs(10));
}

#[tokio::test(start_paused = true)]
async fn a_sub_agent_is_extended_by_itself() {
    let service = Stack::default()
        .turn_cap(1)
        .build(&Upstream::script(Script::json().data("{}")));
    let run = Run::open();
    let child = run.child();
    child.extend(turns(1)).unwrap();
    for _ in 0..2 {
        assert_eq!(
            turn(&service, &child).await,
            Some(TerminalReason::Completed)
        );
    }
    assert_eq!(turn(&service, &child).await, TURN_CAP);
    assert_eq!(turn(&service, &run).await, Some(TerminalReason::Completed));
    assert_eq!(turn(&service, &run).await, TURN_CAP);
    assert_eq!(run.elapsed(), Duration::ZERO);
}
