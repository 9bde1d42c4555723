//! What was to be seen in a story: the cases that matter must be among the
//! random ones.

use tower_agent::TerminalReason;

use crate::tests::stacks::{
    ledger::ledger,
    plan::{Kind, Plan},
    script::is_inserted,
    trace::{Entry, Event, Given, Story},
};

/// What must have been seen after some thousands of stories.
pub(crate) const ALL: [&str; 19] = [
    "a repeat",
    "a fallback",
    "both in one call",
    "a denial by the bucket",
    "an end in a backoff",
    "an end between candidates",
    "an end of an attempt, and another",
    "a commit by hold",
    "an error event first",
    "an answer after a failure",
    "a run that made too many errors",
    "a comment between events",
    "an early head",
    "a wait for an upstream that healed",
    "an end in a wait for the upstream",
    "a loop",
    "a run at its cap",
    "an answer that was drained",
    "an end that was told before it had spread",
];

pub(crate) fn sights(plan: &Plan, story: &Story) -> Vec<&'static str> {
    let ledger = ledger(plan, story);
    let over = story.over_from().map(|index| story.entries[index].at);
    let waits = |repeats: bool| {
        ledger.waiting.iter().any(|(layer, since)| {
            let is_repeat = matches!(plan.layers[*layer], Kind::Retry { .. });
            is_repeat == repeats && over.is_some_and(|at| at > *since)
        })
    };
    let gave = |wanted: Given| {
        let gave = |event: &Event| matches!(event, Event::Gave(_, given) if *given == wanted);
        story.at(gave)
    };
    let acted = story.at(|event| matches!(event, Event::Acted(_)));
    let called_after = |from: usize| story.calls().any(|(index, _)| index > from);
    let ended_attempt = matches!(plan.action, Some((_, super::plan::Action::Attempt)));
    let head = story
        .head()
        .filter(|(_, status)| *status == 200 && !plan.is_early());
    let stalled = |(index, _): (usize, u16)| {
        let call = story.calls().next_back().map_or(0, |(index, _)| index);
        let telling = |event: &Event| match event {
            Event::Gave(_, Given::Head | Given::Rest) => false,
            Event::Gave(..) | Event::Ended(..) => true,
            _ => false,
        };
        let mut entries = story.entries[call..index].iter();
        plan.sse && !entries.any(|entry| telling(&entry.event))
    };
    let limits = ["retry_budget_exceeded", "per_dispatch_errors_exceeded"];
    let run = story.last().reasons[0].as_ref();
    let refused = story.at(|event| matches!(event, Event::Refused(_)));
    let early = story.head().is_some_and(|(index, _)| {
        let head = |entry: &Entry| matches!(entry.event, Event::Gave(_, Given::Head));
        !story.entries[..index].iter().any(head)
    });
    let left = story.at(|event| matches!(event, Event::Left));
    let left = left.map(|index| story.entries[index].at);
    let told = story.at(|event| matches!(event, Event::Over(_)));
    let told = told.map(|index| story.entries[index].at);
    let seen = [
        ledger.repeats > 0,
        ledger.fallbacks > 0,
        ledger.repeats > 0 && ledger.fallbacks > 0,
        ledger.denials > 0,
        waits(true),
        waits(false),
        ended_attempt && acted.is_some_and(called_after),
        plan.first_trying().is_some() && head.is_some_and(stalled),
        plan.sse && gave(Given::Error).is_some(),
        story.calls().count() > 1 && head.is_some(),
        run.is_some_and(|reason| limits.contains(&reason.as_str())),
        story
            .at(|event| matches!(event, Event::Got(text) if is_inserted(text)))
            .is_some(),
        plan.is_early() && early,
        refused.is_some_and(called_after),
        refused.is_some_and(|index| !called_after(index)) && over.is_some(),
        run == Some(&TerminalReason::LoopDetected),
        story
            .turns
            .iter()
            .any(|turn| turn.run[1] == Some(TerminalReason::TurnCap)),
        left.is_some_and(|left| over.is_some_and(|over| over > left)),
        story
            .spreading()
            .zip(told)
            .is_some_and(|((stored, spread), told)| {
                over == Some(stored) && (stored..spread).contains(&told)
            }),
    ];
    let named = ALL.into_iter().zip(seen);
    named
        .filter(|(_, seen)| *seen)
        .map(|(name, _)| name)
        .collect()
}
