use std::{
    sync::{OnceLock, Weak, atomic::AtomicU64},
    time::Duration,
};

use tokio::time::Instant;

use super::super::{
    RunRegistry, entries::Entries, key::EntryKey, owner_caps::Owner, state::RegistryState,
};
use crate::run::{Admission, Identity, Place, Run};

fn key(hash: u64, owner: u128, id: &str) -> EntryKey {
    let (owner, id) = (Owner(owner), id.parse().unwrap());
    EntryKey { hash, owner, id }
}

fn known(place: Place, id: &str) -> (EntryKey, Run) {
    let run = Run::open();
    let nobody: Weak<RegistryState> = Weak::new();
    run.run_state().identify(Identity {
        id: id.parse().unwrap(),
        session: None,
        registration: nobody,
        owner: 0,
        generation: 1,
        place,
        session_slot: OnceLock::new(),
        end_event: AtomicU64::new(0),
        admission: Admission::new(true),
    });
    (key(place.hash, 0, id), run)
}

#[test]
fn keys_of_the_same_hash_are_kept_apart() {
    let ids = ["a", "b", "c"];
    for forgotten in 0..ids.len() {
        let (mut entries, now) = (Entries::default(), Instant::now());
        let mut known = Vec::new();
        for (serial, id) in (0..).zip(ids) {
            let place = Place { serial, hash: 7 };
            let (key, run) = self::known(place, id);
            entries.insert(&key, place, run.clone(), true, None, now);
            known.push((key, run));
        }
        let place = known[forgotten].1.node().identity().unwrap().place;
        let gone = entries.forget(place);
        assert_eq!(
            gone.map(|run| run.number()),
            Some(known[forgotten].1.number())
        );
        assert!(entries.forget(place).is_none(), "once");

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

#[tokio::test(start_paused = true)]
async fn whoever_is_due_first_comes_first_whenever_it_was_said() {
    let (mut entries, now) = (Entries::default(), Instant::now());
    let at = |seconds: u64| now + Duration::from_secs(seconds);
    for (serial, seconds) in [(0, 5), (1, 9), (2, 1), (3, 9), (4, 7)] {
        let hash = serial;
        let place = Place { serial, hash };
        let (key, run) = known(place, &format!("r-{serial}"));
        let idle = Some(Duration::from_secs(seconds));
        entries.insert(&key, place, run, true, idle, now);
    }
    assert_eq!(entries.next(), Some(at(1)));
    assert!(entries.due(at(0)).is_empty());
    let mut order = Vec::new();
    for seconds in 0..10 {
        for run in entries.due(at(seconds)) {
            let place = run.node().identity().unwrap().place;
            order.push((seconds, place.serial));
            // Else it would be due again.
            entries.forget(place);
        }
    }
    assert_eq!(order, [(1, 2), (5, 0), (7, 4), (9, 1), (9, 3)]);
    assert_eq!(entries.all().count(), 0);
}

/// What a list would know of an entry.
struct Known {
    name: &'static str,
    place: Place,
    number: u64,
    expires: Option<Instant>,
}

/// Against a list of entries, where most keys have the hash of another.
#[tokio::test(start_paused = true)]
async fn what_is_known_is_what_a_list_would_know_though_hashes_collide() {
    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..300 {
        let (mut entries, mut list) = (Entries::default(), Vec::<Known>::new());
        let (mut places, mut replaced) = (Vec::new(), Vec::<Place>::new());
        for serial in 1..60 {
            tokio::time::advance(Duration::from_secs(random.u64(..400))).await;
            let now = Instant::now();
            let _suspects = entries.due(now);
            list.retain(|known| known.expires.is_none_or(|at| at > now));
            let n = random.usize(..NAMES.len());
            match (random.u8(..4), random.choice(&places).copied()) {
                (0 | 1, _) | (_, None) => {
                    let hash = n as u64 % 2;
                    let place = Place { serial, hash };
                    let (key, run) = known(place, NAMES[n]);
                    let number = run.node().number();
                    entries.insert(&key, place, run, true, None, now);
                    let before = list.iter().position(|known| known.name == NAMES[n]);
                    if let Some(before) = before.map(|at| list.remove(at)) {
                        let untold = before.expires.is_none().then_some(before.place);
                        replaced.extend(untold);
                    }
                    list.push(Known {
                        name: NAMES[n],
                        place,
                        number,
                        expires: None,
                    });
                    places.push(place);
                }
                (2, Some(place)) => {
                    let forgotten = entries.forget(place).map(|run| run.number());
                    let at = list.iter().position(|known| known.place == place);
                    let known = at.map(|at| list.remove(at));
                    assert_eq!(forgotten, known.map(|known| known.number));
                }
                (_, Some(place)) => {
                    let was_replaced = replaced.iter().position(|other| *other == place);
                    let of_list = list.iter_mut().find(|known| known.place == place);
                    let live = of_list.filter(|known| known.expires.is_none());
                    let tells = live.is_some() || was_replaced.is_some();
                    assert_eq!(
                        entries.mark_ended(place, now),
                        tells.then_some(true),
                        "once"
                    );
                    was_replaced.map(|at| replaced.remove(at));
                    if let Some(known) = live {
                        known.expires = now.checked_add(RunRegistry::REMEMBERED);
                    }
                }
            }
            for (n, name) in NAMES.into_iter().enumerate() {
                if random.u8(..8) > 0 {
                    continue;
                }
                let key = |owner| key(n as u64 % 2, owner, name);
                let known = list.iter_mut().find(|known| known.name == name);
                let found = entries.get(&key(0), now).map(|run| run.number());
                assert_eq!(found, known.as_ref().map(|known| known.number), "{name}");
                if let Some(expires) = known.and_then(|known| known.expires.as_mut()) {
                    *expires = now + RunRegistry::REMEMBERED;
                }
                assert!(entries.get(&key(1), now).is_none());
            }
        }
        assert_eq!(entries.all().count(), list.len());
        assert_eq!(
            entries.live().count(),
            list.iter().filter(|known| known.expires.is_none()).count()
        );
    }
}
