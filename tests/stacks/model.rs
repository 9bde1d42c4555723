//! What must happen, worked out from the plan alone: no code of the crate, no
//! trace. Only for stacks without a pump, where the reader's polls are the
//! upstream's.
//!
//! Deadlines, frames and the reader's returns are on whole ticks and may
//! coincide; what outsiders do is on half ticks, and a reader leaves on quarter
//! ticks, or at once. All times here are in quarter ticks.

use tower_agent::{ResetOn, Scope, TerminalReason, upstream::FailureClass};

use crate::{
    plan::{Action, Ending, Kind, PATIENCE, Plan, What},
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
}

struct Window {
    node: Node,
    length: u64,
    step: u64,
    resets_on: ResetOn,
    kept: u64,
}

struct Model<'a> {
    plan: &'a Plan,
    clocks: [Clocks; 2],
    windows: Vec<Window>,
    content: bool,
}

/// What an item of the upstream is for the windows.
#[derive(Clone, Copy, PartialEq)]
enum Sign {
    Content,
    Life,
    Nothing,
}

/// Where a wait of the reader ends.
enum Wait {
    Given(u64),
    Ended(Node, TerminalReason, u64, Vec<TerminalReason>),
    Left(u64),
}

pub(crate) fn expect(plan: &Plan) -> Option<Expected> {
    Model::new(plan).run()
}

/// The node that the layer at `index` finds.
fn found(plan: &Plan, index: usize) -> Node {
    match plan.run_layer() {
        Some(opener) if index >= opener => Node::Call,
        _ => Node::Run,
    }
}

const fn target(found: Node, scope: Scope) -> Node {
    match scope {
        Scope::Run => Node::Run,
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
        };
        let mut model = Model {
            plan,
            clocks: [none(), none()],
            windows: vec![],
            content: false,
        };
        for (index, kind) in plan.layers.iter().enumerate() {
            let found = found(plan, index);
            match *kind {
                Kind::Ceiling {
                    limit,
                    timeout,
                    scope,
                } => {
                    let clocks = &mut model.clocks[target(found, scope) as usize];
                    clocks.ceiling = least(clocks.ceiling, limit.map(|limit| limit * TICK));
                    clocks.timeout = least(clocks.timeout, timeout.map(|timeout| timeout * TICK));
                }
                Kind::Step {
                    window,
                    first,
                    resets_on,
                    scope,
                } => model.windows.push(Window {
                    node: target(found, scope),
                    length: first * TICK,
                    step: window * TICK,
                    resets_on,
                    kept: 0,
                }),
                _ => {}
            }
        }
        model
    }

    /// The time of `[from, to]` that a pause did not take.
    fn unpaused(&self, from: u64, to: u64) -> u64 {
        let Some((begin, end)) = self.pause() else {
            return to - from;
        };
        let paused = end.min(to).saturating_sub(begin.max(from));
        to - from - paused
    }

    fn pause(&self) -> Option<(u64, u64)> {
        let (from, span) = self.plan.pause?;
        let from = from * TICK + 2;
        Some((from, from + span * TICK))
    }

    /// When a window that has `left` to go from `from` on passes.
    fn due(&self, from: u64, left: u64) -> u64 {
        let Some((begin, end)) = self.pause() else {
            return from + left;
        };
        let plain = from + left;
        if end <= from || plain < begin {
            plain
        } else {
            // It stops for the part of the pause that is still to come.
            plain + end - begin.max(from)
        }
    }

    /// The clocks that have passed at `now`, in the order of the design; `from`
    /// is when the wait began.
    fn all_passed(&self, from: u64, now: u64) -> Vec<(Node, TerminalReason)> {
        let has = |at: Option<u64>| at.is_some_and(|at| at <= now);
        let due = |window: &Window| self.due(from, window.length.saturating_sub(window.kept));
        let mut passed = Vec::new();
        for node in [Node::Run, Node::Call] {
            let clocks = &self.clocks[node as usize];
            let mut windows = self.windows.iter().filter(|window| window.node == node);
            let reasons = [
                (has(clocks.ceiling), TerminalReason::HardCeiling),
                (
                    windows.any(|window| due(window) <= now),
                    TerminalReason::StepTimeout,
                ),
                (has(clocks.timeout), TerminalReason::CallerDeadline),
            ];
            passed.extend(
                reasons
                    .into_iter()
                    .filter(|(has, _)| *has)
                    .map(|(_, reason)| (node, reason)),
            );
        }
        passed
    }

    /// The next time at which any clock passes.
    fn next_clock(&self, from: u64) -> Option<u64> {
        let absolute = self
            .clocks
            .iter()
            .flat_map(|clocks| [clocks.ceiling, clocks.timeout]);
        let windows = self
            .windows
            .iter()
            .map(|window| Some(self.due(from, window.length.saturating_sub(window.kept))));
        absolute
            .chain(windows)
            .flatten()
            .min()
            .map(|at| at.max(from))
    }

    fn action(&self) -> Option<(Node, TerminalReason, u64)> {
        let (at, action) = self.plan.action?;
        let at = at * TICK + 2;
        let call = if self.plan.run_layer().is_some() {
            Node::Call
        } else {
            Node::Run
        };
        Some(match action {
            Action::Shutdown => (Node::Run, TerminalReason::Shutdown, at),
            Action::Abort => (call, TerminalReason::Aborted, at),
        })
    }

    /// The reader waits from `from` on for something that comes after `span`.
    fn wait(&mut self, from: u64, span: Option<u64>, patience: Option<u64>, sign: Sign) -> Wait {
        if let Some((node, reason, at)) = self.action().filter(|&(_, _, at)| at < from) {
            return Wait::Ended(node, reason, at, vec![]);
        }
        if span == Some(0) {
            self.count(from, from, sign);
            return Wait::Given(from);
        }
        if self.content {
            for window in &mut self.windows {
                window.length = window.step;
            }
        }
        let given = span.map(|span| from + span);
        let clock = self.next_clock(from);
        let left = patience.map(|patience| from + patience);
        let acted = self.action().map(|(_, _, at)| at);
        let Some(first) = [given, clock, left, acted].into_iter().flatten().min() else {
            unreachable!("a reader that waits for ever");
        };
        if given == Some(first) {
            self.count(from, first, sign);
            Wait::Given(first)
        } else if clock == Some(first) {
            let mut passed = self.all_passed(from, first);
            let (node, reason) = passed.remove(0);
            let tied = passed.into_iter().map(|(_, reason)| reason);
            let mut tied: Vec<_> = tied.filter(|_| first == from).collect();
            if acted == Some(first) {
                // A window may pass as a pause ends, on a half tick: two tasks.
                tied.extend(self.action().map(|(_, reason, _)| reason));
            }
            Wait::Ended(node, reason, first, tied)
        } else if acted == Some(first) {
            let (node, reason, at) = self.action().unwrap();
            Wait::Ended(node, reason, at, vec![])
        } else {
            Wait::Left(first)
        }
    }

    fn count(&mut self, from: u64, to: u64, sign: Sign) {
        let silent = self.unpaused(from, to);
        for window in &mut self.windows {
            let resets = match window.resets_on {
                ResetOn::Content => sign == Sign::Content,
                ResetOn::AnyByte => sign != Sign::Nothing,
                _ => false,
            };
            window.kept = if resets { 0 } else { window.kept + silent };
        }
        self.content |= sign == Sign::Content;
    }

    fn ended(node: Node, reason: TerminalReason, at: u64) -> Option<Expected> {
        Some(Expected {
            node,
            reason,
            at,
            tied: vec![],
        })
    }

    /// The reader drops what it has.
    fn left(&self, at: u64) -> Option<Expected> {
        let mut layers = self.plan.layers.iter().enumerate();
        let outermost = layers.find_map(|(index, kind)| match kind {
            Kind::Disconnect(scope) => Some(target(found(self.plan, index), *scope)),
            _ => None,
        });
        match outermost {
            Some(node) => Self::ended(node, TerminalReason::ClientDisconnect, at),
            None => Self::ended(self.call(), TerminalReason::Aborted, at),
        }
    }

    fn call(&self) -> Node {
        if self.plan.run_layer().is_some() {
            Node::Call
        } else {
            Node::Run
        }
    }

    /// The upstream failed, or was cut, after a wait from `from` on.
    fn failed(&self, from: u64, at: u64, waited: bool) -> Option<Expected> {
        let mut passed = self.all_passed(if waited { from } else { at }, at);
        let failed = TerminalReason::Failed(FailureClass::Transport);
        passed.push((self.call(), failed));
        let (node, reason) = passed.remove(0);
        let tied = passed.into_iter().map(|(_, reason)| reason).collect();
        Some(Expected {
            node,
            reason,
            at,
            tied,
        })
    }

    fn run(mut self) -> Option<Expected> {
        let plan = self.plan;
        let leaves = plan.reader.leaves;
        let patience = leaves
            .filter(|leave| leave.after_frames.is_none())
            .map(|leave| leave.patience.map_or(0, |patience| patience * TICK + 1))
            .unwrap_or(PATIENCE * TICK + 1);
        let mut now = match self.wait(0, Some(plan.head * TICK), Some(patience), Sign::Life) {
            Wait::Given(at) => at,
            Wait::Ended(node, reason, at, tied) => {
                return Some(Expected {
                    node,
                    reason,
                    at,
                    tied,
                });
            }
            Wait::Left(at) => return self.left(at),
        };
        let mut items: Vec<(Option<u64>, Sign, bool)> = plan
            .frames
            .iter()
            .map(|piece| {
                let sign = if !plan.sse || piece.what == What::Token {
                    Sign::Content
                } else {
                    Sign::Life
                };
                // What is held back does not reach the reader.
                let held = plan.terminal && piece.what == What::Half;
                (Some(piece.after * TICK), sign, held)
            })
            .collect();
        let last = plan.last * TICK;
        let terminator = if plan.sse { Sign::Life } else { Sign::Content };
        let has_terminator = matches!(
            plan.ending,
            Ending::Done | Ending::DoneAndSilence | Ending::Finish
        );
        if has_terminator {
            items.push((Some(last), terminator, false));
        }
        let count = items.len();
        let span = if has_terminator { 0 } else { last };
        let silent = matches!(plan.ending, Ending::Never | Ending::DoneAndSilence);
        items.push(((!silent).then_some(span), Sign::Nothing, false));
        let mut frames = 0;
        let mut asks = true;
        let mut patience = 0;
        for (index, item) in items.into_iter().enumerate() {
            if asks {
                let leaves = leaves.filter(|leave| leave.after_frames == Some(frames));
                patience = leaves.and_then(|leave| leave.patience).unwrap_or(PATIENCE) * TICK + 1;
                if leaves.is_some_and(|leave| leave.patience.is_none()) {
                    return self.leaves(now, index == count && has_terminator);
                }
                now += plan.reader.away.get(frames).copied().unwrap_or(0) * TICK;
            }
            let from = now;
            let is_last = index == count;
            let (span, sign, held) = item;
            let before: Vec<u64> = self.windows.iter().map(|window| window.kept).collect();
            match self.wait(from, span, Some(patience), sign) {
                Wait::Ended(node, reason, at, mut tied) => {
                    if is_last && plan.ending == Ending::DoneAndSilence && plan.sse {
                        // The terminator was handed on: it was delivered.
                        tied.push(TerminalReason::Completed);
                    }
                    return Some(Expected {
                        node,
                        reason,
                        at,
                        tied,
                    });
                }
                Wait::Left(at) => return self.leaves(at, is_last && has_terminator),
                Wait::Given(at) => now = at,
            }
            if !is_last {
                asks = !held;
                if held {
                    patience -= now - from;
                } else {
                    frames += 1;
                }
                continue;
            }
            let cut = plan.sse && !has_terminator;
            if plan.ending == Ending::Fail || cut {
                for (window, kept) in self.windows.iter_mut().zip(before) {
                    window.kept = kept;
                }
                return self.failed(from, now, span != Some(0));
            }
            return Self::ended(self.call(), TerminalReason::Completed, now);
        }
        None
    }

    /// Like [`left`](Self::left), of an answer that may be complete.
    fn leaves(&self, at: u64, terminated: bool) -> Option<Expected> {
        if let Some((node, reason, acted)) = self.action().filter(|&(_, _, acted)| acted < at) {
            return Self::ended(node, reason, acted);
        }
        let explicit = matches!(self.plan.ending, Ending::Done | Ending::DoneAndSilence);
        if terminated && explicit && self.plan.sse {
            return Self::ended(self.call(), TerminalReason::Completed, at);
        }
        self.left(at)
    }
}
