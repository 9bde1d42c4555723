//! The log of a run's actions, read from its histories and answers, and the loops found in it.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use super::{
    loop_detector::{LoopDetector, ShownLoop},
    loop_pattern::{LoopFinding, LoopLimits, LoopPattern, LoopVerdict},
    pending_calls::{PendingCall, PendingCalls},
    recent_calls::{Action, RecentCalls},
};
use crate::{
    llm::{Called, ConversationEvent, History, HistoryPlace, digest, result},
    run::report::RunAction,
};

/// The remembered actions of a run, and the state of its detection of loops.
#[derive(Debug, Default)]
pub(in crate::run) struct ActionLog {
    judge: LoopDetector,
    window: RecentCalls,
    calls: PendingCalls,
    places: VecDeque<HistoryPlace>,
    tools: DeclaredTools,
    /// Whether the last event of the history was an answer without calls.
    answered: bool,
    /// The task of the run, for a checker.
    task: Option<Arc<str>>,
}

/// The place in a history at which its new events begin.
#[derive(Debug)]
struct Beginning {
    /// The index of the first new event.
    at: usize,
    /// Whether the events were added since the last request, so that their tools are known.
    appended: bool,
    /// The first index at which the user may begin a turn; `None` if there is none.
    turn: Option<usize>,
    /// Whether the event before the first one that is read is an answer without calls.
    answered: bool,
}

/// The reason for which the last action is compared with earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// The last action is new.
    Action,
    /// An action was reported before without its result, and the result is new.
    Result,
    /// The limits on loops have changed.
    Limits,
}

/// An effect of new actions or limits, which the caller applies after it released the lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// A tool that does not poll was called; the value is the digest of its name and arguments.
    Acted(u64),
    /// The run is not stuck: the user began another turn, the context was compacted, or a polling
    /// tool was called.
    Moved,
    Found(LoopFinding),
}

impl ActionLog {
    /// Tightens the limits on loops, and compares the last action with them again. An outer layer
    /// may have read the request already, so smaller limits also hold for earlier actions.
    pub(in crate::run) fn limit(&mut self, limits: LoopLimits, ends: bool) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.judge.limit(limits, ends) {
            self.compare_last_action(News::Limits, &mut effects);
        }
        effects
    }

    /// Names tools that poll, from the next action on.
    pub(in crate::run) fn add_polls(&mut self, tools: &Arc<[Box<str>]>) {
        self.judge.add_polls(tools);
    }

    /// Forgets the actions of the run, because its context was compacted.
    pub(in crate::run) fn compacted(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.begin_anew(&mut effects);
        effects
    }

    pub(in crate::run) const fn places(&self) -> &VecDeque<HistoryPlace> {
        &self.places
    }

    pub(in crate::run) fn expect(&mut self, calls: Vec<Called>) {
        self.calls.expect(calls);
    }

    pub(in crate::run) fn ran(&mut self, action: Action) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.push(action, &mut effects);
        effects
    }

    pub(in crate::run) fn set_task(&mut self, task: Option<Arc<str>>) {
        self.task = task;
    }

    /// The task and the last actions, for a checker.
    pub(in crate::run) fn shown(&self) -> (Option<Arc<str>>, Vec<RunAction>) {
        (self.task.clone(), self.window.shown())
    }

    /// Reads the new actions from a history, up to one that ends the run; also the task, if none is
    /// set. Each action and the task keep an excerpt of at most `most` bytes. With `exact`, results
    /// that differ in volatile words are different results.
    pub(in crate::run) fn read_history(
        &mut self,
        history: &History<'_>,
        exact: bool,
        most: usize,
    ) -> Vec<Effect> {
        if self.task.is_none() && most > 0 {
            self.task = history.asked(most);
        }
        let mut effects = Vec::new();
        let events = history.latest();
        let begin = self.beginning(history, events);
        self.tools.declare(history);
        let mut answered = begin.answered;
        for (at, event) in events.iter().enumerate() {
            match event {
                ConversationEvent::Call(call) if at >= begin.at => {
                    let mut waiting = PendingCall::new(call);
                    waiting.excerpt = call.excerpt(most);
                    self.called(waiting, &call.name, begin.appended, &mut effects);
                }
                ConversationEvent::Result { id, result } if at >= begin.at || id.is_some() => {
                    self.answered(*id, result, exact, &mut effects);
                }
                ConversationEvent::Said
                    if answered && begin.turn.is_some_and(|turn| at >= turn) =>
                {
                    self.begin_anew(&mut effects);
                }
                _ => {}
            }
            answered = *event == ConversationEvent::Answered;
            let ends = |effect: &Effect| matches!(effect, Effect::Found(found) if found.verdict == LoopVerdict::Stopped);
            if effects.last().is_some_and(ends) {
                break;
            }
        }
        self.answered = answered;
        if !history.continues {
            self.places.clone_from(&history.places);
        }
        dedup_findings(&mut effects);
        effects
    }

    /// Finds the place in a history from which on its events count as new.
    ///
    /// If the history was read from behind the last request's messages, all its events are new.
    /// Otherwise the new events are those behind the last call with an id that the run knows. If
    /// there is no such call, they are those behind the user's last message. Without that message,
    /// or if the provider stores the conversation, they are all events.
    fn beginning(&self, history: &History<'_>, events: &[ConversationEvent<'_>]) -> Beginning {
        if history.from.is_some() && history.from.as_ref() == self.places.back() {
            return Beginning {
                at: 0,
                appended: true,
                turn: Some(0),
                answered: self.answered,
            };
        }
        let said = |event: &ConversationEvent<'_>| *event == ConversationEvent::Said;
        let known = events.iter().rposition(|event| self.calls.knows(event));
        let last = match history.continues {
            true => known,
            false => known.or_else(|| events.iter().rposition(said)),
        };
        let behind = |last: Option<usize>| last.map_or(0, |last| last + 1);
        // A request may continue an answer that it does not contain. That answer made no calls if
        // no call waits for a result, and the request has neither calls nor results.
        let continues = history.continues
            && self.calls.is_empty()
            && !events.iter().any(ConversationEvent::is_of_tools);
        // A history that has nothing in common with the last one may belong to another run.
        let follows = known.is_some() || history.from.is_some() || continues;
        Beginning {
            at: behind(last),
            appended: known.is_some() || history.continues,
            turn: follows.then(|| behind(known)),
            answered: continues,
        }
    }

    /// Forgets all actions, at a new message of the user or a compaction of the context: the same
    /// calls may be wanted again.
    fn begin_anew(&mut self, effects: &mut Vec<Effect>) {
        self.window = RecentCalls::default();
        self.judge.begin_anew();
        effects.push(Effect::Moved);
    }

    fn called(
        &mut self,
        waiting: PendingCall,
        name: &[u8],
        appended: bool,
        effects: &mut Vec<Effect>,
    ) {
        let known = !appended || self.tools.may_hold(name);
        let unknown = self.window.called(known, self.judge.size());
        if !known {
            let shown = ShownLoop {
                pattern: LoopPattern::UnknownTool,
                call: waiting.call,
                tool: &waiting.name,
                count: unknown,
                polls: false,
                again: true,
                is_reported: false,
            };
            let report = |found| effects.push(Effect::Found(found));
            self.judge.judge(shown, report);
        }
        self.calls.show(waiting);
    }

    fn answered(
        &mut self,
        id: Option<u64>,
        written: &[u8],
        exact: bool,
        effects: &mut Vec<Effect>,
    ) {
        let Some(call) = self.calls.answer(id) else {
            return;
        };
        let result = result(written, exact);
        match self.window.repeated(call.call, result) {
            Some(true) => return self.compare_last_action(News::Result, effects),
            Some(false) => return,
            None => {}
        }
        let action = Action {
            name: call.name,
            call: call.call,
            result: Some(result),
            from_tool: false,
            polls: false,
            excerpt: call.excerpt,
        };
        self.push(action, effects);
    }

    fn push(&mut self, mut action: Action, effects: &mut Vec<Effect>) {
        action.polls = self.judge.polls(&action.name);
        effects.push(match action.polls {
            true => Effect::Moved,
            false => Effect::Acted(action.call),
        });
        self.window.push(action, self.judge.size());
        self.compare_last_action(News::Action, effects);
    }

    /// Compares the last action with the actions before it, and adds the effects to `effects`.
    fn compare_last_action(&mut self, news: News, effects: &mut Vec<Effect>) {
        let Some(last) = self.window.last() else {
            return;
        };
        let (name, call) = (Arc::clone(&last.name), last.call);
        let counts: Vec<_> = self.window.counts(self.judge.window()).collect();
        let of = |pattern| counts.iter().find(|(of, ..)| *of == pattern);
        let of = |pattern| of(pattern).map_or(0, |(_, count, _)| *count);
        let (same, turns) = (of(LoopPattern::SameCall), of(LoopPattern::PingPong));
        for &(pattern, count, polls) in &counts {
            if news == News::Result && pattern == LoopPattern::SameTool {
                continue;
            }
            let shown = ShownLoop {
                pattern,
                call,
                tool: &name,
                count,
                polls,
                again: news != News::Limits,
                is_reported: match pattern {
                    LoopPattern::Cycle => same.max(turns) >= count,
                    LoopPattern::SameTool => same >= count,
                    LoopPattern::SameCall | LoopPattern::PingPong | LoopPattern::UnknownTool => {
                        false
                    }
                },
            };
            let report = |found| effects.push(Effect::Found(found));
            self.judge.judge(shown, report);
        }
    }
}

#[cfg(test)]
impl ActionLog {
    /// The numbers of stored items: one number for each kind.
    pub(in crate::run) fn sizes(&self) -> [usize; 5] {
        let [open, expected, ids] = self.calls.sizes();
        [open, expected, ids, self.places.len(), self.window.size()]
    }
}

/// Removes all findings but the last of each kind: a request may hold hundreds.
fn dedup_findings(effects: &mut Vec<Effect>) {
    let mut kinds = HashSet::new();
    let is_last = |effect: &Effect| match effect {
        Effect::Acted(_) | Effect::Moved => true,
        Effect::Found(found) => kinds.insert((found.pattern, found.verdict)),
    };
    effects.reverse();
    effects.retain(is_last);
    effects.reverse();
}

/// The maximum of declared tools in one request up to which names are compared.
const TOOLS: usize = 1024;

/// The digests of the names of the tools that the last two requests declare. The call that a
/// request shows was made with the tools of the request before.
///
/// An entry is `None` if the run had no such request, or if the request declares no tools, too many
/// to compare, or a tool without a readable name.
#[derive(Debug, Default)]
pub(super) struct DeclaredTools([Option<Vec<u64>>; 2]);

impl DeclaredTools {
    pub(super) fn declare(&mut self, history: &History<'_>) {
        let is_known = !history.more_tools && (1..=TOOLS).contains(&history.tools.len());
        self.0.swap(0, 1);
        self.0[0] = is_known.then(|| history.tools.clone());
    }

    /// Whether one of the last two requests may declare a tool of this name.
    pub(super) fn may_hold(&self, name: &[u8]) -> bool {
        let name = digest(name);
        let mut requests = self.0.iter();
        requests.any(|names| names.as_ref().is_none_or(|names| names.contains(&name)))
    }
}
