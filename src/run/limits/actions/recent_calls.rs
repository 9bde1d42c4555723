//! The last actions of a run, and the patterns that they show.

use std::{collections::VecDeque, sync::Arc};

use super::loop_pattern::LoopPattern;
use crate::run::report::RunAction;

/// The arguments of a call of the program's tool: their digest, and their beginning if it is kept.
#[derive(Clone, Debug)]
pub(crate) struct ToolArguments {
    pub(crate) digest: u64,
    pub(crate) excerpt: Option<Arc<str>>,
}

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
    /// Whether the program named the tool as one that polls.
    pub(in crate::run) polls: bool,
    /// The beginning of the arguments, as many bytes as the program allows; `None` by default, and
    /// for all actions but the last ten.
    pub(in crate::run) excerpt: Option<Arc<str>>,
}

/// The number of the last actions that a checker sees.
const SHOWN: usize = 10;

/// The maximum of different calls, each with its result, in a cycle.
const CYCLE: usize = 4;

/// The last actions of a run, oldest first.
#[derive(Debug, Default)]
pub(in crate::run) struct RecentCalls {
    actions: VecDeque<Action>,
    /// Whether the tool of each of the model's last calls counts as known, oldest first.
    ///
    /// A tool is unknown if the last two requests list their tools, and neither lists this one. If
    /// one of the lists is missing or cannot be compared, or if the call may be older than the last
    /// request, the tool counts as known.
    known: VecDeque<bool>,
}

impl RecentCalls {
    pub(in crate::run) fn push(&mut self, action: Action, size: usize) {
        push_bounded(&mut self.actions, size, action);
        let old = self.actions.len().checked_sub(SHOWN + 1);
        if let Some(old) = old.and_then(|old| self.actions.get_mut(old)) {
            old.excerpt = None;
        }
    }

    /// The last actions, oldest first, for a checker.
    pub(in crate::run) fn shown(&self) -> Vec<RunAction> {
        let before = self.actions.len().saturating_sub(SHOWN);
        let shown = self.actions.iter().skip(before).map(|action| RunAction {
            name: Arc::clone(&action.name),
            digest: action.call,
            excerpt: action.excerpt.clone(),
        });
        shown.collect()
    }

    /// Records whether the request declared a called tool. Returns the number of recorded calls of
    /// unknown tools.
    pub(in crate::run) fn called(&mut self, known: bool, size: usize) -> u32 {
        push_bounded(&mut self.known, size, known);
        saturating_u32(self.known.iter().filter(|known| !**known).count())
    }

    /// Finds the action that a tool of the program reported for this call of the history, so that
    /// the call is not counted twice. Returns whether the history brings a result that the tool did
    /// not report; `None` without such an action.
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

    /// The patterns that the last action shows: the count of each, and whether a polling tool is
    /// part of it.
    ///
    /// If the last result is unknown, patterns that compare results are left out; if the last tool
    /// polls, `SameTool` is left out. `SameCall` counts only the last `window` actions, unless the
    /// tool polls.
    pub(in crate::run) fn counts(
        &self,
        window: usize,
    ) -> impl Iterator<Item = (LoopPattern, u32, bool)> {
        let known = self.last().is_some_and(|last| last.result.is_some());
        let polls = self.last().is_some_and(|last| last.polls);
        let most = if polls { usize::MAX } else { window };
        let (turns, cycle) = self.rounds();
        // A loop of two calls also repeats one call, but the loop is reported once.
        let same = Some(self.same_call(most)).filter(|same| *same >= turns);
        let polled = |count: u32| {
            self.actions
                .iter()
                .rev()
                .take(count as usize)
                .any(|it| it.polls)
        };
        let by_result = [
            (LoopPattern::SameCall, same.unwrap_or_default(), polls),
            (LoopPattern::PingPong, turns, polled(turns)),
            (LoopPattern::Cycle, cycle, polled(cycle)),
        ];
        let by_result = known.then_some(by_result).into_iter().flatten();
        // For a polling tool each new result is progress.
        let in_a_row = (!polls).then(|| (LoopPattern::SameTool, self.in_a_row(), false));
        by_result.chain(in_a_row)
    }

    /// Counts how often in succession the last call had its last result. Other calls may stand
    /// between; another result of the same call ends the count.
    fn same_call(&self, most: usize) -> u32 {
        let mut actions = self.actions.iter().rev().take(most);
        let Some(last) = actions.next().filter(|last| last.result.is_some()) else {
            return 0;
        };
        let same = actions.filter(|action| action.call == last.call);
        // A different result was progress: calls before it do not count.
        1 + saturating_u32(same.take_while(|same| same.result == last.result).count())
    }

    /// Counts the last actions that are a [`PingPong`](LoopPattern::PingPong), and those that are a
    /// [`Cycle`](LoopPattern::Cycle).
    ///
    /// In a ping-pong two calls alternate, each with the result it had before. A cycle has two to
    /// four pairs of a call and its result, in any order. Each pair occurs at least twice. If its
    /// call also had another result in the cycle, the pair occurs before the last one with that
    /// result, too: else its result is new.
    fn rounds(&self) -> (u32, u32) {
        let mut pairs: Vec<(&Action, bool)> = Vec::with_capacity(CYCLE);
        let (mut turns, mut cycle) = (0, 0);
        for (at, action) in self.actions.iter().rev().enumerate() {
            let is_same = |of: &Action| (of.call, of.result) == (action.call, action.result);
            let known = pairs.iter().position(|(of, _)| is_same(of));
            match known {
                Some(known) => pairs[known].1 = true,
                None if pairs.len() < CYCLE && action.result.is_some() => {
                    let mut others = pairs.iter_mut().filter(|(of, _)| of.call == action.call);
                    if action.polls && others.next().is_some() {
                        break;
                    }
                    others.for_each(|(_, comes_again)| *comes_again = false);
                    pairs.push((action, false));
                }
                None => break,
            }
            if turns == at && known.unwrap_or(at) == at % 2 {
                turns = at + 1;
            }
            if pairs.len() > 1 && pairs.iter().all(|(_, comes_again)| *comes_again) {
                cycle = at + 1;
            }
        }
        if !matches!(&*pairs, [(one, _), (two, _), ..] if turns > 1 && one.call != two.call) {
            turns = 0;
        }
        (saturating_u32(turns), saturating_u32(cycle))
    }

    /// Counts the last actions in a row that are the same call, whatever the results.
    fn in_a_row(&self) -> u32 {
        let Some(last) = self.last() else { return 0 };
        let same = |action: &&Action| action.call == last.call;
        saturating_u32(self.actions.iter().rev().take_while(same).count())
    }
}

/// Adds an item to a queue, and removes the oldest items beyond `most`.
pub(super) fn push_bounded<T>(queue: &mut VecDeque<T>, most: usize, item: T) {
    queue.push_back(item);
    while queue.len() > most {
        queue.pop_front();
    }
}

fn saturating_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
