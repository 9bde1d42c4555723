use std::time::Duration;

use crate::attempt::budget::{Backoff, Delays, Jitter};

const BASE: Duration = Duration::from_millis(500);
const MAX: Duration = Duration::from_secs(8);

fn delays(jitter: Jitter) -> Delays {
    Delays {
        base: BASE,
        max: MAX,
        jitter,
    }
}

fn waits(jitter: Jitter, seed: u64, slowly: bool) -> Vec<Duration> {
    let mut backoff = Backoff::new(delays(jitter), seed);
    (0..8).map(|_| backoff.next(slowly)).collect()
}

/// The least and the longest nth wait over many seeds.
fn extremes(jitter: Jitter, nth: usize, slowly: bool) -> (Duration, Duration) {
    let waits = (0..4_000).map(|seed| waits(jitter, seed, slowly)[nth]);
    waits.fold((Duration::MAX, Duration::ZERO), |(min, max), wait| {
        (min.min(wait), max.max(wait))
    })
}

/// Whether `longest` reaches almost to `limit`, and not beyond it.
fn fills(longest: Duration, limit: Duration) -> bool {
    longest <= limit && longest > limit.mul_f64(0.97)
}

#[test]
fn one_seed_is_always_the_same_and_another_is_not() {
    for jitter in [Jitter::Full, Jitter::Decorrelated] {
        assert_eq!(waits(jitter, 7, false), waits(jitter, 7, false));
        assert_ne!(waits(jitter, 7, false), waits(jitter, 8, false));
    }
}

#[test]
fn full_jitter_fills_the_doubled_base_up_to_the_maximum() {
    for (nth, limit) in [BASE, BASE * 2, BASE * 4, BASE * 8, MAX, MAX, MAX]
        .into_iter()
        .enumerate()
    {
        let (least, longest) = extremes(Jitter::Full, nth, false);
        assert!(least < limit.mul_f64(0.03), "{nth}: {least:?}");
        assert!(fills(longest, limit), "{nth}: {longest:?}");
    }
}

#[test]
fn decorrelated_jitter_grows_from_the_base_by_threes() {
    let (least, longest) = extremes(Jitter::Decorrelated, 0, false);
    assert!(
        least >= BASE && fills(longest, BASE * 3),
        "{least:?} {longest:?}"
    );
    let (least, longest) = extremes(Jitter::Decorrelated, 1, false);
    assert!(least >= BASE && longest > BASE * 6 && longest <= BASE * 9);
    let (least, longest) = extremes(Jitter::Decorrelated, 7, false);
    assert!(least >= BASE && longest == MAX, "{least:?} {longest:?}");
}

#[test]
fn without_jitter_the_base_doubles_up_to_the_maximum() {
    let [one, two, four, eight] = [1, 2, 4, 8].map(|times| BASE * times);
    let doubled = vec![one, two, four, eight, MAX, MAX, MAX, MAX];
    assert_eq!(waits(Jitter::None, 1, false), doubled);
    assert_eq!(waits(Jitter::None, 2, false), doubled);
    assert_eq!(waits(Jitter::None, 1, true)[..2], [four, eight]);
}

#[test]
fn an_overloaded_upstream_is_given_four_times_the_base() {
    let (_, longest) = extremes(Jitter::Full, 0, true);
    assert!(fills(longest, BASE * 4), "{longest:?}");
    let (least, _) = extremes(Jitter::Decorrelated, 0, true);
    assert_eq!(least, BASE * 4, "three times the base is below it");
}

#[test]
fn nothing_overflows() {
    for jitter in [Jitter::None, Jitter::Full, Jitter::Decorrelated] {
        let mut backoff = Backoff::new(delays(jitter), 1);
        assert!((0..10_000).all(|_| backoff.next(true) <= MAX));

        let endless = Delays {
            base: Duration::MAX,
            max: Duration::MAX,
            jitter,
        };
        let mut backoff = Backoff::new(endless, 1);
        assert!((0..100).any(|_| backoff.next(true) > MAX));

        let none = Delays {
            base: Duration::ZERO,
            max: MAX,
            jitter,
        };
        let mut backoff = Backoff::new(none, 1);
        assert!((0..100).all(|_| backoff.next(true).is_zero()));
    }
}

#[test]
fn a_base_above_the_maximum_counts_as_the_maximum() {
    for jitter in [Jitter::None, Jitter::Full, Jitter::Decorrelated] {
        let reversed = Delays {
            base: MAX,
            max: BASE,
            jitter,
        };
        let longest = (0..500).map(|seed| Backoff::new(reversed, seed).next(false));
        assert!(fills(longest.max().unwrap(), BASE));
    }
}
