//! From the call to its end, item by item of the upstream.

use tower_agent::TerminalReason;

use super::{Expected, Model, RUN, Sign, TICK, Wait};
use crate::tests::stacks::plan::{Ending, PATIENCE, What};

/// After how long it comes, what it is, and whether the reader does not see it.
type Item = (Option<u64>, Sign, bool);

/// How long the body of a whole answer may stay open.
const LINGER: u64 = 2 * TICK;

/// How an answer that is held goes on.
enum Held {
    /// Its head is handed on; whether it was read to its end.
    Committed(u64, bool),
    Over(Option<Expected>),
}

impl Model<'_> {
    pub(super) fn run(mut self) -> Option<Expected> {
        let plan = self.plan;
        if plan.loops() {
            // Before the request is sent on.
            return self.ended(RUN, TerminalReason::LoopDetected, 0);
        }
        let leaves = plan.reader.leaves;
        let patience = leaves
            .filter(|leave| leave.after_frames.is_none())
            .map(|leave| leave.patience.map_or(0, |patience| patience * TICK + 1))
            .unwrap_or(PATIENCE * TICK + 1);
        let upstream = plan.behaviour(0);
        let mut now = match self.wait(0, Some(upstream.head * TICK), Some(patience), Sign::Head) {
            Wait::Given(at) => at,
            Wait::Ended(level, reason, at, tied) => return self.tied(level, reason, at, tied),
            Wait::Left(at) => return self.left(at),
        };
        let mut items: Vec<Item> = upstream
            .frames
            .iter()
            .map(|piece| {
                let sign = if !plan.sse || piece.what == What::Token {
                    Sign::Content
                } else if piece.what == What::Ping {
                    Sign::Ping
                } else {
                    Sign::Life
                };
                // What is held back does not reach the reader.
                let held = plan.terminal && piece.what == What::Half;
                (Some(piece.after * TICK), sign, held)
            })
            .collect();
        let last = upstream.last * TICK;
        let terminator = if plan.sse { Sign::Life } else { Sign::Content };
        let has_terminator = matches!(
            upstream.ending,
            Ending::Done | Ending::DoneAndSilence | Ending::Finish
        );
        if has_terminator {
            items.push((Some(last), terminator, false));
        }
        let span = match upstream.ending {
            Ending::Never => None,
            // A whole answer ends, although its body stays open.
            Ending::DoneAndSilence => plan.sse.then_some(LINGER),
            _ if has_terminator => Some(0),
            _ => Some(last),
        };
        items.push((span, Sign::Nothing, false));
        let mut read = false;
        if plan.first_trying().is_some() {
            match self.hold(now, patience, &mut items) {
                Held::Committed(at, ended) => {
                    (now, read) = (at, ended);
                    if read {
                        // The layer inside has given up all that it had, and its limit with it.
                        self.clocks
                            .iter_mut()
                            .for_each(|clocks| clocks.announced = None);
                    }
                    if read && !plan.sse {
                        // It was judged in one piece.
                        items.drain(1..items.len().saturating_sub(1).max(1));
                    }
                }
                Held::Over(expected) => return expected,
            }
        }
        let count = items.len() - 1;
        let mut frames = 0;
        let mut asks = true;
        let mut patience = 0;
        for (index, item) in items.into_iter().enumerate() {
            if asks {
                let leaves = leaves.filter(|leave| leave.after_frames == Some(frames));
                patience = leaves.and_then(|leave| leave.patience).unwrap_or(PATIENCE) * TICK + 1;
                if leaves.is_some_and(|leave| leave.patience.is_none()) {
                    if read && index == count {
                        // It is known to have ended.
                        return self.ended(self.call(), TerminalReason::Completed, now);
                    }
                    return self.leaves(now, index == count && has_terminator);
                }
                now += plan.reader.away.get(frames).copied().unwrap_or(0) * TICK;
            }
            let from = now;
            let is_last = index == count;
            let (span, sign, held) = item;
            let before: Vec<u64> = self.windows.iter().map(|window| window.kept).collect();
            match self.wait(from, span, Some(patience), sign) {
                Wait::Ended(level, reason, at, mut tied) => {
                    if is_last && upstream.ending == Ending::DoneAndSilence && plan.sse {
                        // The terminator was handed on: it was delivered.
                        tied.push(TerminalReason::Completed);
                    }
                    return self.tied(level, reason, at, tied);
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
            if upstream.ending == Ending::Fail || cut {
                for (window, kept) in self.windows.iter_mut().zip(before) {
                    window.kept = kept;
                }
                return self.failed(from, now, span != Some(0));
            }
            return self.ended(self.call(), TerminalReason::Completed, now);
        }
        None
    }

    /// The answer is held, from its head on, until its first content or its end.
    /// What was held is there at once afterwards.
    fn hold(&mut self, head: u64, patience: u64, items: &mut [Item]) -> Held {
        let upstream = self.plan.behaviour(0);
        let until = self.plan.hold().map(|hold| hold * TICK);
        let last = items.len() - 1;
        let mut now = head;
        for (index, item) in items.iter_mut().enumerate() {
            let (from, (span, sign, _)) = (now, *item);
            let before: Vec<u64> = self.windows.iter().map(|window| window.kept).collect();
            let most = until.map_or(patience, |until| until.max(from).min(patience));
            match self.wait(from, span, Some(most - from), sign) {
                Wait::Given(at) => now = at,
                Wait::Ended(level, reason, at, tied) => {
                    return Held::Over(self.tied(level, reason, at, tied));
                }
                // Committed by its hold: not worked out here.
                Wait::Left(at) if at < patience => return Held::Over(None),
                Wait::Left(at) => return Held::Over(self.left(at)),
            }
            let explicit = matches!(upstream.ending, Ending::Done | Ending::DoneAndSilence);
            if index == last {
                let whole = explicit || upstream.ending == Ending::Finish;
                if upstream.ending == Ending::Fail || (self.plan.sse && !whole) {
                    for (window, kept) in self.windows.iter_mut().zip(before) {
                        window.kept = kept;
                    }
                    return Held::Over(self.failed(from, now, span != Some(0)));
                }
            }
            let later = match sign {
                Sign::Ping => Sign::Told,
                _ => Sign::Nothing,
            };
            (item.0, item.1) = (Some(0), later);
            let told = sign == Sign::Content || (explicit && index + 1 == last);
            if index == last || (self.plan.sse && told) {
                self.holds = false;
                return Held::Committed(now, index == last);
            }
        }
        Held::Over(None)
    }

    /// Like [`left`](Self::left), of an answer that may be complete.
    fn leaves(&self, at: u64, terminated: bool) -> Option<Expected> {
        if let Some((node, reason, acted)) = self.action().filter(|&(_, _, acted)| acted < at) {
            return self.ended(node, reason, acted);
        }
        let explicit = matches!(
            self.plan.behaviour(0).ending,
            Ending::Done | Ending::DoneAndSilence
        );
        if terminated && explicit && self.plan.sse {
            return self.ended(self.call(), TerminalReason::Completed, at);
        }
        self.left(at)
    }
}
