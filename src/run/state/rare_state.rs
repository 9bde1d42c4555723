//! The state that only few runs need: observers, limits across calls, links to sub-agents, texts.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::broadcast;

use super::{identity::RunGuard, pauses::TurnPauses};
use crate::{
    llm::Partial,
    lock::Lock,
    run::{
        handle::{StopOnEnd, SubAgentLink},
        limits::{
            Actions, ProgressNotices, RepeatDetector, RunWindows, Shadows, SharedRun, TokenLedger,
            TurnCount,
        },
        report::{RunEvent, Trajectory, Verdict},
    },
};

/// The number of a run's events that an observer may lag behind before it loses some.
pub(crate) const EVENTS: usize = 256;

/// The interval at which a run should show a heartbeat, unless a layer sets another.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(10);

/// The rare state of one run, allocated together at the first need.
#[derive(Debug, Default)]
pub(crate) struct RareRunState {
    pub(in crate::run) repeat_detector: RepeatDetector,
    pub(in crate::run) shadows: Shadows,
    pub(in crate::run) windows: RunWindows,
    /// The longest interval of heartbeats that a layer set, in nanoseconds. An interval equal to
    /// `HEARTBEAT` does not count; 0 if no layer set another.
    pub(in crate::run) heartbeat: AtomicU64,
    /// Whether a layer outside of the attempts sets a floor on the speed of the run's streams.
    pub(in crate::run) has_floor: AtomicBool,
    pub(in crate::run) turns: Lock<TurnCount>,
    /// The pauses that hold the run's turns.
    pub(in crate::run) pauses: TurnPauses,
    /// The count of the run's tokens; unset until the count begins.
    tokens: OnceLock<Arc<TokenLedger>>,
    /// This replica's part of the run; unset unless a store was asked about the run.
    shared: OnceLock<Arc<SharedRun>>,
    /// The guard that counts the run as open for its owner. `None` if the run is not counted.
    pub(in crate::run) open: Lock<Option<Box<dyn RunGuard>>>,
    pub(in crate::run) trajectory: OnceLock<Trajectory>,
    /// The number of refused tools that the trajectory has recorded.
    pub(in crate::run) refusals: AtomicU8,
    pub(in crate::run) actions: Actions,
    pub(in crate::run) notices: Lock<Option<ProgressNotices>>,
    pub(in crate::run) partials: Lock<PartialTexts>,
    /// The latest verdict of a checker, and its time.
    pub(in crate::run) last_check: Lock<Option<Box<(Duration, Verdict)>>>,
    pub(in crate::run) observed: Lock<EventChannel>,
    /// The link to the parent of a sub-agent's run in a tree of its own.
    pub(in crate::run) above: OnceLock<SubAgentLink>,
    /// Whether the run is opened for a parent that is over, and has not ended with it yet.
    pub(crate) ends_at_birth: AtomicBool,
    /// The sub-agents that are asked to stop when the run ends.
    pub(in crate::run) stop_on_end: Lock<Vec<StopOnEnd>>,
}

/// The channel from one run to its observers.
#[derive(Debug, Default)]
pub(crate) struct EventChannel {
    /// The sender to the run's observers; `None` before the first observer, and after the end.
    pub(in crate::run) sender: Option<broadcast::Sender<RunEvent>>,
}

impl RareRunState {
    pub(in crate::run) fn heartbeat(&self) -> Duration {
        match self.heartbeat.load(Ordering::Acquire) {
            0 => HEARTBEAT,
            set => Duration::from_nanos(set),
        }
    }

    /// The count of the run's tokens, which begins now if it did not before.
    pub(in crate::run) fn tokens(&self) -> &Arc<TokenLedger> {
        self.tokens.get_or_init(Arc::default)
    }

    pub(in crate::run) fn tokens_if_any(&self) -> Option<&Arc<TokenLedger>> {
        self.tokens.get()
    }

    /// Makes the run this replica's part of a run that others may have, too.
    pub(crate) fn share(&self, part: &Arc<SharedRun>) {
        let _known = self.shared.set(Arc::clone(part));
    }

    pub(in crate::run) fn shared(&self) -> Option<&Arc<SharedRun>> {
        self.shared.get()
    }

    pub(in crate::run) fn add_stop_on_end(&self, child: StopOnEnd) {
        let mut stop_on_end = self.stop_on_end.lock();
        // Dead children are removed only when the vector would grow, so that a push has constant
        // cost on average.
        if stop_on_end.len() == stop_on_end.capacity() {
            stop_on_end.retain(|child| child.strong_count() > 0);
        }
        stop_on_end.push(child);
    }
}

impl EventChannel {
    pub(crate) const fn is_open(&self) -> bool {
        self.sender.is_some()
    }

    pub(crate) fn send(&self, event: RunEvent) {
        if let Some(sender) = &self.sender {
            // `send` fails only if no receiver is left.
            let _ = sender.send(event);
        }
    }
}

/// The texts of a run's answers, as far as they came.
#[derive(Debug, Default)]
pub(crate) struct PartialTexts {
    /// The maximum of bytes that are stored per answer; `None` stores no text.
    pub(in crate::run) max: Option<usize>,
    /// The texts of the answers that still come, in the order of their beginning.
    pub(in crate::run) live: Vec<Partial>,
    /// The text of the last answer that was cut; `None` once another answer begins.
    pub(in crate::run) cut: Option<Arc<str>>,
    /// The text of the last answer that had text and has ended, whole or cut.
    pub(in crate::run) last: Option<Arc<str>>,
}

impl PartialTexts {
    pub(in crate::run) fn latest(&self) -> Option<Arc<str>> {
        let mut live = self.live.iter().rev();
        live.find_map(Partial::read).or_else(|| self.cut.clone())
    }

    /// The text of the newest answer in progress that has text. Without such an answer, the text of
    /// the last one that had text and has ended.
    pub(in crate::run) fn last_text(&self) -> Option<Arc<str>> {
        let mut live = self.live.iter().rev();
        live.find_map(Partial::text).or_else(|| self.last.clone())
    }
}
