//! Which runs an operator means, and the order of a list of them.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use tower_agent::RunSnapshot;

/// Which runs a list shows, or an abort ends: those that fit all that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Selection {
    pub(crate) state: Option<RunPhase>,
    /// The owner as the library prints it, which is the same at all gateways.
    pub(crate) owner: Option<String>,
    pub(crate) session: Option<String>,
    pub(crate) candidate: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) older_than_ms: Option<u64>,
}

/// Whether a run is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RunPhase {
    Open,
    Ended,
}

impl Selection {
    pub(crate) fn fits(&self, run: &RunSnapshot) -> bool {
        let state = match run.reason {
            None => RunPhase::Open,
            Some(_) => RunPhase::Ended,
        };
        let is = |wanted: &Option<String>, given: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| given == Some(wanted))
        };
        let age = u64::try_from(run.elapsed.as_millis()).unwrap_or(u64::MAX);
        self.state.is_none_or(|wanted| wanted == state)
            && is(&self.session, run.session.as_deref())
            && is(&self.candidate, run.candidate.as_deref())
            && is(
                &self.reason,
                run.reason.as_ref().map(|reason| reason.as_str()),
            )
            && self.older_than_ms.is_none_or(|than| age >= than)
            && self
                .owner
                .as_ref()
                .is_none_or(|wanted| run.owner.is_some_and(|owner| owner.to_string() == *wanted))
    }
}

/// The order of a list of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RunOrder {
    /// The newest first.
    #[default]
    Started,
    /// Those without progress for the longest time first, and behind them those with nothing in flight: a
    /// run whose agent is busy with something else does not hang.
    Silent,
    /// Those that cost the most first; of those that cost the same, those with the most tokens.
    Spent,
    /// Those with the most turns first.
    Turns,
    /// Those that have been open for the longest time first.
    Oldest,
}

/// By what a row is sorted: the greatest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RowKey(f64, u64);

impl RunOrder {
    pub(crate) fn key(self, run: &RunSnapshot) -> RowKey {
        match self {
            Self::Started => RowKey(0.0, 0),
            Self::Silent => {
                let silent = run.progress.last_change_ago.unwrap_or(run.elapsed);
                let silent = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX);
                let works = run.in_flight > 0;
                RowKey(f64::from(u8::from(works)), silent)
            }
            Self::Spent => {
                let spent = run.spent.unwrap_or_default();
                let tokens = [
                    spent.input_tokens,
                    spent.cached_input_tokens,
                    spent.output_tokens,
                ];
                RowKey(spent.cost, tokens.into_iter().fold(0, u64::saturating_add))
            }
            Self::Turns => RowKey(f64::from(run.turns), 0),
            Self::Oldest => RowKey(run.elapsed.as_secs_f64(), 0),
        }
    }
}

impl RowKey {
    /// The greater key first.
    pub(crate) fn before(&self, other: &Self) -> Ordering {
        other.0.total_cmp(&self.0).then(other.1.cmp(&self.1))
    }
}
