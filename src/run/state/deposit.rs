use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use super::NodeState;

/// The buckets that a call has paid into: one, mostly.
#[derive(Debug, Default)]
pub(in crate::run) struct FirstDeposit {
    /// None if 0.
    first: AtomicUsize,
    others: Mutex<Vec<usize>>,
}

impl NodeState {
    /// Whether the call has not paid into this bucket before.
    pub(crate) fn first_deposit(&self, bucket: usize) -> bool {
        let (stored, failed) = (Ordering::AcqRel, Ordering::Acquire);
        match self.paid.first.compare_exchange(0, bucket, stored, failed) {
            Ok(_) => return true,
            Err(first) if first == bucket => return false,
            Err(_) => {}
        }
        let others = self.paid.others.lock();
        let mut others = others.unwrap_or_else(PoisonError::into_inner);
        let is_new = !others.contains(&bucket);
        if is_new {
            others.push(bucket);
        }
        is_new
    }
}
