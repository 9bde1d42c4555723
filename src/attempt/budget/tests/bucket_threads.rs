//! With real threads, for longer than loom can.
//!
//! covers: T29

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use super::super::bucket::{Bucket, Rates, TOKEN};

const THREADS: u64 = 4;
const ROUNDS: u64 = 20_000;

#[test]
fn threads_that_deposit_spend_and_refund_never_have_more_than_there_is() {
    // Room for all deposits, so that none is cut off by the cap.
    let rates = Rates::new(0.2, u32::try_from(THREADS * ROUNDS).unwrap());
    let bucket = Bucket::<AtomicU64>::new(rates);
    let spent = AtomicU64::new(0);
    let barrier = Barrier::new(usize::try_from(THREADS).unwrap());

    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                barrier.wait();
                for round in 0..ROUNDS {
                    bucket.deposit();
                    // The clock stands at zero: the burst is all that the floor has.
                    match bucket.withdraw(|| 0) {
                        Some(unit) if round % 3 == 0 => bucket.refund(unit),
                        Some(_) => drop(spent.fetch_add(1, Ordering::Relaxed)),
                        None => {}
                    }
                }
            });
        }
    });

    let left = std::iter::from_fn(|| bucket.withdraw(|| 0)).count() as u64;
    let deposited = THREADS * ROUNDS * 200;
    let burst = THREADS * ROUNDS;
    assert_eq!(bucket.deposited(), deposited % TOKEN);
    assert_eq!(spent.into_inner() + left, deposited / TOKEN + burst);
}
