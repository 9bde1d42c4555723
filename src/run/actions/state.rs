use std::{collections::VecDeque, sync::Arc};

use super::{
    LoopLimits, LoopPattern, LoopVerdict,
    loops::Found,
    tools::Tools,
    warnings::Warnings,
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
}

#[derive(Debug)]
struct Waiting {
    id: Option<u64>,
    name: Arc<str>,
    call: u64,
}

/// What is to be done once the lock is free.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// This was done, once more or for the first time.
    Acted(u64),
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
            self.look(&mut effects);
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
        let begin = self.beginning(history);
        self.tools.declare(history);
        for (at, event) in history.events.iter().enumerate() {
            match event {
                Event::Call(call) if at >= begin => self.called(call, &mut effects),
                Event::Result { id, result } if at >= begin || id.is_some() => {
                    self.answered(*id, *result, &mut effects);
                }
                _ => {}
            }
            let ends = |effect: &Effect| matches!(effect, Effect::Found(found) if found.verdict == LoopVerdict::Stopped);
            if effects.last().is_some_and(ends) {
                break;
            }
        }
        if !history.continues {
            self.places.clone_from(&history.places);
        }
        effects
    }

    /// The first event that is new.
    fn beginning(&self, history: &History<'_>) -> usize {
        if history.from.is_some() && history.from.as_ref() == self.places.back() {
            return 0;
        }
        let known = |event: &Event<'_>| match event {
            Event::Call(call) => call.id.is_some_and(|id| self.ids.contains(&id)),
            _ => false,
        };
        let said = |event: &Event<'_>| *event == Event::Said;
        let last = history.events.iter().rposition(known);
        let last = match history.continues {
            true => last,
            false => last.or_else(|| history.events.iter().rposition(said)),
        };
        last.map_or(0, |last| last + 1)
    }

    fn called(&mut self, call: &ToolCall<'_>, effects: &mut Vec<Effect>) {
        let waiting = Waiting::new(call);
        if let Some(id) = call.id {
            self.expected.retain(|known| known.id != Some(id));
            if !self.ids.contains(&id) {
                bounded(&mut self.ids, IDS, id);
            }
        }
        let known = self.tools.may_hold(&call.name);
        let unknown = self.window.called(known, self.size());
        if !known {
            let (pattern, of) = (LoopPattern::UnknownTool, waiting.call);
            self.judge(pattern, of, unknown, &waiting.name, effects);
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
            Some(true) => return self.look(effects),
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
        self.look(effects);
    }

    /// Looks at what the last action amounts to.
    fn look(&mut self, effects: &mut Vec<Effect>) {
        let Some(last) = self.window.last() else {
            return;
        };
        let (name, call) = (Arc::clone(&last.name), last.call);
        let counts: Vec<_> = self.window.counts().collect();
        for (pattern, count) in counts {
            self.judge(pattern, call, count, &name, effects);
        }
    }

    fn judge(
        &mut self,
        pattern: LoopPattern,
        call: u64,
        count: u32,
        tool: &Arc<str>,
        effects: &mut Vec<Effect>,
    ) {
        let reached = |limits: Option<LoopLimits>| {
            let stop = limits.and_then(|limits| pattern.stop(&limits));
            stop.is_some_and(|stop| count >= stop)
        };
        let subject = match pattern {
            LoopPattern::SameCall => call,
            LoopPattern::SameTool => digest(&**tool),
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
        if reached(self.ending()) {
            return find(LoopVerdict::Stopped, count);
        }
        if self
            .warnings
            .observe(pattern, subject, reached(self.observed))
        {
            find(LoopVerdict::Observed, count);
        }
        let told = [self.ending(), self.observed].into_iter().flatten();
        if let Some(every) = told.filter_map(|limits| pattern.warn(&limits)).min() {
            if let Some(times) = self.warnings.warn(pattern, subject, count, every) {
                find(LoopVerdict::Warned, times);
            }
        }
    }

    /// The limits that end the run: without any layer's the usual ones, for a tool
    /// of the program's that says what it does.
    fn ending(&self) -> Option<LoopLimits> {
        match self.observed {
            None => Some(self.limits.unwrap_or(LoopLimits::DEFAULT)),
            Some(_) => self.limits,
        }
    }

    /// How many actions are remembered.
    fn size(&self) -> usize {
        let limits = [self.ending(), self.observed].into_iter().flatten();
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

fn bounded<T>(queue: &mut VecDeque<T>, most: usize, item: T) {
    if queue.len() >= most {
        queue.pop_front();
    }
    queue.push_back(item);
}
