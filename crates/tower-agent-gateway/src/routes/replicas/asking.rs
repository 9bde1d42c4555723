//! What this gateway asks others.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use tokio::sync::broadcast;
use tower_agent::{Owner, RunId};

use super::question::{
    CompletionAnswer, ControlAnswer, ControlQuestion, FoundRun, OwnerDigest, read, write,
};
use crate::{
    routes::{
        adjust::{AddedToRun, Adjusted, Adjustment},
        health::LOST,
        selection::Selection,
    },
    runs::SharedStore,
};

/// How long an answer waits for other gateways that are silent.
const WAIT: Duration = Duration::from_millis(500);

/// The other gateways.
#[derive(Clone, Debug)]
pub(crate) struct OtherGateways(SharedStore);

/// How far a question came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// There are no other gateways.
    Alone,
    /// Of so many gateways, this one included, these are silent.
    Gateways {
        replicas: usize,
        missing: Vec<String>,
    },
    /// The store does not answer.
    Lost,
}

/// The answers of the others that answered.
#[derive(Debug)]
pub(crate) struct AnswersElsewhere<A> {
    /// The name of this gateway among them.
    pub(crate) own: String,
    pub(crate) answers: Vec<AnswerElsewhere<A>>,
    pub(crate) reached: Reached,
}

/// The answer of a gateway.
#[derive(Debug)]
pub(crate) struct AnswerElsewhere<A> {
    /// The name of the gateway.
    pub(crate) replica: String,
    /// Its id in the store.
    pub(crate) id: String,
    pub(crate) answer: A,
}

impl OtherGateways {
    pub(crate) const fn new(peers: SharedStore) -> Self {
        Self(peers)
    }

    /// The id of this gateway in the store.
    pub(crate) fn own_id(&self) -> &str {
        self.0.store.replica_id()
    }

    /// The ids of the runs that others told the end of, from now on.
    pub(crate) fn ends(&self) -> broadcast::Receiver<RunId> {
        self.0.ends.subscribe()
    }

    /// Lets those look that wait for the end of this run.
    pub(crate) fn has_ended(&self, id: &RunId) {
        // Nobody may wait.
        let _none = self.0.ends.send(id.clone());
    }

    /// Asks all others, and keeps the answers that `is_it` takes: a gateway with another answer counts
    /// as silent. Takes 550 ms at most.
    pub(crate) async fn ask<A>(
        &self,
        question: &ControlQuestion,
        is_it: impl Fn(ControlAnswer) -> Option<A>,
    ) -> AnswersElsewhere<A> {
        let asked = self.0.store.ask_replicas(&write(question), WAIT).await;
        let Ok(asked) = asked else {
            return AnswersElsewhere {
                own: self.0.store.replica().to_owned(),
                answers: Vec::new(),
                reached: Reached::Lost,
            };
        };
        let (mut answers, mut missing) = (Vec::new(), asked.missing);
        for answer in asked.answers {
            let (replica, id) = (answer.replica, answer.id);
            match answer.text.and_then(|text| read(&text)).and_then(&is_it) {
                Some(answer) => answers.push(AnswerElsewhere {
                    replica,
                    id,
                    answer,
                }),
                None => missing.push(replica),
            }
        }
        missing.sort_unstable();
        AnswersElsewhere {
            own: asked.asked_by,
            reached: Reached::Gateways {
                replicas: 1 + answers.len(),
                missing,
            },
            answers,
        }
    }

    /// The runs of this id at other gateways, of all owners or of one: of each owner one, the live one
    /// if there is any. Returns whether all of them have ended, too.
    pub(crate) async fn find(&self, id: &RunId, owner: Option<Owner>) -> FoundElsewhere {
        let question = ControlQuestion::Show {
            run: id.to_string(),
            owner: owner.map(OwnerDigest::from),
        };
        let is_it = |answer| match answer {
            ControlAnswer::Runs(runs) => Some(runs),
            _ => None,
        };
        let asked = self.ask(&question, is_it).await;
        let mut of_owners: BTreeMap<OwnerDigest, (String, FoundRun)> = BTreeMap::new();
        for AnswerElsewhere {
            replica, answer, ..
        } in asked.answers
        {
            for run in answer {
                let known = of_owners.get(&run.owner);
                if known.is_none_or(|(_, known)| run.is_live && !known.is_live) {
                    of_owners.insert(run.owner.clone(), (replica.clone(), run));
                }
            }
        }
        let have_ended = of_owners.values().all(|(_, run)| !run.is_live);
        let is_operator = owner.is_none();
        let runs = of_owners.into_values().filter_map(|(replica, run)| {
            let run = serde_json::from_str(run.run.get()).ok()?;
            Some(match is_operator {
                true => at_replica(run, &replica),
                false => run,
            })
        });
        FoundElsewhere {
            runs: runs.collect(),
            have_ended,
            reached: asked.reached,
        }
    }

    /// Ends the open runs of other gateways that are wanted, or says which these are.
    pub(crate) async fn abort(&self, wanted: &Selection, dry_run: bool) -> (Vec<Value>, Reached) {
        let question = ControlQuestion::Abort {
            wanted: wanted.clone(),
            dry_run,
        };
        let is_it = |answer| match answer {
            ControlAnswer::Aborted(runs) => Some(runs),
            _ => None,
        };
        let asked = self.ask(&question, is_it).await;
        let runs = asked.answers.into_iter().flat_map(|answer| {
            let replica = answer.replica;
            let rows = answer.answer.into_iter();
            rows.filter_map(move |run| {
                let run = serde_json::from_str(run.get()).ok()?;
                Some(at_replica(run, &replica))
            })
        });
        (runs.collect(), asked.reached)
    }

    /// Raises the limits of the runs of this id at other gateways: one of them extends the run of an
    /// owner, if this gateway has not `added` to it, and all take over the sums.
    pub(crate) async fn extend(
        &self,
        id: &RunId,
        by: Adjustment,
        mut added: Vec<AddedToRun>,
    ) -> (Adjusted, Reached) {
        let question = ControlQuestion::Show {
            run: id.to_string(),
            owner: None,
        };
        let is_it = |answer| match answer {
            ControlAnswer::Runs(runs) => Some(runs),
            _ => None,
        };
        let asked = self.ask(&question, is_it).await;
        let mut found = Adjusted::default();
        let mut at: BTreeMap<OwnerDigest, String> = BTreeMap::new();
        for AnswerElsewhere { id, answer, .. } in asked.answers {
            for run in answer {
                found.runs += 1;
                if run.is_live && added.iter().all(|it| it.owner != run.owner) {
                    at.entry(run.owner).or_insert_with(|| id.clone());
                }
            }
        }
        if at.is_empty() && added.is_empty() {
            return (found, asked.reached);
        }
        if !at.is_empty() {
            let at = at.into_iter().collect();
            let (first, reached) = self.adjust(id, by, Some(at)).await;
            if first.added.is_empty() && added.is_empty() {
                found.changed = first.changed;
                return (found, reached);
            }
            added.extend(first.added);
        }
        self.adjust(id, Adjustment::ExtendTo(added), None).await
    }

    /// Changes the runs of this id at other gateways, of all owners or of these at these gateways.
    pub(crate) async fn adjust(
        &self,
        id: &RunId,
        by: Adjustment,
        at: Option<Vec<(OwnerDigest, String)>>,
    ) -> (Adjusted, Reached) {
        let question = ControlQuestion::Adjust {
            run: id.to_string(),
            by,
            at,
        };
        let is_it = |answer| match answer {
            ControlAnswer::Adjusted(adjusted) => Some(adjusted),
            _ => None,
        };
        let asked = self.ask(&question, is_it).await;
        let mut all = Adjusted::default();
        for answer in asked.answers {
            all.add(answer.answer);
        }
        (all, asked.reached)
    }

    /// Completes the runs of this id at other gateways, of all owners or of one.
    pub(crate) async fn complete(
        &self,
        id: &RunId,
        owner: Option<Owner>,
    ) -> (CompletionAnswer, Reached) {
        let question = ControlQuestion::Complete {
            run: id.to_string(),
            owner: owner.map(OwnerDigest::from),
        };
        let is_it = |answer| match answer {
            ControlAnswer::Completion(done) => Some(done),
            _ => None,
        };
        let asked = self.ask(&question, is_it).await;
        let mut all = CompletionAnswer::default();
        for answer in asked.answers {
            all.add(answer.answer);
        }
        (all, asked.reached)
    }
}

/// Runs of an id at other gateways.
#[derive(Debug)]
pub(crate) struct FoundElsewhere {
    pub(crate) runs: Vec<Value>,
    /// Whether all of them have ended.
    pub(crate) have_ended: bool,
    pub(crate) reached: Reached,
}

/// Says at which gateway something is.
pub(crate) fn at_replica(mut it: Value, replica: &str) -> Value {
    if let Some(fields) = it.as_object_mut() {
        fields.insert("replica".into(), replica.into());
    }
    it
}

impl Reached {
    /// Whether some gateway was not reached.
    pub(crate) fn is_partial(&self) -> bool {
        match self {
            Self::Alone => false,
            Self::Gateways { missing, .. } => !missing.is_empty(),
            Self::Lost => true,
        }
    }

    /// Says in an answer for the operator how many gateways it covers, and which are missing.
    pub(crate) fn tell_operator(&self, answer: &mut Value) {
        self.tell_caller(answer);
        if let Self::Gateways { missing, .. } = self {
            answer["missing"] = json!(missing);
        }
    }

    /// Says in an answer for a caller how many gateways it covers: their names are the operator's.
    pub(crate) fn tell_caller(&self, answer: &mut Value) {
        match self {
            Self::Alone => {}
            Self::Gateways { replicas, .. } => answer["replicas"] = json!(replicas),
            Self::Lost => answer["replicas"] = json!(LOST),
        }
    }
}
