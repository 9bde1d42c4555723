//! The last actions of a run, and how they repeat.

use std::{collections::VecDeque, sync::Arc};

use super::pattern::{LoopLimits, LoopPattern};

/// A tool was called, and its result is there, or will never be known.
#[derive(Clone, Debug)]
pub(crate) struct Action {
    pub(in crate::run) name: Arc<str>,
    /// Its name and arguments.
    pub(in crate::run) call: u64,
    /// None if it is not known, and then like no other.
    pub(in crate::run) result: Option<u64>,
    /// The tool itself told of it, and no history has repeated it yet.
    pub(in crate::run) told: bool,
}

/// The last actions, the oldest first.
#[derive(Debug, Default)]
pub(in crate::run) struct RecentCalls {
    actions: VecDeque<Action>,
    /// Whether each of the last calls was of a tool that there is.
    known: VecDeque<bool>,
}

impl RecentCalls {
    pub(in crate::run) fn push(&mut self, action: Action, size: usize) {
        self.actions.push_back(action);
        while self.actions.len() > size {
            self.actions.pop_front();
        }
    }

    /// A tool was called that there is, or is not. Answers how many calls there
    /// were of those that are not.
    pub(in crate::run) fn called(&mut self, known: bool, size: usize) -> u32 {
        self.known.push_back(known);
        while self.known.len() > size {
            self.known.pop_front();
        }
        count(self.known.iter().filter(|known| !**known).count())
    }

    /// A history repeats an action that its tool had told of. None if there is none;
    /// else whether its result is known only now.
    pub(in crate::run) fn repeated(&mut self, call: u64, result: u64) -> Option<bool> {
        let mut told = self.actions.iter_mut();
        let action = told.find(|action| action.told && action.call == call)?;
        action.told = false;
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

    /// How often the last action shows each pattern, as far as that is known.
    pub(in crate::run) fn counts(&self) -> impl Iterator<Item = (LoopPattern, u32)> {
        let known = self.last().is_some_and(|last| last.result.is_some());
        let turns = self.ping_pong();
        // What goes back and forth is the same twice, and told once.
        let same = Some(self.same_call()).filter(|same| *same >= turns);
        let by_result = [
            (LoopPattern::SameCall, same.unwrap_or_default()),
            (LoopPattern::PingPong, turns),
        ];
        let by_result = known.then_some(by_result).into_iter().flatten();
        by_result.chain([(LoopPattern::SameTool, self.in_a_row())])
    }

    /// The same call with the same result, whatever stands between.
    fn same_call(&self) -> u32 {
        let mut actions = self.actions.iter().rev();
        let Some(last) = actions.next().filter(|last| last.result.is_some()) else {
            return 0;
        };
        let same = actions.filter(|action| action.call == last.call);
        // Another result was a change: what was before it is another story.
        1 + count(same.take_while(|same| same.result == last.result).count())
    }

    /// Two calls in turn, each with the result it had before.
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

    /// The same call in a row, whatever came of it.
    fn in_a_row(&self) -> u32 {
        let Some(last) = self.last() else { return 0 };
        let same = |action: &&Action| action.call == last.call;
        count(self.actions.iter().rev().take_while(same).count())
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl LoopPattern {
    /// At how many the run ends.
    pub(in crate::run) fn stop(self, limits: &LoopLimits) -> Option<u32> {
        let limit = match self {
            Self::SameCall | Self::PingPong => limits.stop,
            Self::UnknownTool => limits.unknown_tool,
            Self::SameTool => limits.any_tool,
        };
        limit.map(std::num::NonZeroU32::get)
    }

    /// At how many it is told, and after how many more again.
    pub(in crate::run) fn warn(self, limits: &LoopLimits) -> Option<u32> {
        let limit = match self {
            Self::SameCall | Self::PingPong | Self::SameTool => limits.warn,
            Self::UnknownTool => None,
        };
        limit.map(std::num::NonZeroU32::get)
    }
}
