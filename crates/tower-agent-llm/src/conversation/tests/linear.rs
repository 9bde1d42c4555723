//! covers: D7

use std::collections::VecDeque;

use super::{super::history::History, words};
use crate::dialect::Dialect;

fn turn(number: usize, mark: &str) -> String {
    format!(
        r#",{{"role":"assistant","tool_calls":[{{"id":"c{number}","function":{{"name":"read","arguments":"{{\"n\":{number}}}"}}}}]}},
        {{"role":"tool","tool_call_id":"c{number}","content":"{number}"{mark}}}"#
    )
}

fn body(turns: &[String]) -> String {
    let messages = turns.concat();
    format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":"go"}}{messages}],"stream":true}}"#
    )
}

#[test]
fn a_thousand_turns_cost_what_is_new_in_each() {
    let mut turns = Vec::new();
    let mut places = VecDeque::new();
    let mut walked = 0;
    for number in 0..1000 {
        turns.push(turn(number, ""));
        let body = body(&turns);
        let history = History::read(&Dialect::Any, body.as_bytes(), &places).unwrap();
        walked += history.walked;
        assert_eq!(history.events.len(), if number == 0 { 3 } else { 2 });
        assert!(history.places.len() <= 8, "what is remembered is bounded");
        places = history.places;
    }

    assert_eq!(walked, 1 + 2 * 1000);
}

#[test]
fn a_mark_that_moves_costs_a_few_messages_more() {
    let mut turns: Vec<String> = Vec::new();
    let mut places = VecDeque::new();
    let mut walked = 0;
    for number in 0..100 {
        if let Some(last) = turns.last_mut() {
            *last = turn(number - 1, "");
        }
        turns.push(turn(number, r#","cache_control":{"type":"ephemeral"}"#));
        let body = body(&turns);
        let history = History::read(&Dialect::Any, body.as_bytes(), &places).unwrap();
        walked += history.walked;
        places = history.places;
    }

    assert_eq!(walked, 1 + 2 + 99 * 3);
}

#[test]
fn an_edited_history_is_read_whole() {
    let turns: Vec<_> = (0..20).map(|number| turn(number, "")).collect();
    let before = body(&turns);
    let before = History::read(&Dialect::Any, before.as_bytes(), &VecDeque::new()).unwrap();
    let compacted = body(&turns[15..]);

    let after = History::read(&Dialect::Any, compacted.as_bytes(), &before.places).unwrap();

    assert_eq!(after.from, None);
    assert_eq!(after.walked, 1 + 2 * 5);
}

#[test]
fn the_same_bytes_where_no_message_ends_are_not_taken_for_one() {
    let first = r#"{"messages":[{"role":"user","content":"x"}]}"#;
    let places = History::read(&Dialect::Any, first.as_bytes(), &VecDeque::new())
        .unwrap()
        .places;
    // The bytes of the known message are there, but no comma follows: the body is no
    // JSON.
    let inside = r#"{"messages":[{"role":"user","content":"x"} {"role":"tool"}]}"#;
    assert!(History::read(&Dialect::Any, inside.as_bytes(), &places).is_none());
    let hidden = r#"{"messages": {"role":"user","content":"x"}}"#;
    let history = History::read(&Dialect::Any, hidden.as_bytes(), &places).unwrap();
    assert_eq!(words(&history), [""; 0]);
}

#[test]
fn what_continues_something_else_is_read_whole() {
    let body = r#"{"previous_response_id":"r","input":[{"type":"function_call_output","call_id":"a","output":"x"}]}"#;
    let whole = body.replace(r#""previous_response_id":"r","#, "");
    let places = History::read(&Dialect::Any, whole.as_bytes(), &VecDeque::new())
        .unwrap()
        .places;

    let history = History::read(&Dialect::Any, body.as_bytes(), &places).unwrap();

    assert_eq!(words(&history), ["=a"]);
    assert!(history.places.is_empty());
}

#[test]
fn of_two_conversations_in_a_request_the_last_counts() {
    let body = br#"{"messages":[null],"messages":"user"}"#;
    let read = |places: &VecDeque<_>| History::read(&Dialect::Any, body, places).unwrap();
    let places = read(&VecDeque::new()).places;
    assert!(places.is_empty());
    assert!(read(&places).from.is_none());
}
