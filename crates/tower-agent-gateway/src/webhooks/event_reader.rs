//! Reads the events of the registry, and dispatches those that webhooks are about.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio::task::yield_now;
use tower_agent::{
    Owner, RunEvent, RunEvents, RunId, RunNotice, RunRegistry, RunSnapshot, TerminalReason,
    run::{LoopPattern, RunCap},
};

use super::{Dispatcher, message::data_of_run};
use crate::config::WebhookKind;

/// How many runs are read from the registry at a time, so that the task is no burden on its thread.
const PAGE: usize = 256;

/// Dispatches the events from now on.
///
/// Events that come faster than they are read are lost here. The ends among them are read from the
/// registry, as far as it remembers the runs.
pub(super) fn read_events(
    dispatcher: Dispatcher,
    registry: RunRegistry,
) -> impl Future<Output = ()> + Send + 'static {
    let events = registry.subscribe();
    let reader = EventReader {
        read: registry.last_event(),
        dispatcher,
        registry,
        early: BTreeSet::new(),
    };
    reader.run(events)
}

struct EventReader {
    dispatcher: Dispatcher,
    registry: RunRegistry,
    /// The number of the last event that was read.
    read: u64,
    /// The numbers of the ends after that which are dispatched already.
    early: BTreeSet<u64>,
}

impl EventReader {
    async fn run(mut self, mut events: RunEvents) {
        while let Some(event) = events.next().await {
            self.hear(event).await;
        }
    }

    async fn hear(&mut self, event: RunEvent) {
        match event {
            RunEvent::Ended {
                snapshot,
                registry_sequence,
                ..
            } => {
                if !registry_sequence.is_some_and(|number| self.early.contains(&number)) {
                    self.dispatcher.ended(&snapshot);
                }
                self.has_read(registry_sequence);
            }
            RunEvent::Notice {
                run,
                owner,
                registry_sequence,
                notice,
                ..
            } => {
                self.notice(owner, &run, &notice);
                self.has_read(registry_sequence);
            }
            RunEvent::Lost { events } => {
                self.dispatcher.0.deliveries.count_missed(events);
                self.recover_ends().await;
            }
            _ => {}
        }
    }

    fn has_read(&mut self, number: Option<u64>) {
        let Some(number) = number else { return };
        self.read = number;
        self.dispatcher.has_read(number);
        while self.early.first().is_some_and(|early| *early <= number) {
            self.early.pop_first();
        }
    }

    fn notice(&self, owner: Option<Owner>, run: &RunId, notice: &RunNotice) {
        let Some(kind) = kind_of(notice) else { return };
        if !self.dispatcher.has_receiver(kind) {
            return;
        }
        let run = owner.and_then(|owner| self.registry.get(owner, run));
        if let Some(run) = run {
            self.dispatcher.notice(kind, notice, &run.snapshot());
        }
    }

    /// Dispatches the ends after the last event that was read, the newest runs first.
    async fn recover_ends(&mut self) {
        let mut after = None;
        loop {
            let page = self.registry.page(after, PAGE);
            for run in &page.runs {
                let number = run.end_sequence.filter(|number| *number > self.read);
                if number.is_some_and(|number| self.early.insert(number)) {
                    self.dispatcher.ended(run);
                }
            }
            after = page.next;
            if after.is_none() {
                return;
            }
            yield_now().await;
        }
    }
}

/// The kind of webhook for a notice; `None` for notices without one.
const fn kind_of(notice: &RunNotice) -> Option<WebhookKind> {
    match notice {
        RunNotice::NearCap { .. } => Some(WebhookKind::NearCap),
        RunNotice::Paused { .. } => Some(WebhookKind::Paused),
        RunNotice::LooksStuck { .. } | RunNotice::Loop { .. } => Some(WebhookKind::Stuck),
        _ => None,
    }
}

/// What a message says of a notice, beside the run.
fn data_of_notice(notice: &RunNotice) -> Value {
    match notice {
        RunNotice::NearCap { cap, message } => json!({
            "cap": cap,
            "message": format!("The run is near a cap: {message}."),
        }),
        RunNotice::Paused { cap, message } => json!({
            "cap": cap,
            "message": format!("The run waits for its operator: {message}."),
        }),
        RunNotice::LooksStuck { repeats } => json!({
            "cause": "repeats",
            "repeats": repeats,
            "message": format!("The run made no progress {repeats} times in a row."),
        }),
        RunNotice::Loop {
            pattern,
            verdict,
            tool,
            times,
        } => json!({
            "cause": "loop",
            "pattern": pattern,
            "verdict": verdict,
            "tool": tool,
            "times": times,
            "message": match pattern {
                LoopPattern::UnknownTool => {
                    format!("The run called unknown tools {times} times, last {tool}.")
                }
                _ => format!("The run repeated its tool calls {times} times, last {tool}."),
            },
        }),
        _ => Value::Null,
    }
}

/// What tells a notice from others of its kind about the run, at all gateways that have a part of the
/// run. `None` if it is this gateway's alone.
fn detail_of_notice(notice: &RunNotice, run: &RunSnapshot) -> Option<String> {
    match notice {
        // The message has the turns so far, which may be others at another gateway.
        RunNotice::NearCap {
            cap: RunCap::Turns, ..
        } => Some(format!("turns {:?}", run.max_turns)),
        RunNotice::NearCap { message, .. } => Some(message.clone()),
        RunNotice::Paused { cap, message } => cap.map(|_| message.clone()),
        // A run may be stuck again, in the same way.
        _ => None,
    }
}

/// What tells an end from others of the run. A gateway completes its part of a run once it is idle, though
/// the run goes on at another: the end there is another event.
fn detail_of_end(reason: &TerminalReason) -> &'static str {
    match reason {
        TerminalReason::Completed => "completed",
        _ => "",
    }
}

impl Dispatcher {
    fn ended(&self, run: &RunSnapshot) {
        let Some(reason) = &run.reason else { return };
        let (kind, detail) = (WebhookKind::Ended, detail_of_end(reason));
        let reason = reason.as_str();
        self.dispatch(kind, Some(reason), |show| {
            let mut data = data_of_run(run, self.last_candidate(run).as_deref(), show);
            data["reason"] = reason.into();
            data["message"] = run.message.clone().into();
            data["also"] = json!(run.also);
            (self.0.ids.of_run(kind, run, detail), data)
        });
    }

    fn notice(&self, kind: WebhookKind, notice: &RunNotice, run: &RunSnapshot) {
        self.dispatch(kind, None, |show| {
            let mut data = data_of_run(run, self.last_candidate(run).as_deref(), show);
            if let (Value::Object(data), Value::Object(more)) = (&mut data, data_of_notice(notice))
            {
                data.extend(more);
            }
            let id = match detail_of_notice(notice, run) {
                Some(detail) => self.0.ids.of_run(kind, run, &detail),
                None => self.0.ids.once(kind),
            };
            (id, data)
        });
    }
}

#[cfg(test)]
mod tests {
    use tower_agent::Run;

    use super::*;

    /// A gateway that takes the fifth turn says so of the same cap as one that took the fourth.
    #[test]
    fn what_tells_notices_apart_is_the_same_at_each_gateway_of_a_run() {
        let near = |cap, message: &str| RunNotice::NearCap {
            cap,
            message: message.to_owned(),
        };
        let paused = |cap| RunNotice::Paused {
            cap,
            message: "it is paused".to_owned(),
        };
        let mut run = Run::open().snapshot();
        run.max_turns = Some(5);
        let of_five = detail_of_notice(&near(RunCap::Turns, "4 of its 5 turns"), &run);
        let again = detail_of_notice(&near(RunCap::Turns, "5 of its 5 turns"), &run);
        assert_eq!(of_five, again);
        run.max_turns = Some(10);
        let of_ten = detail_of_notice(&near(RunCap::Turns, "8 of its 10 turns"), &run);
        assert_ne!(of_ten, of_five);
        let tokens = |message| detail_of_notice(&near(RunCap::Cost, message), &run);
        assert_ne!(tokens("its cost of 2"), tokens("its cost of 3"));
        assert!(detail_of_notice(&paused(Some(RunCap::Cost)), &run).is_some());
        assert_eq!(detail_of_notice(&paused(None), &run), None);
        // A receiver would drop the second one.
        let stuck = RunNotice::LooksStuck { repeats: 3 };
        assert_eq!(detail_of_notice(&stuck, &run), None);
    }

    /// A receiver would drop the abort of a run whose other part was idle.
    #[test]
    fn the_end_of_an_idle_part_is_not_that_of_the_run() {
        let of = detail_of_end;
        assert_ne!(of(&TerminalReason::Completed), of(&TerminalReason::Aborted));
        assert_eq!(of(&TerminalReason::Aborted), of(&TerminalReason::Shutdown));
    }
}
