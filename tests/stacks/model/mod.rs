//! What must happen, worked out from the plan alone: no code of the crate, no
//! trace. Only for stacks without a pump, where the reader's polls are the
//! upstream's.
//!
//! Deadlines, frames and the reader's returns are on whole ticks and may
//! coincide; what outsiders do is on half ticks, and a reader leaves on quarter
//! ticks, or at once. All times here are in quarter ticks.
//!
//! Layers that may try again, but have one try each, change only that an answer
//! is held until its commit.

mod clocks;
mod course;

use tower_agent::{ResetOn, Scope, TerminalReason, llm::failure::FailureClass};

use crate::tests::stacks::{
    plan::{Announced, Kind, Plan},
    trace::Node,
};

const TICK: u64 = 4;

/// How the nodes end, and when, in quarter ticks.
#[derive(Debug, PartialEq)]
pub(crate) struct Expected {
    pub(crate) node: Node,
    pub(crate) reason: TerminalReason,
    pub(crate) at: u64,
    /// What else passed in the very instant of an error, or of a frame that
    /// interrupted a window. `STACKS_STRICT=1` does not accept it.
    pub(crate) tied: Vec<TerminalReason>,
}

struct Clocks {
    ceiling: Option<u64>,
    timeout: Option<u64>,
    /// What the caller announced, where a layer reads it whose answer is held further out.
    announced: Option<u64>,
}

impl Clocks {
    fn deadline(&self) -> Option<u64> {
        least(self.timeout, self.announced)
    }
}

struct Window {
    level: usize,
    length: u64,
    step: u64,
    resets_on: ResetOn,
    kept: u64,
    /// A layer that holds answers stands between it and the upstream.
    outside: bool,
    /// It runs once the stream has shown a heartbeat, and any byte resets it.
    alive: Option<bool>,
}

struct Model<'a> {
    plan: &'a Plan,
    /// By level: the run, the call, the attempts from the outermost on.
    clocks: Vec<Clocks>,
    windows: Vec<Window>,
    content: bool,
    opens_call: bool,
    holds: bool,
}

/// What an item of the upstream is for the windows.
#[derive(Clone, Copy, PartialEq)]
enum Sign {
    Content,
    /// Which a layer that holds answers keeps to itself.
    Head,
    Life,
    /// Like the others, and a sign that there will be more.
    Ping,
    /// A heartbeat that was held back, now handed on.
    Told,
    Nothing,
}

/// Where a wait of the reader ends.
enum Wait {
    Given(u64),
    Ended(usize, TerminalReason, u64, Vec<TerminalReason>),
    Left(u64),
}

pub(crate) fn expect(plan: &Plan) -> Option<Expected> {
    Model::new(plan).run()
}

/// Whether all of the plan can be worked out: not what an early head leaves to a
/// reader who is away, what is announced for a part of the answer, nor other frames.
pub(crate) fn knows(plan: &Plan) -> bool {
    let callers = |kind: &Kind| matches!(kind, Kind::Ceiling { caller: true, .. });
    let whole = matches!(plan.announces, None | Some(Announced::Whole(_)));
    // A tool's task sees the run's end also while the reader is away.
    let away = plan.reader.away.iter().any(|away| *away > 0);
    let tool = plan.tool.is_none_or(|tool| tool.is_known(plan) && !away);
    let frames = plan.cuts.is_empty() && plan.joins.is_empty() && !plan.json;
    // One who leaves at the last frame has all, if the body says that it was the last.
    let frames = frames && !(plan.knows_its_end && plan.reader.leaves.is_some());
    frames && tool && !plan.is_early() && (whole || !plan.layers.iter().any(callers))
}

/// Why a run that outlived its call is over for a request that comes at `at`.
pub(crate) fn heard_at(plan: &Plan, at: u64) -> Option<TerminalReason> {
    let clocks = &Model::new(plan).clocks[RUN];
    let has = |clock: Option<u64>| clock.is_some_and(|passes| passes <= at);
    let ceiling = has(clocks.ceiling).then_some(TerminalReason::HardCeiling);
    ceiling.or_else(|| has(clocks.deadline()).then_some(TerminalReason::CallerDeadline))
}

const RUN: usize = Node::Run as usize;
const CALL: usize = Node::Call as usize;

/// The level of the node that the layer at `index` finds.
fn found(plan: &Plan, index: usize) -> usize {
    let attempts = plan.layers[..index].iter().filter(|kind| kind.tries());
    match (attempts.count(), plan.run_layer()) {
        (0, Some(opener)) if index >= opener => CALL,
        (0, _) => RUN,
        (attempts, _) => CALL + attempts,
    }
}

const fn target(found: usize, scope: Scope) -> usize {
    match scope {
        Scope::Run => RUN,
        _ => found,
    }
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

impl<'a> Model<'a> {
    fn new(plan: &'a Plan) -> Self {
        let none = || Clocks {
            ceiling: None,
            timeout: None,
            announced: None,
        };
        let mut model = Model {
            plan,
            clocks: std::iter::repeat_with(none)
                .take(CALL + 1 + plan.layers.len())
                .collect(),
            windows: vec![],
            content: false,
            opens_call: plan.run_layer().is_some(),
            holds: plan.first_trying().is_some(),
        };
        for (index, kind) in plan.layers.iter().enumerate() {
            let found = found(plan, index);
            match *kind {
                Kind::Ceiling {
                    limit,
                    timeout,
                    scope,
                    observes: false,
                    caller,
                } => {
                    let whole = match plan.announces {
                        // It ends a call, never the run that outlives it.
                        _ if found == RUN && plan.outlives() => None,
                        Some(Announced::Whole(ticks)) => Some(ticks),
                        _ => None,
                    };
                    if let (true, Some(ticks)) = (caller, whole) {
                        let call = model.call();
                        let clocks = &mut model.clocks[found.min(call)];
                        // The innermost layer that tries holds the answer.
                        let held = found > call && !plan.layers[index..].iter().any(Kind::tries);
                        let clock = match held {
                            true => &mut clocks.announced,
                            false => &mut clocks.timeout,
                        };
                        *clock = least(*clock, Some(ticks * TICK));
                    }
                    let clocks = &mut model.clocks[target(found, scope)];
                    clocks.ceiling = least(clocks.ceiling, limit.map(|limit| limit * TICK));
                    clocks.timeout = least(clocks.timeout, timeout.map(|timeout| timeout * TICK));
                }
                Kind::Step {
                    window,
                    first,
                    resets_on,
                    scope,
                    observes: false,
                } => model.windows.push(Window {
                    level: target(found, scope),
                    length: first * TICK,
                    step: window * TICK,
                    resets_on,
                    kept: 0,
                    outside: plan.layers[index..].iter().any(Kind::tries),
                    alive: None,
                }),
                Kind::Local(every, scope) => model.windows.push(Window {
                    level: target(found, scope),
                    length: 2 * every * TICK,
                    step: 2 * every * TICK,
                    resets_on: ResetOn::AnyByte,
                    kept: 0,
                    outside: plan.layers[index..].iter().any(Kind::tries),
                    alive: Some(false),
                }),
                _ => {}
            }
        }
        model
    }

    /// The end of an attempt that is the last is the call's.
    fn tied(
        &self,
        level: usize,
        reason: TerminalReason,
        at: u64,
        tied: Vec<TerminalReason>,
    ) -> Option<Expected> {
        let node = match level.min(self.call()) {
            RUN => Node::Run,
            _ => Node::Call,
        };
        Some(Expected {
            node,
            reason,
            at,
            tied,
        })
    }

    fn ended(&self, level: usize, reason: TerminalReason, at: u64) -> Option<Expected> {
        self.tied(level, reason, at, vec![])
    }

    /// The reader drops what it has.
    fn left(&self, at: u64) -> Option<Expected> {
        let mut layers = self.plan.layers.iter().enumerate();
        let outermost = layers.find_map(|(index, kind)| match kind {
            Kind::Disconnect(scope) => {
                let found = found(self.plan, index);
                Some((target(found, *scope), found > CALL))
            }
            _ => None,
        });
        let (call, gone) = (self.call(), TerminalReason::ClientDisconnect);
        match outermost {
            Some((level, false)) => self.ended(level, gone, at),
            // Unless it had handed on all that there was.
            Some((RUN, true)) => self.tied(RUN, gone, at, vec![TerminalReason::Aborted]),
            // What is outside of an attempt is dropped, and knows no more.
            Some(_) => self.tied(call, TerminalReason::Aborted, at, vec![gone]),
            None => self.ended(call, TerminalReason::Aborted, at),
        }
    }

    const fn call(&self) -> usize {
        if self.opens_call { CALL } else { RUN }
    }

    /// The upstream failed, or was cut, after a wait from `from` on.
    fn failed(&self, from: u64, at: u64, waited: bool) -> Option<Expected> {
        let mut passed = self.all_passed(if waited { from } else { at }, at);
        let failed = TerminalReason::Failed(FailureClass::Transport);
        passed.push((self.call(), failed));
        let (level, reason) = passed.remove(0);
        let tied = passed.into_iter().map(|(_, reason)| reason).collect();
        self.tied(level, reason, at, tied)
    }
}
