//! The last actions of a run, and the counts of their repetitions.

use std::{collections::VecDeque, sync::Arc};

use super::pattern::{LoopLimits, LoopPattern};

/// An action of a run: a tool call with its result, if the result can be known.
#[derive(Clone, Debug)]
pub(crate) struct Action {
    pub(in crate::run) name: Arc<str>,
    /// The digest of the call's tool name and arguments.
    pub(in crate::run) call: u64,
    /// The digest of the result; `None` if the result is unknown, which equals no other result.
    pub(in crate::run) result: Option<u64>,
    /// Whether the tool itself reported the action, and no history has repeated it yet.
    pub(in crate::run) from_tool: bool,
}

/// The last actions of a run, oldest first.
#[derive(Debug, Default)]
pub(in crate::run) struct RecentCalls {
    actions: VecDeque<Action>,
    /// For each of the last calls, whether the request declared its tool.
    known: VecDeque<bool>,
}

impl RecentCalls {
    pub(in crate::run) fn push(&mut self, action: Action, size: usize) {
        push_bounded(&mut self.actions, size, action);
    }

    /// Records whether the request declared a called tool. Answers the number of recorded calls of
    /// unknown tools.
    pub(in crate::run) fn called(&mut self, known: bool, size: usize) -> u32 {
        push_bounded(&mut self.known, size, known);
        count(self.known.iter().filter(|known| !**known).count())
    }

    /// Marks an action that a tool reported as repeated by the history. Answers whether the history
    /// brings the action's result; `None` if there is no such action.
    pub(in crate::run) fn repeated(&mut self, call: u64, result: u64) -> Option<bool> {
        let mut actions = self.actions.iter_mut();
        let action = actions.find(|action| action.from_tool && action.call == call)?;
        action.from_tool = false;
        let news = action.result.is_none();
        action.result.get_or_insert(result);
        Some(news)
    }

    #[cfg(test)]
    pub(in crate::run) fn size(&self) -> usize {
        self.actions.len().max(self.known.len())
    }

    pub(in crate::run) fn last(&self) -> Option<&Action> {
        self.actions.back()
    }

    /// The count of each pattern that the last action shows. If the last result is unknown,
    /// patterns that compare results are left out.
    pub(in crate::run) fn counts(&self) -> impl Iterator<Item = (LoopPattern, u32)> {
        let known = self.last().is_some_and(|last| last.result.is_some());
        let turns = self.ping_pong();
        // A loop of two calls also repeats one call, but the loop is reported once.
        let same = Some(self.same_call()).filter(|same| *same >= turns);
        let by_result = [
            (LoopPattern::SameCall, same.unwrap_or_default()),
            (LoopPattern::PingPong, turns),
        ];
        let by_result = known.then_some(by_result).into_iter().flatten();
        by_result.chain([(LoopPattern::SameTool, self.in_a_row())])
    }

    /// Counts the actions with the last call and the same result; other calls may stand between.
    fn same_call(&self) -> u32 {
        let mut actions = self.actions.iter().rev();
        let Some(last) = actions.next().filter(|last| last.result.is_some()) else {
            return 0;
        };
        let same = actions.filter(|action| action.call == last.call);
        // A different result was progress: calls before it do not count.
        1 + count(same.take_while(|same| same.result == last.result).count())
    }

    /// Counts the last actions in which two calls alternate, each with the result it had before.
    fn ping_pong(&self) -> u32 {
        let mut last = self.actions.iter().rev();
        let (Some(first), Some(second)) = (last.next(), last.next()) else {
            return 0;
        };
        let known = first.result.is_some() && second.result.is_some();
        if first.call == second.call || !known {
            return 0;
        }
        let turns = std::iter::repeat([first, second]).flatten();
        let same = |(action, turn): &(&Action, &Action)| {
            action.call == turn.call && action.result == turn.result
        };
        let tail = self.actions.iter().rev().zip(turns).take_while(same);
        count(tail.count())
    }

    /// Counts the last actions in a row that are the same call, whatever the results.
    fn in_a_row(&self) -> u32 {
        let Some(last) = self.last() else { return 0 };
        let same = |action: &&Action| action.call == last.call;
        count(self.actions.iter().rev().take_while(same).count())
    }
}

/// Adds an item to a queue, and removes the oldest items beyond `most`.
pub(super) fn push_bounded<T>(queue: &mut VecDeque<T>, most: usize, item: T) {
    queue.push_back(item);
    while queue.len() > most {
        queue.pop_front();
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl LoopPattern {
    /// The count of this pattern at which the run ends; `None` if no limit on it is set.
    pub(in crate::run) fn stop(self, limits: &LoopLimits) -> Option<u32> {
        let limit = match self {
            Self::SameCall | Self::PingPong => limits.stop,
            Self::UnknownTool => limits.unknown_tool,
            Self::SameTool => limits.any_tool,
        };
        limit.map(std::num::NonZeroU32::get)
    }

    /// The count of this pattern at which it is reported, and the distance to further reports.
    pub(in crate::run) fn warn(self, limits: &LoopLimits) -> Option<u32> {
        let limit = match self {
            Self::SameCall | Self::PingPong | Self::SameTool => limits.warn,
            Self::UnknownTool => None,
        };
        limit.map(std::num::NonZeroU32::get)
    }
}
