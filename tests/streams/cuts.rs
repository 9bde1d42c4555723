//! Each whole answer, cut at every byte of its end: no error follows a whole answer, and no cut one
//! ends like a whole one.

use tower_agent::TerminalReason;

use crate::{
    answers::{Api, answers},
    call::{BodyEnd, CallResult, WINDOW, ask, script},
    reference::{events_of, has_content, is_whole, strict},
};

/// How many bytes of each answer are cut away, one by one.
const CUT: usize = 200;

/// What is wrong with the caller's answer to the first bytes of a stream; `None` if nothing is.
fn fault(
    api: Api,
    sent: &[u8],
    (end, asks_for_usage): (BodyEnd, bool),
    result: &CallResult,
) -> Option<String> {
    let mut expected = events_of(sent, end == BodyEnd::Clean);
    let sent_events = expected.clone();
    let whole = is_whole(api, &expected);
    let mut events = match strict(&result.text) {
        Ok(events) => events,
        Err(fault) => return Some(fault),
    };
    let errors = events.iter().filter(|it| it.is_error(api)).count();
    // A stream that is cut before the model says anything is tried again.
    let is_handed_on = whole || has_content(api, &events_of(sent, false));
    let by = if is_handed_on { "a" } else { "b" };
    let served = result.served.as_deref();
    if (result.status, served, &result.error) != (200, Some(by), &None) {
        return Some("another answer".into());
    }
    if by == "b" {
        return (errors > 0 || !is_whole(api, &events)).then(|| "no whole answer".into());
    }
    let fault = |text: &str| Some(format!("{text}, whole is {whole}"));
    let last = events.pop()?;
    if whole {
        if errors > 0 || !last.is_terminator(api) {
            return fault("a whole answer without its end");
        }
        if result.reason != TerminalReason::Completed {
            return fault("a whole answer that failed");
        }
        if expected.last()?.kind() == "response.done" {
            // SDKs do not know it: the event that they wait for stands in its place.
            expected.pop();
        }
        if !expected.last()?.is_terminator(api) {
            expected.push(last.clone());
        }
    } else {
        if errors != 1 || !last.is_error(api) {
            return fault("a cut answer without one error at its end");
        }
        if result.reason == TerminalReason::Completed {
            return fault("a cut answer that completed");
        }
        events.retain(|event| event.name != "response.failed");
        expected.push(last.clone());
    }
    events.push(last);
    if events != expected {
        return fault("other events");
    }
    // The answer is over 2 s behind its end; without the usage that was asked for, once the window
    // is.
    let is_over = !asks_for_usage
        || sent_events.iter().any(|it| it.is_terminator(api))
        || sent_events.iter().any(|it| it.data.contains("\"usage\":{"));
    let seconds = match (end, whole) {
        (BodyEnd::Open, true) if is_over => 2,
        (BodyEnd::Open, _) => WINDOW,
        _ => 0,
    };
    match result.seconds == seconds as f64 {
        true => None,
        false => fault("another time"),
    }
}

async fn cut(end: BodyEnd) {
    let mut faults = Vec::new();
    for (name, api, stream) in answers() {
        let stream = stream.as_bytes();
        for at in stream.len() - CUT..=stream.len() {
            let sent = &stream[..at];
            let kinds = [Some("text/event-stream"), Some("application/json"), None];
            let kind = kinds[at % kinds.len()];
            // In one chunk, and with the end of the stream in pieces.
            let (head, tail) = sent.split_at(stream.len() - CUT);
            let chunks = std::iter::once(head).chain(tail.chunks(1 + at % 7));
            let result = ask(api, script(kind, chunks, end), at % 2 == 0).await;
            if let Some(fault) = fault(api, sent, (end, at % 2 == 0), &result) {
                faults.push(format!(
                    "{name} {end:?} at {at} ({kind:?}): {fault}\n{result:#?}"
                ));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "{} faults, the first: {}",
        faults.len(),
        faults[0]
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_whole_or_cut_at_a_clean_end() {
    cut(BodyEnd::Clean).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_whole_or_cut_at_a_transport_error() {
    cut(BodyEnd::Broken).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_whole_or_cut_where_its_body_stays_open() {
    cut(BodyEnd::Open).await;
}
