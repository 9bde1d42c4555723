//! The parts of runs that this replica has, as far as the store knows them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;
use tower_agent::{
    RunId,
    registry::store::{Recalled, RunKey, RunNews, RunQuestion},
    run::TokensSpent,
};

/// A part of a live run.
#[derive(Clone, Debug)]
pub(crate) struct KnownPart {
    pub(crate) part: u64,
    pub(crate) session: Option<Arc<str>>,
    parent: Option<RunId>,
    pub(crate) incarnation: u64,
    /// The turns that the part was granted.
    pub(crate) granted: u32,
    /// The turns that the other parts were granted, at the last answer.
    pub(crate) elsewhere: u32,
    /// What the part has spent; `None` if nothing was told.
    pub(crate) spent: Option<TokensSpent>,
    /// The age of the run at the last answer, and when that was.
    age: Duration,
    answered: Instant,
}

impl KnownPart {
    pub(crate) fn age_us(&self) -> u64 {
        let age = self.age + self.answered.elapsed();
        u64::try_from(age.as_micros()).unwrap_or(u64::MAX)
    }
}

/// The parts by their runs.
#[derive(Debug, Default)]
pub(crate) struct Known {
    parts: HashMap<RunKey, KnownPart>,
}

impl Known {
    /// What was known before of the part that a question is about.
    pub(crate) fn of(&self, question: &RunQuestion) -> Option<KnownPart> {
        let known = self.parts.get(&question.run)?;
        (known.part == question.part).then(|| known.clone())
    }

    pub(crate) fn session_of(&self, run: &RunKey) -> Option<Arc<str>> {
        self.parts.get(run)?.session.clone()
    }

    /// Records an answer.
    pub(crate) fn learn(&mut self, question: &RunQuestion, recalled: &Recalled) {
        if recalled.end.is_some() {
            self.parts.remove(&question.run);
            return;
        }
        let former = self.parts.remove(&question.run);
        let former = former.filter(|it| it.part == question.part);
        let spent = former.as_ref().and_then(|it| it.spent);
        let (session, parent) = former.map_or((None, None), |it| (it.session, it.parent));
        let known = KnownPart {
            part: question.part,
            session: question.session.clone().or(session),
            parent: question.parent.clone().or(parent),
            incarnation: recalled.incarnation,
            granted: recalled.granted,
            elsewhere: recalled.turns_elsewhere,
            spent,
            age: recalled.age,
            answered: Instant::now(),
        };
        self.parts.insert(question.run.clone(), known);
    }

    /// Forgets the part that has left.
    pub(crate) fn forget(&mut self, news: &RunNews) {
        if let RunNews::Left { run, part, .. } = news {
            if self.parts.get(run).is_some_and(|it| it.part == *part) {
                self.parts.remove(run);
            }
        }
    }

    /// Records that a part has use for so many turns alone.
    pub(crate) fn give_back(&mut self, news: &RunNews) {
        if let RunNews::GaveBack {
            run, part, turns, ..
        } = news
        {
            if let Some(known) = self.parts.get_mut(run).filter(|it| it.part == *part) {
                known.granted = known.granted.min(*turns);
            }
        }
    }

    /// Records what a part has spent.
    pub(crate) fn spend(&mut self, run: &RunKey, part: u64, spent: TokensSpent) {
        if let Some(known) = self.parts.get_mut(run).filter(|it| it.part == part) {
            known.spent = Some(spent);
        }
    }

    /// A question about each part, by which the store keeps it.
    pub(crate) fn questions(&self) -> Vec<RunQuestion> {
        let questions = self.parts.iter().map(|(run, known)| {
            let mut question = RunQuestion::new(run.clone(), known.part);
            question.session.clone_from(&known.session);
            question.parent.clone_from(&known.parent);
            question
        });
        questions.collect()
    }
}
