//! What must hold of a floor on the speed of streams.

use std::collections::VecDeque;

use tower_agent::TerminalReason;

use super::{Check, fail, quarters};
use crate::tests::stacks::{
    plan::{Floor, Plan},
    trace::{Entry, Event, Given, Story},
};

pub(super) const ALL: [(&str, Check); 2] = [
    ("6 no stream is too slow before its floor's time", not_early),
    ("8 a stream that crawls is ended", ended),
];

/// The gaps between the content of a stream, as far as they count: when each ended, how long it was
/// in quarter ticks, and the bytes that came with it. What comes without a wait belongs to one gap.
fn gaps(plan: &Plan, entries: &[Entry], call: usize, floor: Floor) -> Vec<(usize, u64, u64)> {
    let mut gaps: Vec<(usize, u64, u64)> = vec![];
    let (mut waits, mut gap, mut began) = (None, 0, false);
    let (mut has_waited, mut counts) = (true, false);
    let bytes = 1 + call.to_string().len() as u64;
    for (index, entry) in entries.iter().enumerate() {
        let at = quarters(entry.at);
        match entry.event {
            Event::Pending(of) if of == call => {
                gap += waits.take().map_or(0, |since| unpaused(plan, since, at));
                // Behind a pause the wait begins at the next poll, and a reader may be away.
                let stands = pause(plan).is_some_and(|(begin, end)| (begin..end).contains(&at));
                waits = (!stands).then_some(at);
                has_waited = true;
            }
            Event::Gave(of, given) if of == call => {
                gap += waits.take().map_or(0, |since| unpaused(plan, since, at));
                if given != Given::Content {
                    continue;
                }
                if has_waited {
                    counts = began && gap * 8 <= floor.over * 4;
                    gaps.extend(counts.then_some((index, gap, 0)));
                }
                if let Some(last) = gaps.last_mut().filter(|_| counts) {
                    last.2 += bytes;
                }
                (gap, began, has_waited) = (0, true, false);
            }
            _ => {}
        }
    }
    gaps
}

/// When the plan's pause begins and ends.
fn pause(plan: &Plan) -> Option<(u64, u64)> {
    let (begin, span) = plan.pause?;
    let begin = begin * 4 + 2;
    Some((begin, begin + span * 4))
}

/// The time of a wait that the plan's pause did not take.
fn unpaused(plan: &Plan, from: u64, to: u64) -> u64 {
    let Some((begin, end)) = pause(plan) else {
        return to - from;
    };
    to - from - end.min(to).saturating_sub(begin.max(from))
}

/// Where the latest gaps of so many quarter ticks, or a little more, had fewer bytes than `most`.
fn below(gaps: &[(usize, u64, u64)], over: u64, most: u64) -> Option<usize> {
    let mut window = VecDeque::new();
    let (mut time, mut bytes) = (0, 0);
    for &(index, gap, more) in gaps {
        window.push_back((gap, more));
        time += gap;
        bytes += more;
        while let Some((gap, less)) = window.front().copied().filter(|it| time - it.0 >= over) {
            window.pop_front();
            time -= gap;
            bytes -= less;
        }
        if time >= over && bytes < most {
            return Some(index);
        }
    }
    None
}

/// Whether the text of the plan's answers is a stream's, and comes as the upstream sends it.
fn is_known(plan: &Plan) -> bool {
    plan.sse && !plan.is_pumped() && plan.tool.is_none() && plan.check.is_none()
}

/// A stream ended as too slow had less than the floor asks for, in the floor's time.
fn not_early(plan: &Plan, story: &Story) -> Result<(), String> {
    let reasons = &story.last().reasons;
    if !reasons
        .iter()
        .flatten()
        .any(|it| *it == TerminalReason::Slow)
    {
        return Ok(());
    }
    if !plan.sse || plan.floors().next().is_none() {
        return fail("without a stream or a floor");
    }
    if !is_known(plan) {
        return Ok(());
    }
    let crawled = plan.floors().any(|(_, floor)| {
        (0..story.calls().count()).any(|call| {
            let gaps = gaps(plan, &story.entries, call, floor);
            // The layer forgets its gaps in steps of an eighth.
            let most = floor.bytes * (floor.over + floor.over / 8);
            below(&gaps, floor.over * 4, most).is_some()
        })
    });
    if crawled {
        Ok(())
    } else {
        fail("no stream was too slow")
    }
}

/// Nothing more comes of a stream that was too slow at a place where a floor could see it.
fn ended(plan: &Plan, story: &Story) -> Result<(), String> {
    if !is_known(plan) {
        return Ok(());
    }
    let tries = plan.layers.iter().rposition(|kind| kind.tries());
    for (place, floor) in plan.floors() {
        // A layer that holds content keeps it from those further out.
        if plan.holds_content() && tries.is_some_and(|tries| place < tries) {
            continue;
        }
        for call in 0..story.calls().count() {
            let gaps = gaps(plan, &story.entries, call, floor);
            let over = floor.over * 4 + floor.over / 2;
            let Some(slow) = below(&gaps, over, floor.bytes * floor.over) else {
                continue;
            };
            let waited = |entry: &&Entry| entry.event == Event::Pending(call);
            let Some(waited) = story.entries[slow..].iter().position(|it| waited(&it)) else {
                continue;
            };
            let paused = |entry: &Entry| is_paused(plan, quarters(entry.at));
            if paused(&story.entries[slow + waited]) {
                continue;
            }
            let later = &story.entries[slow + waited..];
            let gave = |entry: &&Entry| matches!(entry.event, Event::Gave(of, _) if of == call);
            if let Some(entry) = later.iter().find(gave) {
                return fail(format!("call {call} gave more at {:?}", entry.at));
            }
        }
    }
    Ok(())
}

fn is_paused(plan: &Plan, at: u64) -> bool {
    pause(plan).is_some_and(|(begin, end)| (begin..=end).contains(&at))
}
