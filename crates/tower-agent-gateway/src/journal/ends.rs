//! How many calls ended in each minute of the last hour, by reason, candidate and owner.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use tower_agent::{CallSummary, Owner};

use super::unix_ms;

/// The minutes that are kept, with the present one.
pub(crate) const KEPT: usize = 60;

/// The most candidates or owners that a minute tells apart; the rest are one.
const MOST: usize = 1000;

#[derive(Debug, Default)]
pub(super) struct Ends(Mutex<VecDeque<Minute>>);

#[derive(Debug, Default)]
struct Minute {
    /// Its number, from 1970 on.
    number: u64,
    reasons: BTreeMap<String, u64>,
    candidates: BTreeMap<Option<Arc<str>>, u64>,
    owners: HashMap<Option<Owner>, u64>,
    /// The ends of the candidates and owners beyond the most.
    others: [u64; 2],
}

/// What the ends are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndsBy {
    Reason,
    Candidate,
    Owner,
}

/// The ends of one minute.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EndsOfMinute {
    pub(crate) began_unix_ms: u64,
    pub(crate) counts: Vec<(EndKey, u64)>,
}

/// By what ends were counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EndKey {
    Name(Arc<str>),
    Owner(Owner),
    /// The call had no candidate, or no owner.
    None,
    /// Those beyond the most that are told apart.
    Others,
}

impl Ends {
    pub(super) fn note(&self, call: &CallSummary, now: SystemTime) {
        let number = unix_ms(now) / 60_000;
        let mut minutes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A clock that was set back counts in the minute that is there.
        if minutes.back().is_none_or(|last| last.number < number) {
            minutes.push_back(Minute {
                number,
                ..Minute::default()
            });
        }
        while minutes.len() > KEPT {
            minutes.pop_front();
        }
        let Some(minute) = minutes.back_mut() else {
            return;
        };
        let reasons = &mut minute.reasons;
        match reasons.get_mut(call.reason.as_str()) {
            Some(count) => *count += 1,
            None => drop(reasons.insert(call.reason.as_str().to_owned(), 1)),
        }
        let candidates = &mut minute.candidates;
        if candidates.len() < MOST || candidates.contains_key(&call.candidate) {
            *candidates.entry(call.candidate.clone()).or_default() += 1;
        } else {
            minute.others[0] += 1;
        }
        let owners = &mut minute.owners;
        if owners.len() < MOST || owners.contains_key(&call.owner) {
            *owners.entry(call.owner).or_default() += 1;
        } else {
            minute.others[1] += 1;
        }
    }

    /// The ends of each of the last minutes, the oldest first; minutes without an end are left out.
    pub(super) fn last(&self, by: EndsBy, minutes: usize, now: SystemTime) -> Vec<EndsOfMinute> {
        let present = unix_ms(now) / 60_000;
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = kept
            .iter()
            .filter(|minute| minute.number + minutes as u64 > present);
        last.map(|minute| minute.by(by)).collect()
    }
}

impl Minute {
    fn by(&self, by: EndsBy) -> EndsOfMinute {
        let (mut counts, others): (Vec<_>, _) = match by {
            EndsBy::Reason => {
                let reasons = self.reasons.iter();
                (
                    reasons
                        .map(|(reason, count)| (EndKey::Name(reason.as_str().into()), *count))
                        .collect(),
                    0,
                )
            }
            EndsBy::Candidate => {
                let key = |name: &Option<Arc<str>>| name.clone().map_or(EndKey::None, EndKey::Name);
                let candidates = self.candidates.iter();
                (
                    candidates
                        .map(|(name, count)| (key(name), *count))
                        .collect(),
                    self.others[0],
                )
            }
            EndsBy::Owner => {
                let key = |owner: &Option<Owner>| owner.map_or(EndKey::None, EndKey::Owner);
                let owners = self.owners.iter();
                (
                    owners.map(|(owner, count)| (key(owner), *count)).collect(),
                    self.others[1],
                )
            }
        };
        if others > 0 {
            counts.push((EndKey::Others, others));
        }
        EndsOfMinute {
            began_unix_ms: self.number * 60_000,
            counts,
        }
    }
}
