//! One situation, played in one stack.

use std::{net::SocketAddr, time::Duration};

use tokio::time::{Instant, sleep};
use tower_agent::BoxError;

use crate::{ours, plain, situations::Situation, upstream::CountingUpstream};

/// Longer than all attempts of a call together.
const AFTERWARDS: Duration = Duration::from_secs(3);

/// One stack in front of an upstream of its own.
pub(crate) struct Stage<'a> {
    situation: &'a Situation,
    upstream: CountingUpstream,
    gateway: SocketAddr,
    /// What a turn may take.
    wall_clock: Option<Duration>,
}

impl<'a> Stage<'a> {
    pub(crate) async fn set(situation: &'a Situation, ours: bool) -> Result<Self, BoxError> {
        let limits = situation.limits;
        let (upstream, address) = CountingUpstream::start(situation.does).await?;
        let gateway = if ours {
            ours::start(address, limits).await?
        } else {
            plain::start(address, limits).await?
        };
        Ok(Self {
            situation,
            upstream,
            gateway,
            // Ours knows what a step is, and limits the time between them.
            wall_clock: (!ours).then_some(limits.turn),
        })
    }

    pub(crate) async fn play(&self, client: &reqwest::Client) -> SituationOutcome {
        let begun = Instant::now();
        let caller = self.situation.caller;
        let got = caller.ask(client, self.gateway, self.wall_clock).await;
        let answered = Instant::now();
        sleep(AFTERWARDS).await;
        SituationOutcome {
            calls: self.upstream.calls(),
            took: self.upstream.last().max(answered) - begun,
            got,
        }
    }
}

/// What became of one situation in one stack.
pub(crate) struct SituationOutcome {
    pub(crate) calls: usize,
    pub(crate) took: Duration,
    pub(crate) got: String,
}
