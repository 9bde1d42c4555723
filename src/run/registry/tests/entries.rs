use std::{
    sync::{OnceLock, Weak, atomic::AtomicU64},
    time::Duration,
};

use tokio::time::Instant;

use crate::run::{
    Run,
    info::Identity,
    registry::{
        agenda::Agenda,
        entries::{Entries, Place},
        key::{Hashed, Key, Name},
        shared::Shared,
    },
};

fn known(hash: u64, id: &str) -> (Key, Run) {
    let run = Run::open();
    let nobody: Weak<Shared> = Weak::new();
    run.node().payload.identify(Identity {
        id: id.parse().unwrap(),
        session: None,
        registration: nobody,
        owner: 0,
        generation: 1,
        told: AtomicU64::new(0),
        listed: OnceLock::new(),
    });
    let (owner, id) = (0, id.parse().unwrap());
    (Hashed::known(hash, Name { owner, id }), run)
}

#[test]
fn keys_of_the_same_hash_are_kept_apart() {
    let ids = ["a", "b", "c"];
    for forgotten in 0..ids.len() {
        let (mut entries, now) = (Entries::default(), Instant::now());
        let known = ids.map(|id| known(7, id));
        let places: Vec<_> = (0..)
            .zip(&known)
            .map(|(serial, (key, run))| entries.insert(key, run.clone(), serial, true, None, now))
            .collect();
        let gone = entries.forget(places[forgotten]);
        assert_eq!(
            gone.map(|run| run.number()),
            Some(known[forgotten].1.number())
        );
        assert!(entries.forget(places[forgotten]).is_none(), "once");

        for (n, (key, run)) in known.iter().enumerate() {
            let found = entries.get(key, now).map(|run| run.number());
            assert_eq!(
                found,
                (n != forgotten).then(|| run.number()),
                "{n} of {forgotten}"
            );
        }
    }
}

#[test]
fn whoever_is_due_first_comes_first_whenever_it_was_said() {
    let (mut agenda, now) = (Agenda::default(), Instant::now());
    let at = |seconds: u64| now + Duration::from_secs(seconds);
    for (serial, seconds) in [(0, 5), (1, 9), (2, 1), (3, 9), (4, 7)] {
        agenda.push(at(seconds), Place { serial, index: 0 });
    }
    assert_eq!(agenda.next(), Some(at(1)));
    assert_eq!(agenda.pop(at(0)), None);
    let mut order = Vec::new();
    for seconds in 0..10 {
        while let Some(place) = agenda.pop(at(seconds)) {
            order.push((seconds, place.serial));
        }
    }
    assert_eq!(order, [(1, 2), (5, 0), (7, 4), (9, 1), (9, 3)]);
    assert_eq!((agenda.next(), agenda.len()), (None, 0));
}
