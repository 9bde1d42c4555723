//! When the upstream is let go.

use super::fail;
use crate::tests::stacks::{
    plan::Plan,
    trace::{Event, Story},
};

/// Each call is dropped once, before the next one starts; at the end in the same
/// poll, if the reader polls, or in one turn of the scheduler with a pump.
pub(super) fn at_once(plan: &Plan, story: &Story) -> Result<(), String> {
    let mut last: Option<usize> = None;
    for (call, (started, _)) in story.calls().enumerate() {
        let mut drops = story.entries.iter().enumerate();
        let drops = drops
            .by_ref()
            .filter(|(_, it)| it.event == Event::Dropped(call));
        let drops: Vec<_> = drops.map(|(index, _)| index).collect();
        let [dropped] = drops[..] else {
            return fail(format!("call {call} was dropped {} times", drops.len()));
        };
        let overlaps = last.is_some_and(|last| match plan.is_pumped() {
            true => story.entries[last].at > story.entries[started].at,
            false => last > started,
        });
        if overlaps {
            return fail(format!("call {call} started before the last was dropped"));
        }
        last = Some(dropped);
    }
    let (Some(dropped), Some(from)) = (last, story.over_from()) else {
        return Ok(());
    };
    if dropped < from || !plan.pump_sees_the_call() {
        return Ok(());
    }
    // A reader that is away comes back first, unless there is a pump.
    let mut before = story.entries[..=from].iter().rev();
    let waiting = before.find_map(|entry| match entry.event {
        Event::Asked => Some(true),
        Event::Got(_) | Event::Head(..) => Some(false),
        _ => None,
    });
    let asked = story.entries[from..]
        .iter()
        .find(|entry| matches!(entry.event, Event::Asked | Event::Left));
    let due = match (plan.is_pumped() || waiting == Some(true), asked) {
        (true, _) | (_, None) => story.entries[from].at,
        (false, Some(asked)) => asked.at,
    };
    let at = story.entries[dropped].at;
    if at < due || at > story.heard(plan, due) {
        return fail(format!("dropped at {at:?}, not at {due:?}"));
    }
    let mut until = story.entries[from..dropped].iter();
    if until.any(|entry| matches!(entry.event, Event::Pending(_))) {
        return fail("asked before it was dropped");
    }
    Ok(())
}
