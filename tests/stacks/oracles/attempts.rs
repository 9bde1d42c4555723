//! What must hold of retries and fallbacks.

use std::time::Duration;

use super::{Check, fail};
use crate::tests::stacks::{
    build::model,
    ledger::ledger,
    plan::{Head, Kind, Plan},
    script::is_inserted,
    trace::{Asked, Event, Given, Story},
};

pub(super) const ALL: [(&str, Check); 11] = [
    ("2 no upstream call starts under what is over", alive),
    ("2 no upstream call starts at the end of its time", in_time),
    ("4 no more repeats than the budget pays for", paid),
    ("4 each unit is spent or refunded once", accounts),
    ("5 nothing is tried after the commit", final_commit),
    ("5 each candidate gets the caller's request", addressed),
    (
        "5 no failure is served while a candidate is left",
        exhausted,
    ),
    ("6 no repeat before the upstream asked for it", patient),
    ("7 an answer is held until its commit", held),
    ("8 a ceiling ends every wait for an answer", waits),
    ("8 who waits for an answer is told of the end", told),
];

/// The call, the attempt and all around it live when an upstream call starts.
fn alive(_: &Plan, story: &Story) -> Result<(), String> {
    match story.calls().find_map(|(_, asked)| asked.over.as_ref()) {
        Some(reason) => fail(format!("a call started after {reason:?}")),
        None => Ok(()),
    }
}

/// It lives by the clocks of the call, too.
fn in_time(plan: &Plan, story: &Story) -> Result<(), String> {
    let limit = plan.call_limit().map(Duration::from_secs);
    for (index, _) in story.calls() {
        let at = story.entries[index].at;
        if limit.is_some_and(|limit| at >= limit) {
            return fail(format!(
                "a call started at {at:?}, and the limit is {limit:?}"
            ));
        }
    }
    Ok(())
}

/// Every repeat was granted, within the budget and the attempts of its layer;
/// no candidate comes up twice.
fn paid(plan: &Plan, story: &Story) -> Result<(), String> {
    match ledger(plan, story)
        .faults
        .first()
        .filter(|_| !plan.is_pumped())
    {
        Some(fault) => fail(fault),
        None => Ok(()),
    }
}

/// In the end the budget holds what was paid in and not spent.
fn accounts(plan: &Plan, story: &Story) -> Result<(), String> {
    let ledger = ledger(plan, story);
    for (name, left) in &story.left {
        let due = ledger.left[name];
        if *left as u64 != due {
            return fail(format!("{name:?} has {left} repeats left, not {due}"));
        }
    }
    Ok(())
}

/// Once an upstream gave content, or the caller got a head, no call starts.
fn final_commit(plan: &Plan, story: &Story) -> Result<(), String> {
    let committed = story.at(|event| match event {
        Event::Head(..) => !plan.is_early(),
        Event::Got(text) => !is_inserted(text),
        // A pump may hold content that its attempt does not live to see, and a layer that tries may
        // hold it until its speed is known.
        Event::Gave(_, Given::Content) => plan.sse && !plan.is_pumped() && !plan.holds_content(),
        _ => false,
    });
    let last = story.calls().next_back();
    match (committed, last) {
        (Some(committed), Some((index, _))) if index > committed => {
            fail("a call started after the commit")
        }
        _ => Ok(()),
    }
}

/// Only `model` differs from what the caller sent, it is the candidate's, tries
/// are numbered, and the caller is told who served.
fn addressed(plan: &Plan, story: &Story) -> Result<(), String> {
    let mut candidate = None;
    let (mut calls, mut last) = (0, 0);
    for entry in &story.entries {
        match &entry.event {
            Event::Tried(_, name) => candidate.clone_from(name),
            Event::Called(_, asked) => {
                calls += 1;
                let expected = candidate.clone().unwrap_or_else(|| model(plan.model));
                let Asked {
                    model,
                    intact,
                    attempt,
                    ..
                } = asked;
                if *model != expected || !intact {
                    return fail(format!("{asked:?} for {expected}"));
                }
                if attempt.is_some() != plan.first_trying().is_some() {
                    return fail(format!("call {calls} is attempt {attempt:?}"));
                }
                // One whose time is over as it starts is counted, and not sent.
                let number = attempt.unwrap_or(calls);
                if number < calls || number <= last {
                    return fail(format!("call {calls} is attempt {number} after {last}"));
                }
                last = number;
            }
            Event::Head(_, served, number) => {
                if served.is_some() && *served != candidate && !plan.is_early() {
                    return fail(format!("{served:?} is said to serve, not {candidate:?}"));
                }
                if number.is_some_and(|number| number < last) {
                    return fail(format!("{number:?} attempts of {last}"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The caller gets the head of an answer in the instant of its commit: its first
/// content, its end, a failure, or the innermost layer's hold.
fn held(plan: &Plan, story: &Story) -> Result<(), String> {
    let Some(hold) = plan.layers.iter().rev().find_map(|kind| match kind {
        Kind::Retry { hold, .. } | Kind::Fallback { hold, .. } => Some(*hold),
        _ => None,
    }) else {
        return Ok(());
    };
    if plan.is_early() || plan.holds_content() {
        return Ok(());
    }
    let Some((index, status)) = story.head() else {
        return Ok(());
    };
    let Event::Head(_, _, Some(_)) = story.entries[index].event else {
        // An answer made here.
        return Ok(());
    };
    let Some((call, asked)) = story.calls().next_back() else {
        return Ok(());
    };
    let entries = &story.entries[call..];
    let at = |wanted: &dyn Fn(&Event) -> bool| {
        let entry = entries.iter().find(|entry| wanted(&entry.event));
        entry.map(|entry| entry.at)
    };
    let head = at(&|event| matches!(event, Event::Gave(_, Given::Head)));
    // An error under 200 gets the status that it should have had; this one names none.
    let is_error = at(&|event| matches!(event, Event::Gave(_, Given::Error))).is_some();
    let status = match status {
        502 if is_error => 200,
        status => status,
    };
    let ended = at(&|event| matches!(event, Event::Ended(..)));
    let gate = |kind: &&Kind| matches!(kind, Kind::Gate { .. });
    let gates = plan.layers.iter().filter(gate).count() as u64;
    let until = match status {
        200 => hold.map(|hold| asked.opened + Duration::from_secs(hold)),
        // Each that has a look at it takes its time.
        _ => head.map(|head| head + Duration::from_secs(1 + gates)),
    };
    let until = until.max(until.and(head));
    let told = at(&|event| {
        let told = matches!(
            event,
            Event::Gave(_, Given::Content | Given::Terminator | Given::Error)
        );
        told && plan.sse && status == 200
    });
    let due = [ended, until, told].into_iter().flatten().min();
    let got = story.entries[index].at;
    // A failure that breaks off is told by its status.
    let slack = Duration::from_millis(2);
    let in_time = |due| got <= due + slack && (status != 200 || got + slack >= due);
    if due.is_some_and(in_time) {
        Ok(())
    } else {
        fail(format!("the head came at {got:?}, and was due at {due:?}"))
    }
}

/// A reader that waits for the head waits no longer than the call may last,
/// whatever is done meanwhile: a try, a wait before one, a service that is busy.
fn waits(plan: &Plan, story: &Story) -> Result<(), String> {
    let Some(limit) = plan
        .call_limit()
        .map(Duration::from_secs)
        .filter(|_| plan.pump_sees_the_call())
    else {
        return Ok(());
    };
    let answered =
        story.at(|event| matches!(event, Event::Head(..) | Event::Over(_) | Event::Left));
    let over = story.over_from().map(|index| story.entries[index].at);
    let answered = answered.map(|index| story.entries[index].at);
    let late = |at: Option<Duration>| at.is_none_or(|at| at > limit);
    if late(answered) && late(over) {
        return fail(format!("it waits at {limit:?}, and ends at {over:?}"));
    }
    Ok(())
}

/// A reader that waits for the head learns of an end in the same instant.
fn told(plan: &Plan, story: &Story) -> Result<(), String> {
    let answered =
        story.at(|event| matches!(event, Event::Head(..) | Event::Over(_) | Event::Left));
    let (Some(answered), Some(over)) = (answered, story.over_from()) else {
        return Ok(());
    };
    let (told, over) = (story.entries[answered].at, story.entries[over].at);
    let heard = match plan.pump_sees_the_call() {
        true => over,
        // What the reader polls stands outside of the call, and its task sleeps.
        false => story.heard(plan, over),
    };
    if told > heard {
        return fail(format!("over at {over:?}, and told at {told:?}"));
    }
    Ok(())
}

/// A server's failure that is handed on was that of the last candidate. Only
/// where time and the run's errors have no say.
fn exhausted(plan: &Plan, story: &Story) -> Result<(), String> {
    let timed = plan
        .layers
        .iter()
        .any(|kind| matches!(kind, Kind::Ceiling { .. }));
    let Some((head, status)) = story.head().filter(|_| !timed && !plan.budget.limits()) else {
        return Ok(());
    };
    let Event::Head(_, _, Some(_)) = story.entries[head].event else {
        return Ok(());
    };
    let given = story.entries[..head]
        .iter()
        .rev()
        .find_map(|entry| match entry.event {
            Event::Gave(_, given) => Some(given),
            _ => None,
        });
    if status != 500 && !(status == 200 && plan.sse && given == Some(Given::Error)) {
        return Ok(());
    }
    let ledger = ledger(plan, story);
    for (index, kind) in plan.layers.iter().enumerate() {
        let Kind::Fallback { candidates, .. } = kind else {
            continue;
        };
        if ledger
            .tries
            .get(&index)
            .is_some_and(|tries| tries < candidates)
        {
            return fail(format!("layer {index} had a candidate left"));
        }
    }
    Ok(())
}

/// Between leave to repeat a call and the repeat lies what its `retry-after` says.
fn patient(plan: &Plan, story: &Story) -> Result<(), String> {
    let calls: Vec<_> = story.calls().map(|(index, _)| index).collect();
    for (call, pair) in calls.windows(2).enumerate() {
        let between = &story.entries[pair[0]..pair[1]];
        let leave = between.iter().rev().find_map(|entry| match entry.event {
            Event::Willing(layer, _) => Some((layer, entry.at)),
            _ => None,
        });
        let Some((layer, leave)) = leave.filter(|_| !plan.is_pumped()) else {
            continue;
        };
        let retry = |kind: &Kind| matches!(kind, Kind::Retry { .. });
        let tries = |kind: &Kind| retry(kind) || matches!(kind, Kind::Fallback { .. });
        // One further out sees what those inside made of the answer, and a
        // window between them may have cut that.
        let repeats = retry(&plan.layers[layer]) && !plan.layers[layer + 1..].iter().any(tries);
        let had_head = between
            .iter()
            .any(|entry| entry.event == Event::Gave(call, Given::Head));
        let Head::Status(_, Some(asked)) = plan.behaviour(call).head_is else {
            continue;
        };
        let waited = story.entries[pair[1]].at - leave;
        if repeats && had_head && waited < Duration::from_secs(asked) {
            return fail(format!("repeated after {waited:?}, not {asked} s"));
        }
    }
    Ok(())
}
