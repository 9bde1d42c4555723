//! What stands between the agents and the candidates.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tower::{BoxError, util::BoxCloneSyncService};

use crate::{
    load::secs,
    ours, plain, resilience,
    upstream::{FIRST, OutageUpstream, SECOND},
};

/// The limits of every system.
pub(crate) const ATTEMPTS: u32 = 3;
pub(crate) const ATTEMPT: Duration = secs(5);
pub(crate) const BACKOFF: Duration = Duration::from_millis(500);
pub(crate) const MAX_BACKOFF: Duration = secs(8);

/// The budgets: repeats per call that is not one, and per second in any case.
pub(crate) const RATIO: f64 = 0.2;
pub(crate) const FLOOR: u32 = 10;

/// Answers a call with an answer that was read to its end.
pub(crate) type Stack = BoxCloneSyncService<Request<Full<Bytes>>, (), BoxError>;

/// What a system is put together of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SystemShape {
    pub(crate) candidates: &'static [&'static str],
    /// Whether the agent repeats what the gateway has repeated.
    pub(crate) nested: bool,
    /// Of how many calls in the outage the first candidate fails one.
    pub(crate) one_in: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct System {
    pub(crate) name: &'static str,
    pub(crate) shape: SystemShape,
    pub(crate) start: fn(&OutageUpstream, SystemShape) -> Result<Stack, BoxError>,
}

/// A title, and the systems under it.
pub(crate) type Group = (&'static str, &'static [System]);

pub(crate) const TWO: SystemShape = SystemShape {
    candidates: &[FIRST, SECOND],
    nested: false,
    one_in: 1,
};
pub(crate) const ONE: SystemShape = SystemShape {
    candidates: &[FIRST],
    ..TWO
};
pub(crate) const NESTED: SystemShape = SystemShape {
    nested: true,
    ..ONE
};
pub(crate) const PARTLY: SystemShape = SystemShape { one_in: 3, ..ONE };

const OURS: &str = "tower-agent";
const COOLED: &str = "tower-agent, cooldowns";
const TOWER: &str = "tower, TpsBudget";
const UNLIMITED: &str = "tower, no budget";
const IN_LINE: &str = "tower, TpsBudget, no task per call";
const RESILIENCE: &str = "tower-resilience, AimdBudget";

pub(crate) const GROUPS: [Group; 4] = [
    (
        "two candidates",
        &[
            system(OURS, TWO, ours::start),
            system(COOLED, TWO, ours::start_cooled),
            system(TOWER, TWO, plain::start),
            system(IN_LINE, TWO, plain::start_in_line),
            system(UNLIMITED, TWO, plain::start_unlimited),
            system(RESILIENCE, TWO, resilience::start),
        ],
    ),
    (
        "one candidate",
        &[
            system(OURS, ONE, ours::start),
            system(TOWER, ONE, plain::start),
            system(UNLIMITED, ONE, plain::start_unlimited),
            system(RESILIENCE, ONE, resilience::start),
        ],
    ),
    (
        "one candidate, retries in retries",
        &[
            system(OURS, NESTED, ours::start),
            system(TOWER, NESTED, plain::start),
            system(UNLIMITED, NESTED, plain::start_unlimited),
            system(RESILIENCE, NESTED, resilience::start),
        ],
    ),
    (
        "one candidate, a third of it down",
        &[
            system(OURS, PARTLY, ours::start),
            system(TOWER, PARTLY, plain::start),
            system(UNLIMITED, PARTLY, plain::start_unlimited),
            system(RESILIENCE, PARTLY, resilience::start),
        ],
    ),
];

pub(crate) const fn system(
    name: &'static str,
    shape: SystemShape,
    start: fn(&OutageUpstream, SystemShape) -> Result<Stack, BoxError>,
) -> System {
    System { name, shape, start }
}

impl System {
    pub(crate) fn is_ours(&self) -> bool {
        [OURS, COOLED].contains(&self.name)
    }
}

/// Reads an answer; one that is not a success is an error.
pub(crate) async fn read<B>(answer: Response<B>) -> Result<(), BoxError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let status = answer.status();
    let body = answer.into_body().collect().await.map_err(Into::into)?;
    if !status.is_success() {
        return Err(status.to_string().into());
    }
    match body.to_bytes().ends_with(b"[DONE]\n\n") {
        true => Ok(()),
        false => Err("half an answer".into()),
    }
}
