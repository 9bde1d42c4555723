//! covers: D6

use std::{sync::Arc, time::Duration};

use tokio::time::advance;

use super::super::owner_caps::Owner;
use crate::{
    registry::owner_caps::{OwnerCaps, Owners},
    run::{LimitHit, LimitKind},
};

const CAPS: OwnerCaps = OwnerCaps::new().max_open_runs(2).turns_per_hour(3);

fn owner(name: u128) -> Owner {
    Owner(name)
}

fn cap<T>(result: Result<T, LimitHit>) -> Option<LimitKind> {
    result.err().map(|cap| cap.measure)
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_counts_for_nothing() {
    let owners = Arc::new(Owners::new());
    let open = |turn| owners.open(owner(1), CAPS, turn);
    let _first = open(true).unwrap();
    let second = open(true).unwrap();
    for _ in 0..5 {
        assert_eq!(cap(open(true)), Some(LimitKind::OpenRuns(2)));
    }
    drop(second);
    let _third = open(true).unwrap();
    assert_eq!(
        cap(owners.request(owner(1), CAPS, true)),
        Some(LimitKind::TurnsPerHour(3))
    );
    assert_eq!(
        cap(owners.request(owner(2), CAPS, true)),
        None,
        "another owner"
    );
}

#[tokio::test(start_paused = true)]
async fn no_hour_has_more_turns_than_it_may() {
    let owners = Arc::new(Owners::new());
    let mut taken = Vec::new();
    for second in 0..4 * 3600_u64 {
        if owners.request(owner(1), CAPS, true).is_ok() {
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
    let owners = Arc::new(Owners::new());
    let open = owners.open(owner(0), CAPS, false).unwrap();
    for name in 1..100 {
        owners.request(owner(name), CAPS, true).unwrap();
    }
    advance(Duration::from_secs(3600)).await;
    owners.request(owner(200), CAPS, true).unwrap();
    assert_eq!(owners.len(), 101);
    advance(Duration::from_secs(60)).await;
    owners.request(owner(200), CAPS, true).unwrap();
    assert_eq!(owners.len(), 2);
    drop(open);
    advance(Duration::from_secs(7200)).await;
    owners.request(owner(300), CAPS, true).unwrap();
    assert_eq!(owners.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_was_refused_is_forgotten_an_hour_after_that_was_told() {
    let owners = Arc::new(Owners::new());
    let refused = || owners.refused(owner(1), "max_open_runs");
    assert_eq!(refused(), Some(1));
    advance(Duration::from_secs(50)).await;
    assert_eq!(refused(), None, "known, and not told");
    for (seconds, known) in [(3599, 2), (60, 1)] {
        advance(Duration::from_secs(seconds)).await;
        owners.request(owner(2), CAPS, true).unwrap();
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
