use std::sync::Arc;

use super::bucket::{Bucket, Source};

/// Leave for one repeat, from [`RetryBudget::withdraw`](super::RetryBudget::withdraw).
///
/// Dropped without [`spend`](Self::spend) it gives the repeat back: the wait
/// before a repeat is often cut by the end of the run.
#[derive(Debug)]
#[must_use = "dropped, it gives the repeat back"]
pub struct Grant {
    /// What goes back on a drop; nothing from a budget that is not shared.
    from: Option<(Arc<Bucket>, Source)>,
}

impl Grant {
    pub(super) const fn unshared() -> Self {
        Self { from: None }
    }

    #[inline]
    pub(super) fn withdraw(bucket: &Arc<Bucket>, now: impl FnOnce() -> u64) -> Option<Self> {
        let source = bucket.withdraw(now)?;
        Some(Self {
            from: Some((Arc::clone(bucket), source)),
        })
    }

    /// The repeat starts now: nothing goes back any more.
    #[inline]
    pub fn spend(mut self) {
        self.from = None;
    }
}

impl Drop for Grant {
    #[inline]
    fn drop(&mut self) {
        if let Some((bucket, source)) = self.from.take() {
            bucket.refund(source);
        }
    }
}
