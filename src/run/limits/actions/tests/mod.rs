mod counted;
mod forgotten;
mod patterns;

use std::collections::VecDeque;

use super::{
    action_log::{ActionLog, Effect},
    loop_pattern::{LoopFinding, LoopLimits, LoopPattern, LoopVerdict},
    recent_calls::Action,
};
use crate::llm::{History, canonical, dialect::Dialect, digest};

/// An agent whose requests repeat all that it did.
#[derive(Debug, Default)]
struct Agent {
    state: ActionLog,
    messages: Vec<String>,
    tools: &'static str,
    exact: bool,
    calls: usize,
}

impl Agent {
    fn new() -> Self {
        Self::with(LoopLimits::DEFAULT)
    }

    fn with(limits: LoopLimits) -> Self {
        let mut agent = Self::unlimited();
        agent.state.limit(limits, true);
        agent
    }

    fn unlimited() -> Self {
        let mut agent = Self::default();
        agent.hears("go");
        agent
    }

    fn hears(&mut self, text: &str) {
        self.messages
            .push(format!(r#"{{"role":"user","content":"{text}"}}"#));
    }

    fn says(&mut self, text: &str) {
        self.messages
            .push(format!(r#"{{"role":"assistant","content":"{text}"}}"#));
    }

    /// One turn, and what its request amounts to.
    fn does(&mut self, name: &str, arguments: &str, result: &str) -> Vec<LoopFinding> {
        self.acts(name, arguments, result);
        self.asks()
    }

    fn acts(&mut self, name: &str, arguments: &str, result: &str) {
        self.calls += 1;
        let (id, arguments) = (self.calls, arguments.replace('"', "\\\""));
        self.messages.push(format!(
            r#"{{"role":"assistant","tool_calls":[{{"id":"c{id}","function":{{"name":"{name}","arguments":"{arguments}"}}}}]}}"#
        ));
        self.messages.push(format!(
            r#"{{"role":"tool","tool_call_id":"c{id}","content":"{result}"}}"#
        ));
    }

    fn asks(&mut self) -> Vec<LoopFinding> {
        found(self.effects())
    }

    fn effects(&mut self) -> Vec<Effect> {
        let body = format!(
            r#"{{"tools":[{}],"messages":[{}]}}"#,
            self.tools,
            self.messages.join(",")
        );
        let places = self.state.places().clone();
        let history = History::read(&Dialect::Any, body.as_bytes(), &places).unwrap();
        self.state.read_history(&history, self.exact, 0)
    }
}

fn found(effects: Vec<Effect>) -> Vec<LoopFinding> {
    let found = |effect| match effect {
        Effect::Found(found) => Some(found),
        Effect::Acted(_) | Effect::Moved => None,
    };
    effects.into_iter().filter_map(found).collect()
}

/// What was found, and at which of the turns.
fn told(
    turns: impl Iterator<Item = Vec<LoopFinding>>,
) -> Vec<(usize, LoopPattern, LoopVerdict, u32)> {
    let told = |(at, found): (usize, Vec<LoopFinding>)| {
        let of = move |found: LoopFinding| (at + 1, found.pattern, found.verdict, found.times);
        found.into_iter().map(of)
    };
    turns.enumerate().flat_map(told).collect()
}

fn seen(body: &str) -> VecDeque<crate::llm::HistoryPlace> {
    History::read(&Dialect::Any, body.as_bytes(), &VecDeque::new())
        .unwrap()
        .places
}

fn action(name: &str, arguments: &str, result: Option<&str>) -> Action {
    Action {
        name: name.into(),
        call: digest((name.as_bytes(), canonical(arguments.as_bytes()))),
        result: result.map(|result| canonical(result.as_bytes())),
        from_tool: true,
        polls: false,
        excerpt: None,
    }
}
