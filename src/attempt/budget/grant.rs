use std::sync::Arc;

use super::bucket::{Bucket, PermitSource};

/// Leave for one repeat, from [`RetryBudget::withdraw`](crate::attempt::RetryBudget::withdraw).
///
/// Dropped without [`spend`](Self::spend) it gives the repeat back: the wait
/// before a repeat is often cut by the end of the run.
#[derive(Debug)]
#[must_use = "dropped, it gives the repeat back"]
pub struct Permit<'a> {
    /// What goes back on a drop; nothing from a budget that is not shared.
    from: Option<(Lender<'a>, PermitSource)>,
}

/// Borrowed where it can be: threads that count references to one bucket
/// hinder each other as much as those that withdraw from it.
#[derive(Debug)]
enum Lender<'a> {
    Borrowed(&'a Arc<Bucket>),
    Owned(Arc<Bucket>),
}

impl<'a> Permit<'a> {
    pub(super) const fn unshared() -> Self {
        Self { from: None }
    }

    #[inline]
    pub(super) fn withdraw(bucket: &'a Arc<Bucket>, now: impl FnOnce() -> u64) -> Option<Self> {
        let source = bucket.withdraw(now)?;
        Some(Self {
            from: Some((Lender::Borrowed(bucket), source)),
        })
    }

    /// The repeat starts now: nothing goes back any more.
    #[inline]
    pub fn spend(mut self) {
        self.from = None;
    }

    /// The same, to be kept beside or beyond the budget.
    pub fn into_owned(mut self) -> Permit<'static> {
        let from = self.from.take().map(|(lender, source)| match lender {
            Lender::Borrowed(bucket) => (Lender::Owned(Arc::clone(bucket)), source),
            Lender::Owned(bucket) => (Lender::Owned(bucket), source),
        });
        Permit { from }
    }
}

impl Drop for Permit<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some((lender, source)) = self.from.take() {
            match lender {
                Lender::Borrowed(bucket) => bucket.refund(source),
                Lender::Owned(bucket) => bucket.refund(source),
            }
        }
    }
}
