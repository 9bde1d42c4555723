//! covers: D7

use super::*;

fn acted(effects: &[Effect]) -> usize {
    let acted = |effect: &&Effect| matches!(effect, Effect::Acted(_));
    effects.iter().filter(acted).count()
}

#[test]
fn the_same_request_again_is_nothing_new() {
    let mut agent = Agent::new();
    for _ in 0..3 {
        agent.acts("status", "{}", "running");
    }

    assert_eq!(acted(&agent.effects()), 3);
    assert_eq!(acted(&agent.effects()), 0);
}

#[test]
fn a_compacted_history_does_not_count_again() {
    let mut agent = Agent::new();
    for _ in 0..9 {
        agent.acts("status", "{}", "running");
    }
    assert_eq!(acted(&agent.effects()), 9);

    agent.messages.drain(1..7);
    agent.messages[0] = r#"{"role":"user","content":"a summary"}"#.into();
    agent.acts("status", "{}", "running");
    let effects = agent.effects();

    assert_eq!(acted(&effects), 1);
    assert_eq!(found(effects)[0].times, 10, "the new one is the tenth");
}

#[test]
fn what_was_before_the_users_message_is_another_run() {
    let mut agent = Agent::new();
    for _ in 0..40 {
        agent.acts("status", "{}", "running");
    }
    agent
        .messages
        .push(r#"{"role":"user","content":"stop that"}"#.into());
    assert_eq!(acted(&agent.effects()), 0);

    agent.acts("status", "{}", "running");
    assert_eq!(acted(&agent.effects()), 1);
    // Known from then on, a message of the user's changes nothing.
    agent
        .messages
        .push(r#"{"role":"user","content":"go on"}"#.into());
    agent.acts("status", "{}", "running");
    assert_eq!(acted(&agent.effects()), 1);
    for turn in 3..=20 {
        let told = agent.does("status", "{}", "running");
        assert_eq!(
            told.is_empty(),
            turn != 10 && turn != 20,
            "{turn}: {told:?}"
        );
    }
}

#[test]
fn a_call_counts_when_its_result_is_there() {
    let mut agent = Agent::new();
    agent.acts("status", "{}", "running");
    let result = agent.messages.pop().unwrap();
    assert_eq!(acted(&agent.effects()), 0);

    agent.messages.push(result);
    assert_eq!(acted(&agent.effects()), 1);
}

#[test]
fn a_refused_call_ends_no_row() {
    let mut agent = Agent::new();
    let mut told = Vec::new();
    for turn in 0..20 {
        if turn % 5 == 4 {
            // Nobody answers it.
            agent.acts("other", "{}", "");
            agent.messages.pop();
        }
        told.push(agent.does("status", "{}", "running"));
    }

    let told: Vec<_> = super::told(told.into_iter())
        .iter()
        .map(|told| told.0)
        .collect();
    assert_eq!(told, [10, 20]);
}

#[test]
fn a_servers_ids_that_are_always_the_same_do_not_hide_a_loop() {
    let mut agent = Agent::new();
    let mut effects = 0;
    for _ in 0..12 {
        agent.calls = 0;
        agent.acts("status", "{}", "running");
        effects += acted(&agent.effects());
    }

    assert_eq!(effects, 12);
}

#[test]
fn results_that_come_alone_find_the_calls_of_the_answer() {
    let mut state = ActionLog::default();
    state.limit(LoopLimits::DEFAULT, true);
    let mut told = Vec::new();
    for turn in 0..20 {
        let call = format!(
            r#"{{"output":[{{"type":"function_call","call_id":"c{turn}","name":"status","arguments":"{{}}"}}]}}"#
        );
        let mut answer = crate::llm::AnswerReader::document();
        answer.push(&call.into());
        state.expect(answer.finish());
        let body = format!(
            r#"{{"previous_response_id":"r{turn}","input":[{{"type":"function_call_output","call_id":"c{turn}","output":"running"}}]}}"#
        );
        let history = History::read(&Dialect::Any, body.as_bytes(), state.places()).unwrap();
        told.push(found(state.read_history(&history, false, 0)));
        assert_eq!(state.read_history(&history, false, 0), [], "once");
    }

    let told: Vec<_> = super::told(told.into_iter())
        .iter()
        .map(|told| (told.0, told.3))
        .collect();
    assert_eq!(told, [(10, 10), (20, 20)]);
}

#[test]
fn a_call_that_an_answer_made_and_the_history_repeats_counts_once() {
    let mut agent = Agent::new();
    agent.acts("status", "{}", "running");
    let body = format!(r#"{{"choices":[{{"message":{}}}]}}"#, agent.messages[1]);
    let mut answer = crate::llm::AnswerReader::document();
    answer.push(&body.into());
    agent.state.expect(answer.finish());

    assert_eq!(acted(&agent.effects()), 1);
}

#[test]
fn two_requests_at_once_count_what_is_new_once() {
    let mut agent = Agent::new();
    agent.acts("status", "{}", "running");
    agent.effects();
    let old = agent.state.places().clone();
    agent.acts("status", "{}", "running");
    assert_eq!(acted(&agent.effects()), 1);

    // Read before the other was taken in.
    let body = format!(
        r#"{{"tools":[],"messages":[{}]}}"#,
        agent.messages.join(",")
    );
    let late = History::read(&Dialect::Any, body.as_bytes(), &old).unwrap();
    assert_eq!(late.events.len(), 2);
    assert_eq!(acted(&agent.state.read_history(&late, false, 0)), 0);
}

#[test]
fn an_action_that_its_tool_told_of_is_the_one_in_the_history() {
    let mut agent = Agent::new();
    let mut told = Vec::new();
    for _ in 0..20 {
        let effects = agent.state.ran(action("status", r#"{"job":7}"#, None));
        assert_eq!(acted(&effects), 1);
        told.extend(found(effects));
        agent.acts("status", r#"{"job":7}"#, "running");
        let effects = agent.effects();
        assert_eq!(acted(&effects), 0, "counted before");
        told.extend(found(effects));
    }

    let told: Vec<_> = told
        .iter()
        .map(|found| (found.pattern, found.times))
        .collect();
    let [call, row] = [LoopPattern::SameCall, LoopPattern::SameTool];
    // The row when its tool told of it, the results when the history knew.
    assert_eq!(told, [(row, 10), (call, 10), (row, 20), (call, 20)]);
}

#[test]
fn names_are_cut_and_hold_no_control_characters() {
    let mut agent = Agent::new();
    let name = format!("a\\n{}", "é".repeat(100));
    let found = (0..10)
        .map(|_| agent.does(&name, "{}", "x"))
        .last()
        .unwrap();

    assert_eq!(found[0].tool.chars().count(), 64);
    assert!(found[0].tool.starts_with("a\u{fffd}é"));
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut agent = Agent::new();
    for turn in 0..600 {
        agent.acts("status", &format!("{{\"n\":{turn}}}"), &format!("{turn}"));
        agent.acts("lost", "{}", "");
        agent.messages.pop();
    }
    agent.effects();

    assert!(
        agent.state.sizes().into_iter().all(|size| size <= 256),
        "{:?}",
        agent.state.sizes()
    );
    assert!(seen(&format!(r#"{{"messages":[{}]}}"#, agent.messages.join(","))).len() <= 8);
}

#[test]
fn ids_times_and_durations_in_a_result_are_not_new() {
    let mut agent = Agent::new();
    let mut turns = 0;
    let ended = loop {
        turns += 1;
        let result = format!(
            "running since 2026-11-23T10:{turns}:{turns}, {turns} ms, call req_{turns}, at {}",
            1_800_000_000 + turns
        );
        let found = agent.does("status", "{}", &result);
        if let Some(found) = found
            .into_iter()
            .find(|found| found.verdict == LoopVerdict::Stopped)
        {
            break found;
        }
    };
    assert_eq!((turns, ended.pattern), (20, LoopPattern::SameCall));
}

#[test]
fn exact_results_other_words_and_counts_are_new() {
    type Result = fn(usize) -> String;
    let results: [(bool, Result); 3] = [
        (true, |turn| format!("{turn} ms")),
        (false, |turn| "x".repeat(turn)),
        (false, |turn| {
            format!("page {turn}: {}.5% of 1,000", turn + 7)
        }),
    ];
    for (exact, result) in results {
        let mut agent = Agent::new();
        agent.exact = exact;
        let turns = (1..30).map(|turn| agent.does("status", "{}", &result(turn)));
        let told = told(turns.collect::<Vec<_>>().into_iter());
        let by_result =
            |found: &(usize, LoopPattern, LoopVerdict, u32)| found.1 != LoopPattern::SameTool;
        assert!(!told.iter().any(by_result), "{told:?}");
    }
}
