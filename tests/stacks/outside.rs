//! What stands outside of the stack and works on its run: a tool under the run's window, and a
//! check on demand.

use std::{convert::Infallible, future::pending, pin::pin, time::Duration};

use futures_util::future::select;
use proptest::prelude::*;
use tokio::time::sleep;
use tower::service_fn;
use tower_agent::{
    NodeKind, Run, RunSnapshot, TerminalReason, Watchdog,
    run::{Status, Verdict},
};

use crate::tests::stacks::{
    cases,
    drive::{self, HALF, ticks},
    plan::Plan,
    trace::{Entry, Event, Story, Trace},
};

/// A tool of the run, which begins on a half tick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    pub(crate) starts: u64,
    /// For ever if `None`.
    works: Option<u64>,
    /// Its own window; the run's if `None`.
    pub(crate) window: Option<u64>,
}

/// A check of the run, which begins on a half tick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Check {
    asks: u64,
    takes: u64,
    /// What the checker says.
    stuck: bool,
}

/// The longest that a check may take, and a half tick.
const LIMIT: u64 = 4;

impl Tool {
    /// When it is over by itself, or by its own window.
    pub(crate) fn over(self) -> Option<u64> {
        let spans = self.works.into_iter().chain(self.window);
        Some(self.starts + spans.min()?)
    }

    /// Whether the model knows what it does to its run: not if it is silent for the run, nor if
    /// its end counts as one of the run's errors.
    pub(crate) fn is_known(self, plan: &Plan) -> bool {
        let is_cut = self.over() != self.works.map(|works| self.starts + works);
        self.window.is_some() && !(is_cut && plan.budget.limits())
    }
}

impl Check {
    /// When its verdict ends the run.
    pub(crate) fn ends(self) -> Option<u64> {
        let ends = self.stuck && self.takes <= LIMIT;
        ends.then_some(self.asks + self.takes)
    }
}

/// The same plans, each with a tool in place of its pause, a check in place of its action, or both.
pub(crate) fn plans() -> impl Strategy<Value = Plan> {
    let span = |weight| prop::option::weighted(weight, 1..9u64);
    let tool = (0..8u64, span(0.7), span(0.8)).prop_map(|(starts, works, window)| Tool {
        starts,
        works,
        window,
    });
    let check = (0..8u64, 0..7u64, prop::bool::weighted(0.7))
        .prop_map(|(asks, takes, stuck)| Check { asks, takes, stuck });
    let outside = prop_oneof![
        2 => tool.clone().prop_map(|tool| (Some(tool), None)),
        2 => check.clone().prop_map(|check| (None, Some(check))),
        1 => (tool, check).prop_map(|(tool, check)| (Some(tool), Some(check))),
    ];
    (cases::plans(), outside).prop_map(|(plan, (tool, check))| Plan {
        pause: plan.pause.filter(|_| tool.is_none()),
        action: plan.action.filter(|_| check.is_none()),
        tool,
        check,
        ..plan
    })
}

/// Watches over the tool's work until it or the call is over.
pub(crate) async fn work(tool: Tool, trace: Trace, call: Run) {
    sleep(ticks(tool.starts) + HALF).await;
    if call.terminal_reason().is_some() {
        return;
    }
    let named = call.run().tool("t");
    let named = match tool.window {
        Some(window) => named.window(ticks(window)),
        None => named,
    };
    let watched = pin!(named.watch(async {
        match tool.works {
            Some(works) => sleep(ticks(works)).await,
            None => pending().await,
        }
    }));
    let over = async {
        let end = watched.await;
        trace.push(Event::ToolOver(end.err().map(|end| end.kind)));
    };
    select(pin!(over), pin!(call.ended())).await;
}

/// Has the run checked, and ends it if the checker says that it is stuck.
pub(crate) async fn ask(check: Check, trace: Trace, call: Run) {
    sleep(ticks(check.asks) + HALF).await;
    let status = match check.stuck {
        true => Status::Looping,
        false => Status::Working,
    };
    let checker = service_fn(move |_: RunSnapshot| async move {
        sleep(ticks(check.takes)).await;
        let reason = String::new();
        Ok::<_, Infallible>(Verdict { status, reason })
    });
    let watchdog = Watchdog::of_run(&call).checker(checker);
    let watchdog = watchdog.check_within(ticks(LIMIT) + HALF);
    let verdict = watchdog.check(&call).await;
    if verdict.is_some_and(|verdict| verdict.status == Status::Looping) {
        trace.push(Event::Acted("verdict"));
        call.run().end(TerminalReason::Stuck);
        trace.push(Event::Spread);
    }
}

/// Whether an oracle that knows of no tools holds: one without a window of its own is silent for
/// its run, as a call is.
pub(crate) fn keeps(plan: &Plan, oracle: &str) -> bool {
    oracle != "6 no clock early" || plan.tool.is_none_or(|tool| tool.window.is_some())
}

/// What must hold of the tool and of the check, beside what must of every story.
pub(crate) fn judge(plan: &Plan, story: &Story) -> Vec<(&'static str, String)> {
    type Judgement = fn(&Plan, &Story) -> Option<String>;
    let checks: [(&'static str, Judgement); 3] = [
        ("6 a tool ends at its end, or at its own window's", tool),
        ("1 a verdict ends the run at once", verdict),
        ("1 a verdict that a run works changes nothing", unchanged),
    ];
    let broken = checks.into_iter();
    broken
        .filter_map(|(oracle, check)| Some((oracle, check(plan, story)?)))
        .collect()
}

fn tool(plan: &Plan, story: &Story) -> Option<String> {
    // A run is paused while its call waits for its upstream, or for a repeat.
    let waits = |event: &Event| matches!(event, Event::Willing(..));
    if plan.heals > 0 || story.at(waits).is_some() {
        return None;
    }
    let tool = plan.tool?;
    // While an answer is drained, no tool starts.
    let starts = ticks(tool.starts) + HALF;
    let left = |entry: &Entry| entry.event == Event::Left && entry.at < starts;
    if plan.drains() > 0 && story.entries.iter().any(left) {
        return None;
    }
    let over = |entry: &Entry| match entry.event {
        Event::ToolOver(by) => Some((entry.at, by, entry.reasons[0].is_some())),
        _ => None,
    };
    let seen = story.entries.iter().find_map(over);
    let due = tool.over().map(|at| ticks(at) + HALF);
    let lives = |at: Duration| story.known && story.observed && lived(story, at);
    match (seen, due) {
        (Some((at, by, run_is_over)), due) if due != Some(at) => (!run_is_over
            || by != Some(NodeKind::Run))
        .then(|| format!("{by:?} at {at:?}: {due:?}")),
        (Some((_, by, false)), _) => {
            let by_itself = tool
                .works
                .is_some_and(|works| tool.window.is_none_or(|it| works < it));
            let by_window = tool
                .window
                .is_some_and(|it| tool.works.is_none_or(|works| it < works));
            let wrong = (by_itself && by.is_some()) || (by_window && by != Some(NodeKind::Tool));
            wrong.then(|| format!("it ended by {by:?}"))
        }
        (None, Some(due)) if lives(due) => Some(format!("it did not end at {due:?}")),
        _ => None,
    }
}

/// Whether the call still lived after this time.
fn lived(story: &Story, at: Duration) -> bool {
    let mut later = story.entries.iter().filter(|entry| entry.at > at);
    later.any(|entry| entry.reasons[1].is_none())
}

fn verdict(plan: &Plan, story: &Story) -> Option<String> {
    let due = plan.check?.ends().map(|at| ticks(at) + HALF);
    let position = story.at(|event| *event == Event::Acted("verdict"));
    let Some(position) = position.filter(|_| due.is_some()) else {
        let never = due.filter(|due| story.observed && lived(story, *due));
        return never.map(|due| format!("no verdict at {due:?}"));
    };
    let said = &story.entries[position];
    let spread = story.entries[position..]
        .iter()
        .find(|entry| entry.event == Event::Spread);
    let Some(spread) = spread else {
        return Some("the check has no end".to_owned());
    };
    let reason = &spread.reasons[0];
    let passed = [TerminalReason::HardCeiling, TerminalReason::CallerDeadline];
    let is_it = said.reasons[0].is_some()
        || *reason == Some(TerminalReason::Stuck)
        || reason
            .as_ref()
            .is_some_and(|reason| passed.contains(reason));
    (!is_it || spread.at != said.at).then(|| format!("{reason:?} at {:?}", spread.at))
}

/// The story is that of the plan without its check; beside a tool, tasks may swap their turns.
fn unchanged(plan: &Plan, story: &Story) -> Option<String> {
    plan.check
        .filter(|check| !check.stuck && plan.tool.is_none())?;
    let without = Plan {
        check: None,
        ..plan.clone()
    };
    let without = drive::run(&without);
    (without.digest() != story.digest()).then(|| format!("without it:\n{without}"))
}
