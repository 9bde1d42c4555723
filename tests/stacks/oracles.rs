//! What must hold of every story: the oracles of the test plan, by number.

use std::time::Duration;

use tower_agent::TerminalReason;

use crate::{
    model,
    plan::{Ending, Kind, Plan},
    trace::{Event, Node, Over, Story},
    upstream::DONE,
};

type Check = fn(&Plan, &Story) -> Result<(), String>;

pub(crate) const ALL: [(&str, Check); 9] = [
    ("1 one reason per node, and it never changes", one_reason),
    ("1 it is the earliest cause", earliest_cause),
    ("2 nothing after the end", nothing_after),
    ("3 upstream is dropped at once", dropped_at_once),
    ("6 no clock early", no_clock_early),
    ("7 the reader's bytes are the upstream's", bytes),
    ("8 a ceiling is an end", ceiling),
    ("9 nothing is left", nothing_left),
    ("completed is what the reader saw", completed_is_whole),
];

fn quarters(at: Duration) -> u64 {
    u64::try_from(at.as_millis()).unwrap() / 250
}

fn fail(why: impl Into<String>) -> Result<(), String> {
    Err(why.into())
}

/// Reasons only ever go from none to one, the run's is every call's, and each
/// observer is told once.
fn one_reason(_: &Plan, story: &Story) -> Result<(), String> {
    for pair in story.entries.windows(2) {
        for node in 0..2 {
            let (before, after) = (&pair[0].reasons[node], &pair[1].reasons[node]);
            if before.is_some() && before != after {
                return fail(format!("{before:?} became {after:?}"));
            }
        }
        if pair[1].reasons[0].is_some() && pair[1].reasons[1].is_none() {
            return fail("a call lives under a run that is over");
        }
    }
    let last = &story.last().reasons;
    for node in [Node::Run, Node::Call] {
        let noticed: Vec<_> = story
            .entries
            .iter()
            .filter_map(|entry| match &entry.event {
                Event::Noticed(whose, reason) if *whose == node => Some(Some(reason.clone())),
                _ => None,
            })
            .collect();
        let expected: Vec<_> = last[node as usize]
            .iter()
            .map(|reason| Some(reason.clone()))
            .collect();
        if noticed != expected {
            return fail(format!("{node:?}: observers saw {noticed:?}"));
        }
    }
    Ok(())
}

/// Against the model; stacks with a pump are judged by the sound part alone,
/// in [`ceiling`] and [`no_clock_early`].
fn earliest_cause(plan: &Plan, story: &Story) -> Result<(), String> {
    if plan.is_pumped() {
        return Ok(());
    }
    let Some(expected) = model::expect(plan) else {
        return fail("the model has no end for this");
    };
    let reasons = &story.last().reasons;
    let strict = std::env::var_os("STACKS_STRICT").is_some();
    if let (Some(reason), false) = (&reasons[1], strict) {
        if expected.tied.contains(reason) {
            return Ok(());
        }
    }
    let own = &reasons[expected.node as usize];
    if own.as_ref() != Some(&expected.reason) {
        return fail(format!("{own:?} in place of {expected:?}"));
    }
    let at = reason_at(story, expected.node).map(quarters);
    if at != Some(expected.at) {
        return fail(format!("at {at:?} in place of {expected:?}"));
    }
    let run = match expected.node {
        Node::Call if plan.outlives() => None,
        _ => Some(&expected.reason),
    };
    let later = plan.outlives() && plan.action.is_some();
    if reasons[0].as_ref() != run && !later {
        return fail(format!("the run ended with {:?}: {expected:?}", reasons[0]));
    }
    if reasons[1].as_ref() != Some(&expected.reason) {
        return fail(format!(
            "the call ended with {:?}: {expected:?}",
            reasons[1]
        ));
    }
    Ok(())
}

fn reason_at(story: &Story, node: Node) -> Option<Duration> {
    let seen = story
        .entries
        .iter()
        .find(|entry| entry.reasons[node as usize].is_some());
    seen.map(|entry| entry.at)
}

/// The first entry at which the call was over.
fn over_from(story: &Story) -> Option<usize> {
    story
        .entries
        .iter()
        .position(|entry| entry.reasons[1].is_some())
}

/// No call, no frame from the upstream, no byte but the terminal event.
fn nothing_after(plan: &Plan, story: &Story) -> Result<(), String> {
    let Some(from) = over_from(story).filter(|_| plan.pump_sees_the_call()) else {
        return Ok(());
    };
    let completed = story.entries[from].reasons[1] == Some(TerminalReason::Completed);
    let mut terminal = 0;
    for entry in &story.entries[from..] {
        match &entry.event {
            Event::Called => return fail("a call started"),
            Event::Unfused => return fail("something came after the error"),
            Event::Gave(_) | Event::Pending => return fail("the upstream was asked"),
            Event::Got(text) if is_terminal(text) && plan.terminal => terminal += 1,
            Event::Got(_) if completed => {}
            Event::Got(text) => return fail(format!("the reader got {text:?}")),
            _ => {}
        }
    }
    if terminal > 1 {
        fail("two terminal events")
    } else {
        Ok(())
    }
}

fn is_terminal(text: &str) -> bool {
    text.starts_with(
        "event: error
",
    ) || text.starts_with("{\"error\":{")
        || text == DONE
}

/// The same poll, if the reader polls; one turn of the scheduler with a pump.
fn dropped_at_once(plan: &Plan, story: &Story) -> Result<(), String> {
    let Some(dropped) = story.at(|event| *event == Event::Dropped) else {
        return fail("the upstream was never dropped");
    };
    if story
        .entries
        .iter()
        .filter(|entry| entry.event == Event::Dropped)
        .count()
        > 1
    {
        return fail("dropped twice");
    }
    let Some(from) = over_from(story) else {
        return Ok(());
    };
    if dropped < from || !plan.pump_sees_the_call() {
        return Ok(());
    }
    // A reader that is away comes back first, unless there is a pump.
    let waiting = story.entries[..from]
        .iter()
        .rev()
        .find_map(|entry| match entry.event {
            Event::Asked => Some(true),
            Event::Got(_) | Event::Head(_) => Some(false),
            _ => None,
        });
    let asked = story.entries[from..]
        .iter()
        .find(|entry| matches!(entry.event, Event::Asked | Event::Left));
    let due = match (plan.is_pumped() || waiting == Some(true), asked) {
        (true, _) | (_, None) => story.entries[from].at,
        (false, Some(asked)) => asked.at,
    };
    if story.entries[dropped].at != due {
        return fail(format!(
            "dropped at {:?}, not at {due:?}",
            story.entries[dropped].at
        ));
    }
    let polls = story.entries[from..dropped]
        .iter()
        .filter(|entry| entry.event == Event::Pending)
        .count();
    if polls > 0 {
        fail("asked before it was dropped")
    } else {
        Ok(())
    }
}

/// A limit's reason never comes before the least such limit. That a step
/// timeout comes exactly when it must is part of [`earliest_cause`].
fn no_clock_early(plan: &Plan, story: &Story) -> Result<(), String> {
    let Some(from) = over_from(story) else {
        return Ok(());
    };
    let at = quarters(story.entries[from].at);
    let least =
        |limits: &mut dyn Iterator<Item = u64>| limits.min().map_or(u64::MAX, |ticks| ticks * 4);
    let layers = || plan.layers.iter();
    let earliest = match &story.entries[from].reasons[1] {
        Some(TerminalReason::HardCeiling) => least(&mut layers().filter_map(|kind| match kind {
            Kind::Ceiling { limit, .. } => *limit,
            _ => None,
        })),
        Some(TerminalReason::CallerDeadline) => {
            least(&mut layers().filter_map(|kind| match kind {
                Kind::Ceiling { timeout, .. } => *timeout,
                _ => None,
            }))
        }
        Some(TerminalReason::StepTimeout) => least(&mut layers().filter_map(|kind| match kind {
            Kind::Step { window, first, .. } => Some(*window.min(first)),
            _ => None,
        })),
        _ => 0,
    };
    if at < earliest {
        return fail(format!("at {at}, before {earliest}"));
    }
    // Silence began with a wait: some first Pending stands a window before it.
    if story.entries[from].reasons[1] == Some(TerminalReason::StepTimeout) && !plan.is_pumped() {
        let pending = story.entries[..from]
            .iter()
            .any(|entry| entry.event == Event::Pending && quarters(entry.at) + earliest <= at);
        if !pending {
            return fail("a step timeout without a wait of its length");
        }
    }
    Ok(())
}

/// A prefix of the upstream's, cut at an event, and at most one terminal event.
fn bytes(plan: &Plan, story: &Story) -> Result<(), String> {
    let got = story.got();
    let given = &story.given;
    let status = story.entries.iter().find_map(|entry| match entry.event {
        Event::Head(status) => Some(status),
        _ => None,
    });
    if plan.terminal && status != Some(200) {
        // An answer made here.
        return if got.is_empty() || got.starts_with("{\"error\":{") {
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
    let whole = prefix.is_empty() || prefix.ends_with("\n\n");
    if !whole {
        return fail(format!("half an event: {got:?}"));
    }
    if error.is_some_and(|error| error.matches("\n\n").count() != 1 || !error.ends_with("\n\n")) {
        return fail(format!("not one terminal event: {got:?}"));
    }
    let supplied = plan.ending == Ending::Finish && error.is_none();
    let rest = prefix
        .strip_suffix(DONE)
        .filter(|_| supplied)
        .unwrap_or(prefix);
    if !given.starts_with(rest) {
        return fail(format!("not the upstream's: {got:?}"));
    }
    let over = story.at(|event| matches!(event, Event::Over(_))).is_some();
    if over && error.is_none() && !got.contains("[DONE]") {
        return fail(format!(
            "a clean end of a stream that did not finish: {got:?}"
        ));
    }
    Ok(())
}

/// While it is polled, or pumped, a ceiling is an end.
fn ceiling(plan: &Plan, story: &Story) -> Result<(), String> {
    let limits = plan.layers.iter().filter_map(|kind| match kind {
        Kind::Ceiling { limit, timeout, .. } => limit.iter().chain(timeout.iter()).min().copied(),
        _ => None,
    });
    let Some(limit) = limits.min().filter(|_| plan.pump_sees_the_call()) else {
        return Ok(());
    };
    let Some(from) = over_from(story) else {
        return fail("it never ended");
    };
    let at = quarters(story.entries[from].at);
    let ended = story.at(|event| matches!(event, Event::Ended(_)));
    if ended.is_some_and(|index| quarters(story.entries[index].at) < limit * 4) {
        // There is no upstream to end; a reader may hold the rest.
        return Ok(());
    }
    // Without a pump only a reader that asks is looked after.
    let asked_after = story
        .entries
        .iter()
        .position(|entry| quarters(entry.at) >= limit * 4 && matches!(entry.event, Event::Pending));
    let pumped = plan
        .layers
        .first()
        .is_some_and(|kind| matches!(kind, Kind::Pump(_)));
    if (pumped || asked_after.is_some_and(|index| index < from)) && at > limit * 4 + 4 {
        let polled = asked_after.map(|index| quarters(story.entries[index].at));
        if pumped || polled.is_some_and(|polled| at > polled) {
            return fail(format!("ended at {at}, the limit being {}", limit * 4));
        }
    }
    Ok(())
}

/// No work, no task, no entry that thinks it has some.
fn nothing_left(_: &Plan, story: &Story) -> Result<(), String> {
    match story.last().event {
        Event::Gone(0, 0, 0) => {}
        ref left => return fail(format!("{left:?}")),
    }
    if story.at(|event| *event == Event::Called).is_some()
        && story.at(|event| *event == Event::Dropped).is_none()
    {
        return fail("the upstream lives");
    }
    if story.last().reasons[1].is_none() {
        return fail("the call was not settled");
    }
    Ok(())
}

/// A reader that read to the end saw what the call is called.
fn completed_is_whole(plan: &Plan, story: &Story) -> Result<(), String> {
    // With a pump outside of it the call is complete before its bytes are read.
    let Some(over) = story.over().filter(|_| plan.pump_sees_the_call()) else {
        return Ok(());
    };
    if story.got().contains("[DONE]") {
        // Delivered in full, whatever came after it is called.
        return Ok(());
    }
    let completed = story.last().reasons[1] == Some(TerminalReason::Completed);
    let told = match over {
        Over::Whole => {
            let refused = |event: &Event| matches!(event, Event::Head(status) if *status != 200);
            let cut = story.got().contains("event: error\n") || story.at(refused).is_some();
            plan.terminal && cut
        }
        _ => true,
    };
    if completed == told {
        return fail(format!("{:?} and {over:?}", story.last().reasons[1]));
    }
    Ok(())
}
