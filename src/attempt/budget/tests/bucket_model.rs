//! Any sequence of events, compared with a bucket that counts in exact numbers.
//!
//! covers: T29

use proptest::{collection::vec, prelude::*};

use super::super::bucket::{Bucket, PermitSource, Rates};

#[derive(Clone, Copy, Debug)]
enum Event {
    Deposit,
    Withdraw,
    Refund(usize),
    Pass(u64),
}

/// Two plain token buckets, refilled at every event: thousandths of a repeat,
/// and nanoseconds of the floor.
struct Model {
    deposit: u128,
    cap: u128,
    deposited: u128,
    interval: u128,
    burst: u128,
    floor: u128,
    now: u128,
}

impl Model {
    fn new(rates: Rates) -> Self {
        let floor = u128::from(rates.floor);
        let interval = match floor {
            0 => u128::MAX,
            floor => 1_000_000_000_u128.div_ceil(floor),
        };
        let burst = floor.checked_mul(interval).unwrap_or(0);
        Self {
            deposit: u128::from(rates.deposit),
            cap: (10 * floor).max(10) * 1_000,
            deposited: 0,
            interval,
            burst,
            floor: burst,
            now: 0,
        }
    }

    fn add(&mut self, amount: u128) {
        self.deposited = (self.deposited + amount).min(self.cap);
    }

    fn refill(&mut self, time: u128) {
        self.floor = (self.floor + time).min(self.burst);
    }

    fn withdraw(&mut self) -> Option<PermitSource> {
        if self.deposited >= 1_000 {
            self.deposited -= 1_000;
            return Some(PermitSource::Deposits);
        }
        if self.floor < self.interval {
            return None;
        }
        self.floor -= self.interval;
        Some(PermitSource::Floor)
    }

    fn refund(&mut self, source: &PermitSource) {
        match source {
            PermitSource::Deposits => self.add(1_000),
            PermitSource::Floor => self.refill(self.interval),
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => Just(Event::Deposit),
        6 => Just(Event::Withdraw),
        3 => any::<usize>().prop_map(Event::Refund),
        3 => (0..2_000_000_000_u64).prop_map(Event::Pass),
        1 => (0..1_u64 << 55).prop_map(Event::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_bucket_does_what_its_model_does(
        ratio in 0.0..=10.0_f64,
        floor in prop_oneof![Just(0_u32), 1..40_u32, any::<u32>()],
        events in vec(event(), 0..120),
    ) {
        let rates = Rates::new(ratio, floor);
        let (bucket, mut model) = (Bucket::<std::sync::atomic::AtomicU64>::new(rates), Model::new(rates));
        let (mut held, mut deposits, mut granted) = (Vec::new(), 0_u128, 0_i128);
        for event in events {
            match event {
                Event::Deposit => {
                    deposits += 1;
                    bucket.deposit();
                    model.add(model.deposit);
                }
                Event::Pass(time) => {
                    model.now += u128::from(time);
                    model.refill(u128::from(time));
                }
                Event::Withdraw => {
                    let source = bucket.withdraw(|| u64::try_from(model.now).unwrap());
                    prop_assert_eq!(&source, &model.withdraw());
                    granted += i128::from(source.is_some());
                    held.extend(source);
                }
                Event::Refund(which) if !held.is_empty() => {
                    let source = held.swap_remove(which % held.len());
                    model.refund(&source);
                    bucket.refund(source);
                    granted -= 1;
                }
                Event::Refund(_) => {}
            }
            prop_assert_eq!(u128::from(bucket.deposited()), model.deposited);
            // The unit is a thousandth of a nanosecond of a repeat, so that nothing is rounded.
            let floor = u128::from(floor) * (model.now + 1_000_000_000) * 1_000;
            let paid = deposits * model.deposit * 1_000_000_000 + floor;
            prop_assert!(granted * 1_000_000_000_000 <= i128::try_from(paid).unwrap());
        }
    }
}
