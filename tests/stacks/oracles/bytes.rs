//! What the caller gets.

use super::fail;
use crate::tests::stacks::{
    plan::{Ending, Plan},
    script::{DONE, ERROR_EVENT, is_inserted},
    trace::{Event, Story},
};

/// A prefix of what one upstream call gave, the last, cut at an event, and at
/// most one terminal event.
///
/// Comments may be inserted, if a layer does that.
pub(super) fn check(plan: &Plan, story: &Story) -> Result<(), String> {
    let mut got = String::new();
    for text in story.texts() {
        if !is_inserted(text) {
            got.push_str(text);
            continue;
        }
        let between = is_between(&got);
        let ends = [DONE, ERROR_EVENT, "event: error\n"];
        let ended = ends.iter().any(|end| got.contains(end));
        if !plan.sse || plan.keep_alive.is_none() || !between || ended {
            return fail(format!("{text:?} after {got:?}"));
        }
    }
    let (call, given) = match story.given.last() {
        Some(given) => (story.given.len() - 1, &**given),
        None => (0, ""),
    };
    let status = story.head().map(|(_, status)| status);
    if plan.sse && status == Some(502) && given.contains(&format!("data: {got}")) {
        // An error that came before any content, as a plain answer.
        return Ok(());
    }
    if plan.terminal && status != Some(200) {
        // The upstream's own, or an answer made here.
        return if given.starts_with(&got) || is_made_here(&got) {
            Ok(())
        } else {
            fail(got)
        };
    }
    if !plan.terminal || !plan.sse {
        return if given.starts_with(&got) {
            Ok(())
        } else {
            fail(format!("{got:?}"))
        };
    }
    let (prefix, error) = match got.split_once("event: error\n") {
        Some((prefix, error)) => (prefix, Some(error)),
        None => (&*got, None),
    };
    if !is_between(prefix) {
        return fail(format!("half an event: {got:?}"));
    }
    if error.is_some_and(|error| error.matches("\n\n").count() != 1 || !error.ends_with("\n\n")) {
        return fail(format!("not one terminal event: {got:?}"));
    }
    let supplied = plan.behaviour(call).ending == Ending::Finish && error.is_none();
    let rest = prefix
        .strip_suffix(DONE)
        .filter(|_| supplied)
        .unwrap_or(prefix);
    if !given.starts_with(rest) {
        return fail(format!("not the upstream's: {got:?} of {given:?}"));
    }
    let own = prefix.contains(ERROR_EVENT);
    if own && error.is_some() {
        return fail(format!("an error after the upstream's: {got:?}"));
    }
    let over = story.at(|event| matches!(event, Event::Over(_))).is_some();
    if over && error.is_none() && !own && !got.contains("[DONE]") {
        return fail(format!(
            "a clean end of a stream that did not finish: {got:?}"
        ));
    }
    Ok(())
}

/// Whether no event is begun; a comment is no part of one.
fn is_between(got: &str) -> bool {
    let open = got.rsplit("\n\n").next().unwrap_or_default();
    open.split_inclusive('\n')
        .all(|line| line.starts_with(':') && line.ends_with('\n'))
}

fn is_made_here(got: &str) -> bool {
    // Behind an early head an answer is an error, which says what the answer was.
    let tells = got.contains("The upstream answered");
    got.starts_with("{\"error\":{") && (tells || !got.contains("boom"))
}
