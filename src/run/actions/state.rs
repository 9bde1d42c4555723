use std::{collections::VecDeque, sync::Arc};

use super::{
    LoopLimits, LoopPattern, LoopVerdict,
    loops::Found,
    tools::Tools,
    warnings::{Seen, Warnings},
    window::{Action, Window},
};
use crate::conversation::{Called, Event, History, Place, ToolCall, digest};

/// How many calls may wait for their results.
const OPEN: usize = 128;

/// How many calls are known by their ids.
const IDS: usize = 256;

/// How much of a tool's name is kept, in characters.
const NAME: usize = 64;

/// What a run did, as far as it is remembered.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Limits that end the run.
    limits: Option<LoopLimits>,
    /// Limits that end nothing.
    observed: Option<LoopLimits>,
    window: Window,
    warnings: Warnings,
    /// Calls of the history without a result.
    open: VecDeque<Waiting>,
    /// Calls that an answer made, and no history has repeated.
    expected: VecDeque<Waiting>,
    ids: VecDeque<u64>,
    places: VecDeque<Place>,
    tools: Tools,
    /// The last that was said is an answer without calls.
    answered: bool,
}

/// Where what a history says is new.
#[derive(Debug)]
struct Beginning {
    /// The first event that is.
    at: usize,
    /// It was added since the last request, so it is known which tools there were.
    appended: bool,
    /// From which event on the user may begin a turn; none if none is new.
    turn: Option<usize>,
    /// What stands before the first event is an answer without calls.
    answered: bool,
}

#[derive(Debug)]
struct Waiting {
    id: Option<u64>,
    name: Arc<str>,
    call: u64,
}

/// Why it is looked at what was done last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// It was done.
    Action,
    /// It was told before, and now its result is there.
    Result,
    /// Nothing was done: there are other limits.
    Limits,
}

/// What is to be done once the lock is free.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// This was done, once more or for the first time.
    Acted(u64),
    /// The user began another turn.
    Turned,
    Found(Found),
}

impl State {
    /// Smaller limits hold for what was done before, too: a layer further out may
    /// have read the request already.
    pub(super) fn limit(&mut self, limits: LoopLimits, ends: bool) -> Vec<Effect> {
        let place = match ends {
            true => &mut self.limits,
            false => &mut self.observed,
        };
        let tightened = place.map_or(limits, |there| there.tightened(limits));
        let mut effects = Vec::new();
        if place.replace(tightened) != Some(tightened) {
            self.look(News::Limits, &mut effects);
        }
        effects
    }

    pub(super) const fn places(&self) -> &VecDeque<Place> {
        &self.places
    }

    pub(super) fn expect(&mut self, calls: Vec<Called>) {
        for call in calls.into_iter().filter(|call| call.id.is_some()) {
            self.expected.retain(|known| known.id != call.id);
            bounded(&mut self.expected, OPEN, Waiting::new(&call));
        }
    }

    pub(super) fn ran(&mut self, action: Action) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.push(action, &mut effects);
        effects
    }

    pub(super) fn follow(&mut self, history: &History<'_>) -> Vec<Effect> {
        let mut effects = Vec::new();
        let events = history.latest();
        let begin = self.beginning(history, events);
        self.tools.declare(history);
        let mut answered = begin.answered;
        for (at, event) in events.iter().enumerate() {
            match event {
                Event::Call(call) if at >= begin.at => {
                    self.called(call, begin.appended, &mut effects);
                }
                Event::Result { id, result } if at >= begin.at || id.is_some() => {
                    self.answered(*id, *result, &mut effects);
                }
                Event::Said if answered && begin.turn.is_some_and(|turn| at >= turn) => {
                    self.begin_anew(&mut effects);
                }
                _ => {}
            }
            answered = *event == Event::Answered;
            let ends = |effect: &Effect| matches!(effect, Effect::Found(found) if found.verdict == LoopVerdict::Stopped);
            if effects.last().is_some_and(ends) {
                break;
            }
        }
        self.answered = answered;
        if !history.continues {
            self.places.clone_from(&history.places);
        }
        tell_once(&mut effects);
        effects
    }

    /// Where what is new begins.
    fn beginning(&self, history: &History<'_>, events: &[Event<'_>]) -> Beginning {
        if history.from.is_some() && history.from.as_ref() == self.places.back() {
            return Beginning {
                at: 0,
                appended: true,
                turn: Some(0),
                answered: self.answered,
            };
        }
        let known = |event: &Event<'_>| match event {
            Event::Call(call) => call.id.is_some_and(|id| self.ids.contains(&id)),
            _ => false,
        };
        let said = |event: &Event<'_>| *event == Event::Said;
        let known = events.iter().rposition(known);
        let last = match history.continues {
            true => known,
            false => known.or_else(|| events.iter().rposition(said)),
        };
        let behind = |last: Option<usize>| last.map_or(0, |last| last + 1);
        // The answer that it continues is not in it: it called nothing, if nothing is
        // waited for, and no result is brought.
        let continues = history.continues
            && self.open.is_empty()
            && self.expected.is_empty()
            && !events.iter().any(Event::is_of_tools);
        // Of a history that has nothing in common with the last one nobody knows
        // whose turns it shows.
        let follows = known.is_some() || history.from.is_some() || continues;
        Beginning {
            at: behind(last),
            appended: known.is_some() || history.continues,
            turn: follows.then(|| behind(known)),
            answered: continues,
        }
    }

    /// The user has answered what the model said: what it does next is for that.
    fn begin_anew(&mut self, effects: &mut Vec<Effect>) {
        self.window = Window::default();
        self.warnings = Warnings::default();
        effects.push(Effect::Turned);
    }

    fn called(&mut self, call: &ToolCall<'_>, appended: bool, effects: &mut Vec<Effect>) {
        let waiting = Waiting::new(call);
        if let Some(id) = call.id {
            self.expected.retain(|known| known.id != Some(id));
            if !self.ids.contains(&id) {
                bounded(&mut self.ids, IDS, id);
            }
        }
        let known = !appended || self.tools.may_hold(&call.name);
        let unknown = self.window.called(known, self.size());
        if !known {
            let (pattern, of) = (LoopPattern::UnknownTool, waiting.call);
            let seen = Seen {
                count: unknown,
                again: true,
            };
            self.judge(pattern, of, seen, &waiting.name, false, effects);
        }
        bounded(&mut self.open, OPEN, waiting);
    }

    fn answered(&mut self, id: Option<u64>, result: u64, effects: &mut Vec<Effect>) {
        let of = |calls: &mut VecDeque<Waiting>| {
            let place = calls.iter().position(|call| call.id == id)?;
            calls.remove(place)
        };
        let found = of(&mut self.open);
        let found = match id {
            // Its call is in no history.
            Some(_) => found.or_else(|| of(&mut self.expected)),
            None => found,
        };
        let Some(call) = found else { return };
        if let Some(id) = id.filter(|id| !self.ids.contains(id)) {
            bounded(&mut self.ids, IDS, id);
        }
        match self.window.repeated(call.call, result) {
            Some(true) => return self.look(News::Result, effects),
            Some(false) => return,
            None => {}
        }
        let action = Action {
            name: call.name,
            call: call.call,
            result: Some(result),
            told: false,
        };
        self.push(action, effects);
    }

    fn push(&mut self, action: Action, effects: &mut Vec<Effect>) {
        effects.push(Effect::Acted(action.call));
        self.window.push(action, self.size());
        self.look(News::Action, effects);
    }

    /// Looks at what the last action amounts to.
    fn look(&mut self, news: News, effects: &mut Vec<Effect>) {
        let Some(last) = self.window.last() else {
            return;
        };
        let (name, call) = (Arc::clone(&last.name), last.call);
        let counts: Vec<_> = self.window.counts().collect();
        let same = counts.iter().find(|(of, _)| *of == LoopPattern::SameCall);
        let same = same.map_or(0, |(_, count)| *count);
        for (pattern, count) in counts {
            if news == News::Result && pattern == LoopPattern::SameTool {
                continue;
            }
            let again = news != News::Limits;
            // Told as the same call with the same result, which says more.
            let told = pattern == LoopPattern::SameTool && same >= count;
            let seen = Seen { count, again };
            self.judge(pattern, call, seen, &name, told, effects);
        }
    }

    fn judge(
        &mut self,
        pattern: LoopPattern,
        call: u64,
        seen: Seen,
        tool: &Arc<str>,
        told_of: bool,
        effects: &mut Vec<Effect>,
    ) {
        let reached = |limits: Option<LoopLimits>| {
            let stop = limits.and_then(|limits| pattern.stop(&limits));
            stop.is_some_and(|stop| seen.count >= stop)
        };
        let subject = match pattern {
            LoopPattern::SameCall | LoopPattern::SameTool => call,
            // Whichever was last, it is the same loop.
            LoopPattern::PingPong | LoopPattern::UnknownTool => 0,
        };
        let mut find = |verdict, times| {
            effects.push(Effect::Found(Found {
                pattern,
                verdict,
                tool: Arc::clone(tool),
                times,
            }));
        };
        if reached(self.limits) {
            return find(LoopVerdict::Stopped, seen.count);
        }
        if self
            .warnings
            .observe(pattern, subject, reached(self.observed()))
        {
            find(LoopVerdict::Observed, seen.count);
        }
        let told = [self.limits, self.observed()].into_iter().flatten();
        if let Some(every) = told.filter_map(|limits| pattern.warn(&limits)).min() {
            let warned = self.warnings.warn(pattern, subject, seen, every);
            if let Some(times) = warned.filter(|_| !told_of) {
                find(LoopVerdict::Warned, times);
            }
        }
    }

    /// The limits that end nothing: the usual ones, if nobody set any.
    fn observed(&self) -> Option<LoopLimits> {
        match self.limits {
            None => Some(self.observed.unwrap_or(LoopLimits::DEFAULT)),
            Some(_) => self.observed,
        }
    }

    /// How many actions are remembered.
    fn size(&self) -> usize {
        let limits = [self.limits, self.observed()].into_iter().flatten();
        limits.map(LoopLimits::window).max().unwrap_or_default()
    }
}

#[cfg(test)]
impl State {
    /// How much is kept of each kind.
    pub(super) fn sizes(&self) -> [usize; 5] {
        let Self {
            open,
            expected,
            ids,
            places,
            window,
            ..
        } = self;
        [
            open.len(),
            expected.len(),
            ids.len(),
            places.len(),
            window.size(),
        ]
    }
}

impl Waiting {
    fn new(call: &ToolCall<'_>) -> Self {
        let name = String::from_utf8_lossy(&call.name);
        let readable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
        let name: String = name.chars().take(NAME).map(readable).collect();
        Self {
            id: call.id,
            name: name.into(),
            call: digest((&*call.name, call.arguments)),
        }
    }
}

/// Of one kind only the last: a request may hold hundreds.
fn tell_once(effects: &mut Vec<Effect>) {
    let mut told = Vec::new();
    let mut is_last = |effect: &Effect| match effect {
        Effect::Acted(_) | Effect::Turned => true,
        Effect::Found(found) => {
            let kind = (found.pattern, found.verdict);
            let last = !told.contains(&kind);
            if last {
                told.push(kind);
            }
            last
        }
    };
    effects.reverse();
    effects.retain(&mut is_last);
    effects.reverse();
}

fn bounded<T>(queue: &mut VecDeque<T>, most: usize, item: T) {
    if queue.len() >= most {
        queue.pop_front();
    }
    queue.push_back(item);
}
