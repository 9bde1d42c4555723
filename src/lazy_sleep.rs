//! A timer that is made at its first use.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    task::unconstrained,
    time::{Instant, Sleep, sleep_until},
};

/// A timer that costs nothing before it is set.
#[derive(Debug, Default)]
pub(crate) struct LazySleep(Option<Pin<Box<Sleep>>>);

impl LazySleep {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    /// Polls the timer, set to `at`.
    pub(crate) fn poll_at(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.timer(at);
        if timer.deadline() != at || timer.is_elapsed() {
            timer.as_mut().reset(at);
        }
        poll_sleep(timer.as_mut(), cx)
    }

    /// Polls the timer, set to `at`. An earlier time that it has is kept, and wakes the task.
    ///
    /// To wake a task too early costs less than to reset the timer with every frame.
    pub(crate) fn poll_at_latest(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.timer(at);
        if timer.deadline() > at || timer.is_elapsed() {
            timer.as_mut().reset(at);
        }
        poll_sleep(timer.as_mut(), cx)
    }

    /// Polls the timer until `at` has passed, which may be later at each poll.
    ///
    /// The timer is set to a later time when it runs out, not with every frame.
    pub(crate) fn poll_passed(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.timer(at);
        while timer.deadline() < at {
            ready!(poll_sleep(timer.as_mut(), cx));
            timer.as_mut().reset(at);
        }
        poll_sleep(timer.as_mut(), cx)
    }

    /// Drops the timer.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    fn timer(&mut self, at: Instant) -> &mut Pin<Box<Sleep>> {
        self.0.get_or_insert_with(|| Box::pin(sleep_until(at)))
    }
}

/// Polls a timer outside of tokio's coop budget.
///
/// A `Sleep` that is `Pending` because the budget is exhausted has not registered its waker.
#[inline]
pub(crate) fn poll_sleep(timer: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<()> {
    let mut timer = unconstrained(timer);
    Pin::new(&mut timer).poll(cx)
}

#[cfg(test)]
mod tests {
    use std::{
        future::{Future, poll_fn},
        pin::pin,
        time::Duration,
    };

    use tokio::task::coop::{consume_budget, has_budget_remaining};

    use super::*;

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_is_moved_as_its_method_says() {
        let start = Instant::now();
        let mut timer = LazySleep::new();
        let _ = poll_fn(|cx| Poll::Ready(timer.poll_at(at(start, 9), cx))).await;
        poll_fn(|cx| timer.poll_at(at(start, 3), cx)).await;
        assert_eq!(Instant::now(), at(start, 3));
        poll_fn(|cx| timer.poll_at_latest(at(start, 5), cx)).await;
        assert_eq!(Instant::now(), at(start, 5));
        let _ = poll_fn(|cx| Poll::Ready(timer.poll_at_latest(at(start, 6), cx))).await;
        let mut polled = Vec::new();
        poll_fn(|cx| {
            polled.push(start.elapsed().as_secs());
            timer.poll_at_latest(at(start, 8), cx)
        })
        .await;
        assert_eq!(polled, [5, 6, 8], "an armed timer is not postponed");
        let _ = poll_fn(|cx| Poll::Ready(timer.poll_at(at(start, 9), cx))).await;
        poll_fn(|cx| timer.poll_passed(at(start, 12), cx)).await;
        assert_eq!(Instant::now(), at(start, 12));
        timer.clear();
        assert!(timer.0.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_is_set_although_the_budget_is_exhausted() {
        let start = Instant::now();
        let mut timer = LazySleep::new();
        let mut polls = 0;
        poll_fn(|cx| {
            polls += 1;
            while has_budget_remaining() {
                let _ = pin!(consume_budget()).poll(cx);
            }
            timer.poll_at(at(start, 3), cx)
        })
        .await;
        assert_eq!(polls, 2);
        assert_eq!(Instant::now(), at(start, 3));
    }
}
