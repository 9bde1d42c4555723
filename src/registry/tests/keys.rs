use std::{
    collections::{HashSet, hash_map::RandomState},
    hash::{BuildHasher, BuildHasherDefault},
};

use super::super::{
    key::{Hashed, RunName, Spread},
    owner_caps::Owner,
};

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
    let (hasher, map) = (RandomState::new(), BuildHasherDefault::<Spread>::default());
    let names = (0_u64..).map(|n| {
        let id = format!("r-{n}").parse().unwrap();
        let owner = Owner::default().0;
        Hashed::new(RunName { owner, id }, &hasher)
    });
    let ours = names.filter(|name| name.part(16) == 3);
    let hashes = ours.map(|name| map.hash_one(&name));
    // By chance about 6; if the part and the place came from the same bits, 16 times
    // as many.
    assert!(fullest(hashes.take(1024)) < 16);
}

#[test]
fn numbers_one_after_another_differ_in_the_bits_that_maps_compare_first() {
    let map = BuildHasherDefault::<Spread>::default();
    let hashes = || (0_u64..1024).map(|n| map.hash_one(n * 16));
    assert!(fullest(hashes()) < 16);
    let tags: HashSet<_> = hashes().map(|hash| hash >> 57).collect();
    assert_eq!(tags.len(), 128);
}
