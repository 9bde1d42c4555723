use std::hash::RandomState;

use super::super::{key::EntryKey, owner_caps::Owner};

/// Of so many numbers, how many fall into the fullest of as many places.
fn fullest(hashes: impl Iterator<Item = u64>) -> usize {
    let mut places = [0_usize; 1024];
    for hash in hashes {
        // As a map does it: the place by the low bits.
        places[usize::try_from(hash % 1024).unwrap()] += 1;
    }
    places.into_iter().max().unwrap()
}

#[test]
fn the_names_of_one_part_are_spread_over_all_places_of_its_map() {
    let hasher = RandomState::new();
    let names = (0_u64..).map(|n| {
        let id = format!("r-{n}").parse().unwrap();
        EntryKey::new(Owner::default(), id, &hasher)
    });
    let ours = names.filter(|name| name.shard(16) == 3);
    let hashes = ours.map(|name| name.hash);
    // By chance about 6; if the part and the place came from the same bits, 16 times
    // as many.
    assert!(fullest(hashes.take(1024)) < 16);
}
