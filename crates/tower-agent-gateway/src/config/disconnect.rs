//! `[disconnect]`: whether a call goes on after its caller has left.

use std::time::Duration;

use toml::Spanned;

use super::error::Problem;
use super::file::{DisconnectPolicy, Time};
use super::limit::Limit;

/// The default of `drain_limit`: long enough for the rest of most answers.
const DEFAULT_DRAIN: Duration = Duration::from_secs(30);

/// Resolves how long an answer is still read after its caller has left; `None` cancels it.
pub(super) fn drain(
    policy: Option<&Spanned<DisconnectPolicy>>,
    limit: Time,
) -> Result<Option<Duration>, Problem> {
    let drains = policy.is_some_and(|policy| *policy.get_ref() == DisconnectPolicy::Drain);
    let Some(span) = limit.as_ref().map(Spanned::span) else {
        return Ok(drains.then_some(DEFAULT_DRAIN));
    };
    let limit = Limit::read("disconnect.drain_limit", limit)?.or(None);
    match (drains, limit) {
        (true, Some(limit)) => Ok(Some(limit)),
        (true, None) => Err(Problem::new(
            "disconnect.drain_limit is zero: to drain nothing, write disconnect.policy = \"cancel\"",
        )
        .at(span)),
        (false, _) => Err(Problem::new(
            "disconnect.drain_limit is of no use without disconnect.policy = \"drain\"",
        )
        .at(span)),
    }
}
