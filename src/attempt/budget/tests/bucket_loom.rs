//! Every interleaving of two or three threads.
//!
//! covers: T29

use std::sync::Arc;

use loom::{sync::atomic::AtomicU64, thread};

use super::super::bucket::{Bucket, PermitSource, Rates, TOKEN};

type LoomBucket = Bucket<AtomicU64>;

/// A bucket that gets one repeat per first attempt.
fn bucket(floor: u32) -> Arc<LoomBucket> {
    Arc::new(Bucket::new(Rates::new(1.0, floor)))
}

fn spawn<R: 'static>(
    bucket: &Arc<LoomBucket>,
    work: impl FnOnce(&LoomBucket) -> R + 'static,
) -> thread::JoinHandle<R> {
    let bucket = Arc::clone(bucket);
    thread::spawn(move || work(&bucket))
}

fn withdraw(bucket: &LoomBucket) -> Option<PermitSource> {
    bucket.withdraw(|| 0)
}

#[test]
fn of_three_threads_as_many_are_granted_as_there_are_deposits() {
    loom::model(|| {
        let bucket = bucket(0);
        bucket.deposit();
        bucket.deposit();

        let others = [(); 2].map(|()| spawn(&bucket, withdraw));
        let granted = others.map(|other| other.join().unwrap());
        let last = withdraw(&bucket);

        let granted = granted.iter().flatten().count();
        assert_eq!((granted, last), (2, None));
    });
}

#[test]
fn of_three_threads_as_many_are_granted_as_the_floor_has() {
    loom::model(|| {
        let bucket = bucket(2);

        let others = [(); 2].map(|()| spawn(&bucket, withdraw));
        let ours = withdraw(&bucket);
        let theirs = others.map(|other| other.join().unwrap());

        let granted = theirs.iter().chain([&ours]).flatten().count();
        assert_eq!(granted, 2);
        assert_eq!(withdraw(&bucket), None);
    });
}

#[test]
fn no_deposit_and_no_withdrawal_is_lost() {
    loom::model(|| {
        let bucket = bucket(0);
        bucket.deposit();

        let depositing = [(); 2].map(|()| spawn(&bucket, LoomBucket::deposit));
        let granted = withdraw(&bucket);
        for other in depositing {
            other.join().unwrap();
        }

        assert_eq!(granted, Some(PermitSource::Deposits));
        assert_eq!(bucket.deposited(), 2 * TOKEN);
    });
}

#[test]
fn a_unit_is_spent_once_or_given_back_once() {
    loom::model(|| {
        // The bucket holds one unit in each half.
        let bucket = bucket(1);
        bucket.deposit();

        let refunding = [(); 2].map(|()| {
            spawn(&bucket, |bucket| {
                let granted = withdraw(bucket);
                let had = granted.is_some();
                granted.into_iter().for_each(|unit| bucket.refund(unit));
                had
            })
        });
        let spent = withdraw(&bucket).is_some();
        let had = refunding.map(|other| other.join().unwrap());

        assert!(had.contains(&true) || spent, "somebody was first");
        let left = std::iter::from_fn(|| withdraw(&bucket)).count();
        assert_eq!(left + usize::from(spent), 2);
    });
}

#[test]
fn a_refund_beside_a_deposit_stays_below_the_cap() {
    loom::model(|| {
        let bucket = bucket(0);
        for _ in 0..10 {
            bucket.deposit();
        }
        let unit = withdraw(&bucket).unwrap();

        let depositing = spawn(&bucket, LoomBucket::deposit);
        bucket.refund(unit);
        depositing.join().unwrap();

        assert_eq!(bucket.deposited(), 10 * TOKEN);
    });
}
