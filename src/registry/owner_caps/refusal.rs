//! Reports of the requests that an owner's caps refused.

use std::{sync::Arc, time::Duration};

use super::Owner;
use crate::{
    registry::RunRegistry,
    run::{LimitHit, LimitKind, Run, RunId},
};

/// The minimum time between two reports about one cap of one owner.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// A report for the trajectory: requests that an owner's cap refused.
#[derive(Debug, serde::Serialize)]
pub(crate) struct OwnerRefused {
    cap: &'static str,
    #[serde(serialize_with = "whole")]
    limit: f64,
    /// The number of requests that the cap refused since the last report.
    refused: u64,
    owner: Owner,
    run: Option<RunId>,
    session: Option<Arc<str>>,
}

/// Serializes a number without decimal places as an integer.
#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn whole<S: serde::Serializer>(limit: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if limit.fract() == 0.0 {
        serializer.serialize_u64(*limit as u64)
    } else {
        serializer.serialize_f64(*limit)
    }
}

#[derive(Debug, Default)]
pub(super) struct RefusalCount {
    /// When refusals by this cap were last reported; `None` if never.
    pub(super) reported: Option<Duration>,
    /// The number of refusals by this cap since the last report of it.
    pub(super) refused: u64,
}

impl RunRegistry {
    /// Reports a request that an owner's cap refused, at most once a minute per owner and cap.
    /// `run` is the request's call, unless its run was withdrawn. The caller must hold no lock: the
    /// method calls the program's subscriber and writer.
    pub(crate) fn report_refused(&self, owner: Owner, cap: LimitHit, run: Option<&Run>) {
        let (name, limit) = match cap.kind {
            LimitKind::OpenRuns(limit) => ("max_open_runs", limit.into()),
            LimitKind::OwnerTurns(limit, window) => (window.turns(), limit.into()),
            LimitKind::Tokens(limit) => limit.named(),
            _ => return,
        };
        let Some(refused) = self.count_owners().refused(owner, name) else {
            return;
        };
        let record = OwnerRefused {
            cap: name,
            limit,
            refused,
            owner,
            run: run.map(Run::id),
            session: run.and_then(Run::session),
        };
        tracing::warn!(
            target: "tower_agent",
            reason = cap.owner_reason().as_str(),
            cap = name,
            %limit,
            refused,
            %owner,
            run = record.run.as_ref().map(tracing::field::display),
            "owner cap exceeded"
        );
        if let Some(trajectory) = self.state.trajectory.get() {
            trajectory.refuse_owner(&cap.owner_reason(), &record);
        }
    }
}
