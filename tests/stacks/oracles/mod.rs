//! What must hold of every story: the oracles of the test plan, by number.

mod attempts;
mod bytes;
mod drops;
mod guards;
mod speed;
mod summary;

use std::time::Duration;

use tower_agent::{TerminalReason, run::ReasonClass};

use crate::tests::stacks::{
    model,
    plan::{Announced, Kind, Plan},
    script::{DONE, ERROR_EVENT},
    trace::{Entry, Event, Given, Node, Over, Story},
};

type Check = fn(&Plan, &Story) -> Result<(), String>;

/// All oracles that can judge the story.
pub(crate) fn all(story: &Story) -> impl Iterator<Item = (&'static str, Check)> {
    let known = GENERAL.into_iter().chain(attempts::ALL);
    let known = known.chain(guards::ALL).chain(summary::ALL);
    let known = known.chain(speed::ALL);
    let known = known.filter(|_| story.known);
    known.chain(UNKNOWN.into_iter().filter(|_| !story.known))
}

const UNKNOWN: [(&str, Check); 1] = [("1 it is over before anybody knows it", unseen)];

const GENERAL: [(&str, Check); 10] = [
    ("1 one reason per node, and it never changes", one_reason),
    ("1 it is the earliest cause", earliest_cause),
    ("2 nothing after the end", nothing_after),
    ("3 upstream is dropped at once", drops::at_once),
    ("6 no clock early", no_clock_early),
    ("7 the reader's bytes are the upstream's", bytes::check),
    ("8 a ceiling is an end", ceiling),
    ("9 what was ended says so", says_so),
    ("10 nothing is left", nothing_left),
    ("completed is what the reader saw", completed_is_whole),
];

/// Of several requests of one run.
pub(crate) fn of_several(plan: &Plan, entries: &[Entry]) -> Vec<(&'static str, String)> {
    let run = |entry: &Entry| entry.reasons[0].clone();
    let mut broken = vec![];
    for pair in entries.windows(2) {
        // The id of a run that has completed may be a new run's.
        let before = run(&pair[0]).filter(|before| *before != TerminalReason::Completed);
        let after = run(&pair[1]);
        if before.is_some() && before != after {
            let why = format!("{before:?} became {after:?}");
            broken.push(("1 the run has one reason, and it never changes", why));
        }
        let asks = matches!(
            pair[1].event,
            Event::Called(..) | Event::Tried(..) | Event::Willing(..) | Event::Gave(..)
        );
        if before.is_some() && asks {
            let why = format!("{:?}", pair[1].event);
            broken.push(("2 nothing of any request after the end of the run", why));
        }
    }
    let called = |entry: &&Entry| matches!(entry.event, Event::Called(..));
    for call in 0..entries.iter().filter(called).count() {
        let dropped = |entry: &&Entry| entry.event == Event::Dropped(call);
        if entries.iter().filter(dropped).count() != 1 {
            let why = format!("call {call}");
            broken.push(("3 each upstream call is dropped once", why));
        }
    }
    let pauses = |kind: &Kind| matches!(kind, Kind::PausingTurnCap { .. });
    let never_cuts = plan.between.is_empty() && !plan.layers.iter().any(pauses);
    for entry in entries {
        // The run ends when nothing is in progress any more. A layer of the program may keep what
        // has ended.
        let was_capped = run(entry) == Some(TerminalReason::TurnCap);
        if was_capped && never_cuts && matches!(entry.event, Event::Dropped(_)) {
            let why = format!("{:?} by the cap", entry.event);
            broken.push(("2 a cap cuts nothing that it admitted", why));
        }
    }
    let last = entries.last().map(|entry| &entry.event);
    if last != Some(&Event::Gone(0, 0, 0)) {
        let why = format!("{last:?}");
        broken.push(("10 nothing is left of any request", why));
    }
    broken
}

/// Of a call that no layer inside has seen the caller is told at once, and nothing
/// is left of it.
fn unseen(plan: &Plan, story: &Story) -> Result<(), String> {
    let told = Over::Reason(TerminalReason::LoopDetected);
    let answered = story.head().is_some_and(|(_, status)| status == 422);
    if !plan.loops() || !(answered || story.over() == Some(&told)) {
        return fail(format!("{:?}", story.over()));
    }
    match story.last().event {
        Event::Gone(0, 0, 0) => Ok(()),
        ref left => fail(format!("{left:?}")),
    }
}

fn quarters(at: Duration) -> u64 {
    u64::try_from(at.as_millis()).unwrap() / 250
}

fn fail(why: impl Into<String>) -> Result<(), String> {
    Err(why.into())
}

/// Reasons only ever go from none to one, the run's is every call's, and each
/// observer is told once.
fn one_reason(plan: &Plan, story: &Story) -> Result<(), String> {
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
        if node == Node::Call && !plan.pump_sees_the_call() {
            // It may be opened after the observers were.
            continue;
        }
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
        if story.observed && noticed != expected {
            return fail(format!("{node:?}: observers saw {noticed:?}"));
        }
    }
    Ok(())
}

/// Against the model; stacks with a pump, or that try twice, are judged by the sound part alone,
/// in [`ceiling`] and [`no_clock_early`].
fn earliest_cause(plan: &Plan, story: &Story) -> Result<(), String> {
    let fails = !plan.behaviour(0).is_serving() || plan.heals > 0;
    if plan.is_pumped() || !plan.tries_once() || (fails && !plan.loops()) || !model::knows(plan) {
        return Ok(());
    }
    let Some(expected) = model::expect(plan) else {
        if plan.hold().is_some() {
            return Ok(());
        }
        return fail("the model has no end for this");
    };
    let reasons = &story.last().reasons;
    // The model knows no speed.
    if plan.holds_content()
        || reasons
            .iter()
            .flatten()
            .any(|it| *it == TerminalReason::Slow)
    {
        return Ok(());
    }
    if plan.has_caps() && (reasons.iter().flatten().any(is_cap) || plan.caps_attempts()) {
        return Ok(());
    }
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
    // Whoever lists the runs ends none that has no work, whatever of its limits has passed.
    let run = match expected.node {
        Node::Call if plan.outlives() => None,
        _ => Some(&expected.reason),
    };
    // A run that goes on may be ended later, also for what its calls failed.
    let counts = plan.first_trying().is_some() && plan.budget.limits();
    let later = plan.outlives() && (plan.action.is_some() || plan.check.is_some() || counts);
    if reasons[0].as_ref() != run && !later {
        return fail(format!("the run ended with {:?}: {expected:?}", reasons[0]));
    }
    if reasons[1].as_ref() != Some(&expected.reason) {
        return fail(format!(
            "the call ended with {:?}: {expected:?}",
            reasons[1]
        ));
    }
    // The next request of such a run hears of the limit.
    let hears = model::heard_at(plan, quarters(story.last().at));
    match story.turns.first().map(|turn| &turn.run) {
        // A second limit may pass while that request waits.
        Some([None, heard]) if hears.is_some() && !heard.as_ref().is_some_and(is_limit) => fail(
            format!("the next request heard {heard:?}, and not {hears:?}"),
        ),
        _ => Ok(()),
    }
}

/// The model counts neither tokens nor what an owner has.
fn is_cap(reason: &TerminalReason) -> bool {
    [TerminalReason::TokenCap, TerminalReason::TurnCap].contains(reason)
}

fn is_limit(reason: &TerminalReason) -> bool {
    [TerminalReason::HardCeiling, TerminalReason::CallerDeadline].contains(reason)
}

fn reason_at(story: &Story, node: Node) -> Option<Duration> {
    let seen = story
        .entries
        .iter()
        .find(|entry| entry.reasons[node as usize].is_some());
    seen.map(|entry| entry.at)
}

/// No call, no frame from the upstream, no byte but the terminal event.
fn nothing_after(plan: &Plan, story: &Story) -> Result<(), String> {
    let Some(from) = story.over_from().filter(|_| plan.pump_sees_the_call()) else {
        return Ok(());
    };
    // The frame at which a cap on tokens is reached is the caller's yet.
    let delivered = [TerminalReason::Completed, TerminalReason::TokenCap];
    let reason = story.entries[from].reasons[1].as_ref();
    let delivered = reason.is_some_and(|reason| delivered.contains(reason));
    let mut terminal = 0;
    for entry in &story.entries[from..] {
        match &entry.event {
            Event::Called(..) | Event::Tried(..) => return fail("a call started"),
            Event::Willing(..) => return fail("another try was thought of"),
            Event::Unfused => return fail("something came after the error"),
            Event::Gave(..) | Event::Pending(_) => return fail("the upstream was asked"),
            Event::Got(text) if is_terminal(text) && plan.terminal => terminal += 1,
            Event::Got(_) if delivered => {}
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

/// A limit's reason never comes before the least such limit. That a step
/// timeout comes exactly when it must is part of [`earliest_cause`].
fn no_clock_early(plan: &Plan, story: &Story) -> Result<(), String> {
    let Some(from) = story.over_from() else {
        return Ok(());
    };
    let at = quarters(story.entries[from].at);
    let least =
        |limits: &mut dyn Iterator<Item = u64>| limits.min().map_or(u64::MAX, |ticks| ticks * 4);
    let layers = || plan.layers.iter();
    let announced = plan.announces.map(|announced| match announced {
        Announced::Whole(ticks) | Announced::Head(ticks) | Announced::Silence(ticks) => ticks,
    });
    let earliest = match &story.entries[from].reasons[1] {
        // A candidate's share of any limit ends as a ceiling does.
        Some(TerminalReason::HardCeiling) => {
            let limits = &mut layers().filter_map(|kind| match kind {
                Kind::Ceiling { observes: true, .. } => None,
                Kind::Ceiling { limit, timeout, .. } if plan.shares() > 1 => {
                    let announced = announced.iter();
                    limit.iter().chain(timeout).chain(announced).min().copied()
                }
                Kind::Ceiling { limit, .. } => *limit,
                _ => None,
            });
            least(limits) / plan.shares()
        }
        Some(TerminalReason::CallerDeadline) => least(&mut layers().filter_map(|kind| {
            match kind {
                Kind::Ceiling { observes: true, .. } => None,
                Kind::Ceiling {
                    timeout, caller, ..
                } => timeout
                    .iter()
                    .chain(announced.iter().filter(|_| *caller))
                    .min()
                    .copied(),
                _ => None,
            }
        })),
        Some(TerminalReason::StepTimeout) => least(&mut layers().filter_map(|kind| match kind {
            Kind::Step {
                window,
                first,
                observes: false,
                ..
            } => Some(*window.min(first)),
            Kind::Local(every, _) => Some(2 * every),
            Kind::Gate { silence, .. } => *silence,
            _ => None,
        })),
        _ => 0,
    };
    if at < earliest {
        return fail(format!("at {at}, before {earliest}"));
    }
    // Silence began with a wait: some first Pending stands a window before it.
    if story.entries[from].reasons[1] == Some(TerminalReason::StepTimeout) && !plan.is_pumped() {
        let pending = story.entries[..from].iter().any(|entry| {
            let waits = matches!(
                entry.event,
                Event::Pending(_) | Event::Busy | Event::Refused(_)
            );
            waits && quarters(entry.at) + earliest <= at
        });
        if !pending {
            return fail("a step timeout without a wait of its length");
        }
    }
    Ok(())
}

/// While it is polled, or pumped, a ceiling is an end.
fn ceiling(plan: &Plan, story: &Story) -> Result<(), String> {
    let Some(limit) = plan.call_limit().filter(|_| plan.pump_sees_the_call()) else {
        return Ok(());
    };
    let Some(from) = story.over_from() else {
        return fail("it never ended");
    };
    if plan.is_early()
        && story.calls().count() == 0
        && gave_up(plan, story).is_some_and(|at| at <= limit * 4)
    {
        // Behind an early head the reader finds the failure when it is back.
        return Ok(());
    }
    let at = quarters(story.entries[from].at);
    let last = story.calls().count().saturating_sub(1);
    let ended = story.at(|event| match event {
        Event::Ended(call, _) | Event::Dropped(call) => *call == last,
        _ => false,
    });
    // In the instant of the limit only the transport of a complete answer is let go.
    let gave = |event: &Event| matches!(event, Event::Gave(_, Given::Terminator));
    let completed = story.last().reasons[1] == Some(TerminalReason::Completed);
    let before = limit * 4 + u64::from(completed && story.at(gave).is_some());
    if ended.is_some_and(|index| quarters(story.entries[index].at) < before) {
        // There is no upstream to end; a reader may hold the rest.
        return Ok(());
    }
    // Without a pump only a reader that asks is looked after.
    let asked_after = story.entries.iter().position(|entry| {
        quarters(entry.at) >= limit * 4 && matches!(entry.event, Event::Pending(_))
    });
    let pumped = plan
        .layers
        .first()
        .is_some_and(|kind| matches!(kind, Kind::Pump(..)));
    if (pumped || asked_after.is_some_and(|index| index < from)) && at > limit * 4 + 4 {
        let polled = asked_after.map(|index| quarters(story.entries[index].at));
        if pumped || polled.is_some_and(|polled| at > polled) {
            return fail(format!("ended at {at}, the limit being {}", limit * 4));
        }
    }
    Ok(())
}

/// When a gate at the latest gave up a call that was only refused: by its patience, or at the fourth
/// refusal, which contradicts three healthy probes.
fn gave_up(plan: &Plan, story: &Story) -> Option<u64> {
    let refused = |entry: &&Entry| matches!(entry.event, Event::Refused(_));
    let refused = story.entries.iter().filter(refused);
    let refused: Vec<_> = refused.map(|entry| quarters(entry.at)).collect();
    let patience = plan.layers.iter().filter_map(|kind| match kind {
        Kind::Gate { patience, .. } => *patience,
        _ => None,
    });
    let patience = refused.first().zip(patience.min());
    let patience = patience.map(|(first, ticks)| first + ticks * 4);
    patience.into_iter().chain(refused.get(3).copied()).min()
}

/// A reader that waits to the end of what was cut is told the reason, wherever the
/// thread stood that ended it: as an error, as an answer, or as the last event.
fn says_so(plan: &Plan, story: &Story) -> Result<(), String> {
    let from = story.over_from().filter(|_| plan.pump_sees_the_call());
    let over = story.at(|event| matches!(event, Event::Over(_)));
    let (Some(from), Some(_)) = (from, over.filter(|over| Some(*over) >= from)) else {
        return Ok(());
    };
    let [run, Some(reason)] = &story.last().reasons else {
        return Ok(());
    };
    let settled = matches!(reason.class(), ReasonClass::Success | ReasonClass::Failure);
    // What hit a budget of the run is answered as it was.
    let budgets = [TerminalReason::RetryBudget, TerminalReason::RunErrors];
    let got = story.got();
    let delivered = got.contains("[DONE]") || got.contains(ERROR_EVENT);
    if settled || budgets.contains(reason) || delivered {
        return Ok(());
    }
    // A layer outside of the one that opens the call speaks of the run.
    let told = [Some(reason), run.as_ref()]
        .into_iter()
        .flatten()
        .any(|reason| {
            let event = format!("\"code\":\"{}\"", reason.as_str());
            let answered = story.head().is_some_and(|(index, status)| {
                plan.terminal && index >= from && status == reason.status().as_u16()
            });
            answered || got.contains(&event) || story.over() == Some(&Over::Reason(reason.clone()))
        });
    if told {
        return Ok(());
    }
    fail(format!(
        "{reason:?}, and the reader was told {:?}: {got:?}",
        story.over()
    ))
}

/// No work, no task, no entry that thinks it has some.
fn nothing_left(_: &Plan, story: &Story) -> Result<(), String> {
    match story.last().event {
        Event::Gone(0, 0, 0) => {}
        ref left => return fail(format!("{left:?}")),
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
    if !plan.sse && story.got().contains("\"error\"") {
        // A healthy status: it depends on what was read before its commit.
        return Ok(());
    }
    let completed = story.last().reasons[1] == Some(TerminalReason::Completed);
    let told = match over {
        Over::Whole => {
            let got = story.got();
            let refused = story.head().is_some_and(|(_, status)| status != 200);
            refused
                || [ERROR_EVENT, "event: error\n"]
                    .iter()
                    .any(|it| got.contains(it))
        }
        _ => true,
    };
    if completed == told {
        return fail(format!("{:?} and {over:?}", story.last().reasons[1]));
    }
    Ok(())
}
