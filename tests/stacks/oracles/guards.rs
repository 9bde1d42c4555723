//! What must hold of turns, loops, gates, comments and drains.

use std::time::Duration;

use tower_agent::TerminalReason;

use super::{Check, fail};
use crate::tests::stacks::{
    plan::{Kind, Plan},
    trace::{Event, Given, Story},
};

pub(super) const ALL: [(&str, Check); 7] = [
    ("2 nothing starts after the reader left", left_alone),
    ("2 no more turns than the cap", turns),
    ("2 no more tokens than the cap, but for one frame", tokens),
    ("2 what is a loop is not sent on", loops),
    ("2 a call waits until its upstream is healthy", gated),
    ("6 a wait for the upstream is no silence", patient),
    ("10 nothing is left of any turn", nothing_left),
];

/// A pump may read on, and begins nothing.
fn left_alone(_: &Plan, story: &Story) -> Result<(), String> {
    let Some(left) = story.at(|event| *event == Event::Left) else {
        return Ok(());
    };
    let starts = |event: &Event| matches!(event, Event::Called(..) | Event::Refused(_));
    match story.entries[left..].iter().find(|it| starts(&it.event)) {
        Some(entry) => fail(format!("{:?} after the reader left", entry.event)),
        None => Ok(()),
    }
}

/// No more requests of a run reach the upstream than it may have turns, none once
/// it is over, and none is refused for a cap that was not reached.
fn turns(plan: &Plan, story: &Story) -> Result<(), String> {
    let cap = plan.turns().map_or(usize::MAX, |cap| cap as usize);
    let mut reached = usize::from(story.calls().next().is_some());
    for (index, turn) in story.turns.iter().enumerate() {
        let [before, after] = &turn.run;
        if before.is_some() && turn.calls > 0 {
            return fail(format!(
                "turn {} of a run that is over: {turn:?}",
                index + 2
            ));
        }
        // A request that its caller dropped at once may not have come to the cap.
        let is_beyond = reached >= cap;
        reached += usize::from(turn.calls > 0);
        if reached > cap {
            return fail(format!("{reached} turns of {cap}"));
        }
        if plan.has_caps() {
            // An owner's cap refuses a turn, and one on tokens ends a run, at any turn.
            continue;
        }
        let capped = *after == Some(TerminalReason::TurnCap);
        if capped && index + 2 <= cap {
            return fail(format!("turn {} of {cap} was refused", index + 2));
        }
        if is_beyond && after.is_none() && !plan.is_pumped() {
            return fail(format!("turn {} of {cap} ended nothing", index + 2));
        }
    }
    Ok(())
}

/// Attempts that failed count, too. Four bytes of content are a token, and a piece has two.
fn tokens(plan: &Plan, story: &Story) -> Result<(), String> {
    let caps = plan.layers.iter().filter_map(|kind| match kind {
        Kind::TokenCap(tokens) => Some(*tokens),
        _ => None,
    });
    let counts = plan.sse && !plan.is_pumped() && plan.joins.is_empty();
    let Some(cap) = caps.min().filter(|_| counts) else {
        return Ok(());
    };
    let mut pieces = vec![0_u32; story.given.len()];
    for entry in &story.entries {
        if let Event::Gave(call, Given::Content) = entry.event {
            let tokens: u32 = pieces.iter().map(|pieces| pieces.div_ceil(2)).sum();
            if tokens > cap {
                return fail(format!(
                    "more of call {call} after {tokens} of {cap} tokens"
                ));
            }
            pieces[call] += 1;
        }
    }
    Ok(())
}

/// A request whose history goes in circles ends its run and reaches nobody.
fn loops(plan: &Plan, story: &Story) -> Result<(), String> {
    let run = &story.last().reasons[0];
    let detected = *run == Some(TerminalReason::LoopDetected);
    if detected && !plan.loops() {
        return fail("no loop");
    }
    let sent = |event: &Event| matches!(event, Event::Called(..) | Event::Refused(_));
    if plan.loops() && story.at(sent).is_some() {
        return fail("it was sent on");
    }
    Ok(())
}

/// Who was refused is not sent again before a probe said that it may be, and then
/// at once. Nor does anybody who is over ask.
fn gated(plan: &Plan, story: &Story) -> Result<(), String> {
    for entry in &story.entries {
        if let Event::Refused(Some(reason)) = &entry.event {
            return fail(format!("a connection was asked for after {reason:?}"));
        }
    }
    let waits = plan.layers.iter().all(|kind| match kind {
        // One that watches asks for itself.
        Kind::Gate {
            patience, silence, ..
        } => patience.is_none() && silence.is_none(),
        kind => !kind.tries(),
    });
    let mut refused = None;
    let mut healthy: Option<Duration> = None;
    for (index, entry) in story.entries.iter().enumerate().filter(|_| waits) {
        if healthy.is_some_and(|at| entry.at > at) && entry.reasons[1].is_none() {
            return fail("it was healthy, and nothing was sent");
        }
        match entry.event {
            Event::Refused(_) | Event::Called(..) => {
                if refused.is_some() && healthy.is_none() {
                    return fail(format!("sent again at {:?} unasked", entry.at));
                }
                (refused, healthy) = (None, None);
                if matches!(entry.event, Event::Refused(_)) {
                    refused = Some(index);
                }
            }
            Event::Probed(true) if refused.is_some() => healthy = Some(entry.at),
            Event::Left => return Ok(()),
            _ => {}
        }
    }
    Ok(())
}

/// Step windows stand while a gate waits; ceilings do not.
fn patient(plan: &Plan, story: &Story) -> Result<(), String> {
    let watches = |kind: &Kind| {
        let silence = matches!(
            kind,
            Kind::Gate {
                silence: Some(_),
                ..
            }
        );
        silence || kind.tries()
    };
    let Some(from) = story
        .over_from()
        .filter(|_| !plan.layers.iter().any(watches))
    else {
        return Ok(());
    };
    if story.entries[from].reasons[1] != Some(TerminalReason::StepTimeout) {
        return Ok(());
    }
    let sent = story.entries[..from]
        .iter()
        .rfind(|entry| matches!(entry.event, Event::Refused(_) | Event::Called(..)));
    match sent {
        Some(sent) if matches!(sent.event, Event::Refused(_)) => fail(format!(
            "it waited from {:?} on, and that ended it",
            sent.at
        )),
        _ => Ok(()),
    }
}

/// No work and no task, whatever request was the last.
fn nothing_left(_: &Plan, story: &Story) -> Result<(), String> {
    match story.turns.iter().find(|turn| turn.left != (0, 0)) {
        Some(turn) => fail(format!("{turn:?}")),
        None => Ok(()),
    }
}
