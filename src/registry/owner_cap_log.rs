//! What the caps of an owner refused: told now and then, however often it happens.

use std::{sync::Arc, time::Duration};

use super::{RunRegistry, owner::Owner};
use crate::run::{LimitHit, LimitKind, Run, RunId, TerminalReason};

/// There is one line of each cap in so long.
const RHYTHM: Duration = Duration::from_secs(60);

/// What one owner was refused, by cap.
#[derive(Debug, Default)]
pub(crate) struct OwnerCapLog {
    open_runs: Untold,
    turns_per_hour: Untold,
}

#[derive(Debug, Default)]
struct Untold {
    /// When it was told last.
    told: Option<Duration>,
    /// How often it happened since.
    refused: u64,
}

/// An owner is at its cap, for whoever reads it later.
#[derive(Debug, serde::Serialize)]
pub(crate) struct OwnerRefused {
    cap: &'static str,
    limit: u32,
    /// How many requests, since this was told last.
    refused: u64,
    owner: Owner,
    run: Option<RunId>,
    session: Option<Arc<str>>,
}

impl OwnerCapLog {
    /// Something was refused once more. Answers how often it was since that was told
    /// last, if it is to be told now.
    pub(crate) fn count(&mut self, cap: LimitKind, now: Duration) -> Option<u64> {
        let untold = match cap {
            LimitKind::OpenRuns(_) => &mut self.open_runs,
            LimitKind::TurnsPerHour(_) => &mut self.turns_per_hour,
            _ => return None,
        };
        untold.refused = untold.refused.saturating_add(1);
        if untold.told.is_some_and(|told| now < told + RHYTHM) {
            return None;
        }
        untold.told = Some(now);
        Some(std::mem::take(&mut untold.refused))
    }

    /// Whether something was told in this minute since the epoch, or after it.
    pub(crate) fn told_since(&self, minute: u64) -> bool {
        let told = [self.open_runs.told, self.turns_per_hour.told];
        let mut minutes = told.into_iter().flatten().map(|told| told.as_secs() / 60);
        minutes.any(|told| told >= minute)
    }
}

impl RunRegistry {
    /// An owner's cap refused a request, of a run that there is or of none: that is
    /// told once in a while. Not for who holds a lock: it calls what is the program's.
    pub(crate) fn tell_refused(&self, owner: Owner, cap: LimitHit, run: Option<&Run>) {
        let (name, limit) = match cap.measure {
            LimitKind::OpenRuns(limit) => ("max_open_runs", limit),
            LimitKind::TurnsPerHour(limit) => ("turns_per_hour", limit),
            _ => return,
        };
        let Some(refused) = self.count_owners().refused(owner, cap.measure) else {
            return;
        };
        let told = OwnerRefused {
            cap: name,
            limit,
            refused,
            owner,
            run: run.map(Run::id),
            session: run.and_then(Run::session),
        };
        tracing::warn!(
            target: "tower_agent",
            reason = TerminalReason::TurnCap.as_str(),
            cap = name,
            limit,
            refused,
            %owner,
            run = told.run.as_ref().map(tracing::field::display),
            "an owner is at its cap"
        );
        if let Some(trajectory) = self.shared.trajectory.get() {
            trajectory.refuse_owner(&told);
        }
    }
}
