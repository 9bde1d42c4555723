//! The routes that let a run wait, let it go on, and raise its caps.

use std::time::Duration;

use axum::{
    Json,
    body::Bytes,
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tower_agent::{Owner, Run, RunExtension, run::RunAdjustments};

use super::{
    Watched,
    replicas::{OwnerDigest, Reached},
    runs::{Refusal, bad, parse, unknown_to_operator},
};

/// What an operator changes about a run that goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Adjustment {
    Pause,
    Resume,
    Extend {
        turns: Option<u32>,
        tokens: Option<u64>,
        cost: Option<f64>,
        time_ms: Option<u64>,
    },
    /// Raises the limits until what was added comes to these sums. A gateway may have them from the store
    /// already, where another `Extend` would count twice.
    ExtendTo(Vec<AddedToRun>),
}

/// How many runs of an id there are, and how many of them the adjustment changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Adjusted {
    pub(crate) runs: usize,
    pub(crate) changed: usize,
    /// What was added so far to the runs that an [`Extend`](Adjustment::Extend) changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) added: Vec<AddedToRun>,
}

/// What was added to the limits of the run of an owner so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AddedToRun {
    pub(crate) owner: OwnerDigest,
    turns: u32,
    output_tokens: u64,
    total_tokens: u64,
    cost: f64,
    time_us: u64,
}

impl AddedToRun {
    fn of(run: &Run) -> Self {
        let sums = run.adjustments();
        Self {
            owner: run.owner().unwrap_or_default().into(),
            turns: sums.turns,
            output_tokens: sums.output_tokens,
            total_tokens: sums.total_tokens,
            // JSON has no infinite number.
            cost: sums.cost.min(f64::MAX),
            time_us: u64::try_from(sums.time.as_micros()).unwrap_or(u64::MAX),
        }
    }

    fn sums(&self) -> RunAdjustments {
        let mut sums = RunAdjustments::default();
        sums.turns = self.turns;
        sums.output_tokens = self.output_tokens;
        sums.total_tokens = self.total_tokens;
        // Another program may have asked.
        sums.cost = self.cost.max(0.0);
        sums.time = Duration::from_micros(self.time_us);
        sums
    }
}

impl Adjusted {
    /// Adds those of another gateway.
    pub(crate) fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.changed += other.changed;
        self.added.extend(other.added);
    }
}

/// The body of an extension.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ExtendRequest {
    turns: Option<u32>,
    tokens: Option<u64>,
    cost: Option<f64>,
    time: Option<String>,
    why: Option<String>,
}

/// Holds the turns of the runs of this id, of all owners and at all gateways.
pub(crate) async fn pause(
    State(watched): State<Watched>,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    adjust(&watched, &id, Adjustment::Pause, "paused").await
}

/// Lets the turns go on that a pause by hand holds.
pub(crate) async fn resume(
    State(watched): State<Watched>,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    adjust(&watched, &id, Adjustment::Resume, "resumed").await
}

/// Raises the caps of the runs of this id; a run that is paused at a cap goes on.
pub(crate) async fn extend(
    State(watched): State<Watched>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let request: ExtendRequest = serde_json::from_slice(&body).map_err(bad)?;
    let by = request.adjustment().map_err(bad)?;
    let why = request.why.as_deref().unwrap_or_default();
    tracing::info!(run = id, ?by, why, "caps raised by the operator");
    adjust(&watched, &id, by, "extended").await
}

impl ExtendRequest {
    fn adjustment(&self) -> Result<Adjustment, String> {
        let time = self.time.as_deref().map(humantime::parse_duration);
        let time = time
            .transpose()
            .map_err(|error| format!("time: not a duration such as \"10m\": {error}"))?;
        let cost = self.cost;
        if cost.is_some_and(|cost| !(cost > 0.0 && cost.is_finite())) {
            return Err("cost: not a number above 0".to_owned());
        }
        let is_nothing = [
            self.turns.is_none_or(|turns| turns == 0),
            self.tokens.is_none_or(|tokens| tokens == 0),
            cost.is_none(),
            time.is_none_or(|time| time.is_zero()),
        ];
        if is_nothing.into_iter().all(|it| it) {
            return Err("name what to add: `turns`, `tokens`, `cost` or `time`".to_owned());
        }
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Ok(Adjustment::Extend {
            turns: self.turns,
            tokens: self.tokens,
            cost,
            time_ms: time.map(millis),
        })
    }
}

async fn adjust(
    watched: &Watched,
    id: &str,
    by: Adjustment,
    done: &str,
) -> Result<Response, Refusal> {
    let id = parse(id)?;
    let mut adjusted = by.carry_out(watched.registry.find(&id).iter());
    let mut reached = Reached::Alone;
    if let Some(others) = watched.others() {
        let (elsewhere, asked) = match by {
            Adjustment::Extend { .. } => others.extend(&id, by, adjusted.added.clone()).await,
            by => others.adjust(&id, by, None).await,
        };
        adjusted.add(elsewhere);
        reached = asked;
    }
    if adjusted.runs == 0 {
        return Err(unknown_to_operator(&id, &reached));
    }
    let mut answer = json!({ done: adjusted.changed > 0 });
    reached.tell_operator(&mut answer);
    Ok(Json(answer).into_response())
}

impl Adjustment {
    /// Changes these runs.
    pub(crate) fn carry_out<'a>(&self, runs: impl Iterator<Item = &'a Run>) -> Adjusted {
        let mut adjusted = Adjusted::default();
        for run in runs {
            adjusted.runs += 1;
            let is_changed = self.change(run);
            adjusted.changed += usize::from(is_changed);
            if is_changed && matches!(self, Self::Extend { .. }) {
                adjusted.added.push(AddedToRun::of(run));
            }
        }
        adjusted
    }

    fn change(&self, run: &Run) -> bool {
        match self {
            Self::Pause => run.suspend(),
            Self::Resume => run.resume(),
            Self::ExtendTo(added) => {
                let owner = run.owner().unwrap_or_default();
                let mut added = added.iter();
                let added = added.find(|it| Owner::from(it.owner.clone()) == owner);
                added.is_some_and(|added| run.adjust_to(&added.sums()).is_ok())
            }
            &Self::Extend {
                turns,
                tokens,
                cost,
                time_ms,
            } => {
                let mut by = RunExtension::new();
                if let Some(turns) = turns {
                    by = by.turns(turns);
                }
                if let Some(tokens) = tokens {
                    by = by.tokens(tokens);
                }
                // Another gateway may have asked.
                if let Some(cost) = cost.filter(|cost| *cost >= 0.0 && cost.is_finite()) {
                    by = by.cost(cost);
                }
                if let Some(time) = time_ms {
                    by = by.time(Duration::from_millis(time));
                }
                run.extend(by).is_ok()
            }
        }
    }
}
