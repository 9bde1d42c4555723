//! What must hold of the summary of a call.

use super::{Check, fail};
use crate::tests::stacks::{
    plan::{Kind, Plan},
    script,
    trace::{Entry, Event, Story, Summarised},
};

pub(super) const ALL: [(&str, Check); 8] = [
    ("11 a call is summarised once", once),
    ("11 its summary says how it ended", reason),
    ("11 its summary says how long it took", elapsed),
    ("11 its summary counts its attempts", attempts),
    ("11 its summary has the tokens of all attempts", usage),
    ("11 its summary says why the model stopped", stop_reason),
    ("11 its summary says which candidate served", candidate),
    ("11 it is summarised when all is dropped", dropped),
];

/// The summaries, where the layer that makes them has seen the call from its beginning.
fn summaries<'a>(plan: &Plan, story: &'a Story) -> &'a [Summarised] {
    match plan.run_layer() {
        Some(_) => &story.summaries,
        None => &[],
    }
}

fn once(plan: &Plan, story: &Story) -> Result<(), String> {
    let told = |layer: usize| {
        let told = story.summaries.iter().filter(|told| told.layer == layer);
        told.count()
    };
    let began = story.calls().next().is_some();
    for (layer, _) in plan.layers.iter().enumerate() {
        let is_opener = plan.run_layer() == Some(layer);
        if told(layer) > 1 || (is_opener && began && told(layer) == 0) {
            return fail(format!("layer {layer} heard {} summaries", told(layer)));
        }
    }
    Ok(())
}

fn reason(plan: &Plan, story: &Story) -> Result<(), String> {
    let ended = &story.last().reasons[1];
    for Summarised { summary, .. } in summaries(plan, story) {
        if Some(&summary.reason) != ended.as_ref() {
            return fail(format!("{:?}, and it was {ended:?}", summary.reason));
        }
    }
    Ok(())
}

fn elapsed(plan: &Plan, story: &Story) -> Result<(), String> {
    let Some(over) = story.over_from() else {
        return Ok(());
    };
    let since = story.entries[over.saturating_sub(1)].at;
    let until = story.entries[over].at;
    for Summarised { summary, .. } in summaries(plan, story) {
        if !(since..=until).contains(&summary.elapsed) {
            let took = summary.elapsed;
            return fail(format!(
                "{took:?}, and it ended from {since:?} to {until:?}"
            ));
        }
    }
    Ok(())
}

/// The first try of a nested layer is that of the layer around it, and a layer further out that
/// sends the request once more begins anew.
fn attempts(plan: &Plan, story: &Story) -> Result<(), String> {
    let mut visits = vec![0; plan.layers.len()];
    let mut count = 0;
    for entry in &story.entries {
        match entry.event {
            Event::Came(layer, _) => {
                visits[layer] = 0;
                if Some(layer) == plan.first_trying() {
                    count = 0;
                }
            }
            Event::Tried(layer, _) => {
                if visits[layer] > 0 || Some(layer) == plan.first_trying() {
                    count += 1;
                }
                visits[layer] += 1;
            }
            _ => {}
        }
    }
    for Summarised { summary, .. } in summaries(plan, story) {
        if summary.attempts != count {
            return fail(format!("{}, not {count}", summary.attempts));
        }
    }
    Ok(())
}

fn dropped(plan: &Plan, story: &Story) -> Result<(), String> {
    let gone = |entry: &&Entry| matches!(entry.event, Event::Dropped(_));
    let gone = story
        .entries
        .iter()
        .filter(gone)
        .map(|entry| entry.at)
        .max();
    for Summarised { at, .. } in summaries(plan, story) {
        if gone.is_some_and(|gone| *at < gone) {
            return fail(format!(
                "at {at:?}, and the last call was dropped at {gone:?}"
            ));
        }
    }
    Ok(())
}

/// The sum of what all calls had stated in whole events.
fn usage(plan: &Plan, story: &Story) -> Result<(), String> {
    let ended = |call| story.at(|event| *event == Event::Ended(call, true));
    // A layer that counts tokens reads a document as it passes; one that tries, when it is whole,
    // unless it has handed on the beginning.
    let all_ended = (0..story.said.len()).all(|call| ended(call).is_some());
    if plan.json && !(all_ended && plan.hold().is_none()) {
        return Ok(());
    }
    let inside = &plan.layers[plan.run_layer().unwrap_or(0)..];
    let is_read = Plan::counts_tokens(inside) || inside.iter().any(Kind::tries);
    let stated = story.said.iter().filter_map(|said| {
        let whole = match (plan.sse, plan.json) {
            (true, _) => whole_events(said),
            (_, true) if is_read => said,
            // It is no dialect's.
            _ => return None,
        };
        script::stated(whole)
    });
    let stated = stated.reduce(|(input, output), more| (input + more.0, output + more.1));
    for Summarised { summary, .. } in summaries(plan, story) {
        let usage = summary.usage;
        let usage = usage.map(|usage| (usage.input_tokens, usage.output_tokens));
        if usage != stated {
            return fail(format!("{usage:?}, not {stated:?}"));
        }
    }
    Ok(())
}

/// The last call that gave one says why the model stopped.
fn stop_reason(plan: &Plan, story: &Story) -> Result<(), String> {
    let stops =
        |said: &String| plan.sse && whole_events(said).contains("\"finish_reason\":\"stop\"");
    let stopped = story.said.iter().any(stops).then_some("stop");
    for Summarised { summary, .. } in summaries(plan, story) {
        let reason = summary.stop_reason.as_deref();
        if reason != stopped {
            return fail(format!("{reason:?}, not {stopped:?}"));
        }
    }
    Ok(())
}

/// That of the last layer that chose one.
fn candidate(plan: &Plan, story: &Story) -> Result<(), String> {
    let chooses = |layer: usize| matches!(plan.layers[layer], Kind::Fallback { .. });
    let tried = story
        .entries
        .iter()
        .rev()
        .find_map(|entry| match &entry.event {
            Event::Tried(layer, name) if chooses(*layer) => name.as_deref(),
            _ => None,
        });
    for Summarised { summary, .. } in summaries(plan, story) {
        let candidate = summary.candidate.as_deref();
        if candidate != tried {
            return fail(format!("{candidate:?}, not {tried:?}"));
        }
    }
    Ok(())
}

fn whole_events(said: &str) -> &str {
    let end = said.rfind("\n\n").map_or(0, |end| end + 2);
    &said[..end]
}
