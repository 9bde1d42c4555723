//! covers: D6

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::time::advance;

use super::super::owner_caps::Owner;
use crate::{
    registry::{
        owner_caps::{OwnerAsk, OwnerCaps, Owners},
        store::{InMemoryRunStore, OwnerCounts, OwnerElsewhere, RunStore},
    },
    run::{CapWindow, LimitHit, LimitKind},
};

const CAPS: OwnerCaps = OwnerCaps::new().max_open_runs(2).turns_per_hour(3);

fn owner(name: u128) -> Owner {
    Owner(name)
}

fn cap<T>(result: Result<T, LimitHit>) -> Option<LimitKind> {
    result.err().map(|cap| cap.kind)
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_counts_for_nothing() {
    let owners = Arc::new(Owners::new(Arc::default(), Arc::default()));
    let open = |turn| owners.open(owner(1), CAPS, turn, None);
    let _first = open(true).unwrap();
    let second = open(true).unwrap();
    for _ in 0..5 {
        assert_eq!(cap(open(true)), Some(LimitKind::OpenRuns(2)));
    }
    drop(second);
    let _third = open(true).unwrap();
    assert_eq!(
        cap(owners.request(owner(1), CAPS, true, None)),
        Some(LimitKind::OwnerTurns(3, CapWindow::Hour))
    );
    assert_eq!(
        cap(owners.request(owner(2), CAPS, true, None)),
        None,
        "another owner"
    );
}

#[tokio::test(start_paused = true)]
async fn no_hour_has_more_turns_than_it_may() {
    let owners = Arc::new(Owners::new(Arc::default(), Arc::default()));
    let mut taken = Vec::new();
    for second in 0..4 * 3600_u64 {
        if owners.request(owner(1), CAPS, true, None).is_ok() {
            taken.push(second);
        }
        advance(Duration::from_secs(1)).await;
    }
    // Given back once a whole minute is older than an hour.
    assert_eq!(taken[..6], [0, 1, 2, 3660, 3661, 3662]);
    assert!(taken.windows(4).all(|turns| turns[3] - turns[0] > 3600));
}

#[tokio::test(start_paused = true)]
async fn owners_are_forgotten_who_have_nothing_open_and_had_no_turn_for_an_hour() {
    let owners = Arc::new(Owners::new(Arc::default(), Arc::default()));
    let open = owners.open(owner(0), CAPS, false, None).unwrap();
    for name in 1..100 {
        owners.request(owner(name), CAPS, true, None).unwrap();
    }
    advance(Duration::from_secs(3600)).await;
    owners.request(owner(200), CAPS, true, None).unwrap();
    assert_eq!(owners.len(), 101);
    advance(Duration::from_secs(60)).await;
    owners.request(owner(200), CAPS, true, None).unwrap();
    assert_eq!(owners.len(), 2);
    drop(open);
    advance(Duration::from_secs(7200)).await;
    owners.request(owner(300), CAPS, true, None).unwrap();
    assert_eq!(owners.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_was_refused_is_forgotten_an_hour_after_that_was_told() {
    let owners = Arc::new(Owners::new(Arc::default(), Arc::default()));
    let refused = || owners.refused(owner(1), "max_open_runs");
    assert_eq!(refused(), Some(1));
    advance(Duration::from_secs(50)).await;
    assert_eq!(refused(), None, "known, and not told");
    for (seconds, known) in [(3599, 2), (60, 1)] {
        advance(Duration::from_secs(seconds)).await;
        owners.request(owner(2), CAPS, true, None).unwrap();
        assert_eq!(owners.len(), known);
    }
    assert_eq!(refused(), Some(1));
}

#[test]
fn an_owner_is_shown_without_its_digest() {
    let shown = Owner::of(b"sk-one");
    let digits = shown.to_string().split_off("owner-".len());
    assert_eq!(digits.len(), 16);
    assert!(!format!("{:032x}", shown.0).contains(&digits));
    assert_eq!(Owner::of(b"sk-one").to_string(), shown.to_string());
    assert_eq!(Owner::default().to_string(), "program");
    assert_eq!(Owner::anonymous().to_string(), "anonymous");
}

/// The counts of the last question or news.
fn question(owners: &Arc<Owners>, opens: bool) -> (OwnerCounts, OwnerAsk) {
    let (question, ask) = owners.ask(owner(1), CAPS, opens, true).unwrap();
    (question.counts, ask)
}

fn shared() -> Arc<Owners> {
    let cell = Arc::new(OnceLock::new());
    let store: Arc<dyn RunStore> = InMemoryRunStore::new().replica();
    cell.set(store).unwrap();
    Arc::new(Owners::new(cell, Arc::default()))
}

#[tokio::test(start_paused = true)]
async fn counts_have_what_the_store_may_not_know() {
    let owners = shared();
    let (counts, mut ask) = question(&owners, true);
    assert_eq!((counts.open_runs, counts.open_runs_asked), (0, 1));
    assert_eq!((counts.minutes.len(), counts.turns_asked), (1, 1));
    ask.learn(OwnerElsewhere::default(), false);
    let _open = owners.open(owner(1), CAPS, true, Some(&mut ask)).unwrap();
    drop(ask);

    advance(Duration::from_secs(60)).await;
    // The turn of the first minute came behind the answer; the second has no answer yet.
    for _ in 0..2 {
        let (counts, _given_back) = question(&owners, false);
        assert_eq!((counts.open_runs, counts.open_runs_asked), (1, 0));
        let turns: Vec<_> = counts
            .minutes
            .iter()
            .map(|it| (it.number, it.turns))
            .collect();
        assert_eq!(turns, [(0, 1), (1, 0)]);
    }
    let (counts, mut answered) = question(&owners, false);
    answered.learn(OwnerElsewhere::default(), false);
    drop(answered);
    let (later, _ask) = question(&owners, false);
    assert_eq!(later.minutes.len(), 1, "{later:?}");
    assert!(later.number > counts.number);

    // A store that has lost all is told all, whatever it answers to what was asked before.
    let (_, mut before) = question(&owners, false);
    owners.tell_all();
    before.learn(OwnerElsewhere::default(), false);
    let (all, _ask) = question(&owners, false);
    assert_eq!(all.minutes.len(), 2, "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn what_others_have_counts_for_an_hour_after_it_was_learned() {
    let owners = shared();
    let (_, mut ask) = question(&owners, true);
    let mut elsewhere = OwnerElsewhere::default();
    (elsewhere.turns, elsewhere.open_runs) = (3, 2);
    ask.learn(elsewhere, false);
    assert_eq!(
        cap(owners.open(owner(1), CAPS, true, Some(&mut ask))),
        Some(LimitKind::OpenRuns(2))
    );
    drop(ask);
    let turns = LimitKind::OwnerTurns(3, CapWindow::Hour);
    assert_eq!(cap(owners.request(owner(1), CAPS, true, None)), Some(turns));
    advance(Duration::from_secs(60 * 60)).await;
    assert_eq!(cap(owners.request(owner(1), CAPS, true, None)), Some(turns));
    advance(Duration::from_secs(60)).await;
    assert_eq!(cap(owners.request(owner(1), CAPS, true, None)), None);
}
