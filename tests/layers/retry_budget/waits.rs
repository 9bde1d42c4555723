//! How long is waited before a repeat, and which clocks run meanwhile.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    RetryBudget, RetryBudgetLayer, Run, Scope, StepTimeoutLayer, TerminalReason, attempt::Jitter,
};

use crate::support::{
    DONE, ERROR, Outcome, PRELUDE, Place, ReadExt, Script, Stack, Upstream, attach, chat, failure,
    healthy, no_delay, prompt, reason_of, secs,
};

const PAST: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const FUTURE: &str = "Tue, 31 Dec 2199 23:59:59 GMT";

/// covers: G2
#[tokio::test(start_paused = true)]
async fn what_the_upstream_asks_for_is_waited_exactly() {
    let seconds = |text| failure(429).header("retry-after", text);
    for (script, millis) in [
        (seconds("7"), 7_000),
        (seconds("0"), 0),
        (seconds("60"), 60_000),
        (seconds("1.25"), 1_250),
        (seconds(PAST), 0),
        (failure(503).header("retry-after", "3"), 3_000),
        (failure(429).header("retry-after-ms", "1500"), 1_500),
        (seconds("7").header("retry-after-ms", "20"), 20),
        (seconds("7").header("retry-after-ms", "soon"), 7_000),
    ] {
        // A backoff of its own would be seen.
        let budget = RetryBudget::new().delays(secs(100), secs(100));
        let upstream = Upstream::scripts([script, healthy()]);
        let stack = Stack::default().budget(budget).build(&upstream);
        let start = Instant::now();

        let outcome = stack.ask(prompt("m")).await;

        assert_eq!(outcome.status, 200);
        let wait = Duration::from_millis(millis);
        assert_eq!(upstream.times(start), [secs(0), wait]);
    }
}

/// covers: G2
#[tokio::test(start_paused = true)]
async fn a_wait_that_is_longer_than_allowed_is_not_begun() {
    for (asked, most) in [
        ("61", 60),
        ("3600", 60),
        (FUTURE, 60),
        ("5.001", 5),
        ("1", 0),
    ] {
        let limited = failure(429).header("retry-after", asked);
        let upstream = Upstream::scripts([limited, healthy()]);
        let budget = no_delay().max_retry_after(secs(most));
        let stack = Stack::default().budget(budget).build(&upstream);

        let outcome = stack.ask(prompt("m")).await;

        assert_eq!(outcome.status, 429);
        assert_eq!(outcome.headers["retry-after"], asked);
        assert_eq!(outcome.whole(), ERROR);
        assert_eq!(upstream.calls(), 1, "{asked}");
        assert_eq!(outcome.at, secs(0));
    }
}

/// covers: G3
#[tokio::test(start_paused = true)]
async fn what_the_upstream_forbids_is_not_repeated_and_what_it_allows_beats_no_class() {
    for (script, calls) in [
        (failure(500).header("x-should-retry", "false"), 1),
        (failure(429).header("x-should-retry", "false"), 1),
        (failure(500).header("x-should-retry", "true"), 2),
        (failure(400).header("x-should-retry", "true"), 1),
        (failure(402).header("x-should-retry", "true"), 1),
    ] {
        let upstream = Upstream::script(script);
        let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());

        service.oneshot(prompt("m")).await.unwrap();

        assert_eq!(upstream.calls(), calls);
    }
}

/// The waits of one call that fails five times.
async fn waits(budget: &RetryBudget) -> Vec<Duration> {
    let upstream = Upstream::script(failure(500));
    let budget = budget.clone().max_attempts_per_candidate(5).unshared();
    let service = RetryBudgetLayer::new(budget).layer(upstream.clone());
    let start = Instant::now();
    service.oneshot(prompt("m")).await.unwrap();
    let times = upstream.times(start);
    times.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// covers: G1, T32
#[tokio::test(start_paused = true)]
async fn the_backoff_is_spread_from_nothing_to_a_limit_that_doubles() {
    let budget = RetryBudget::new().delays(secs(1), secs(4));
    // A timer fires on the millisecond.
    let grain = Duration::from_millis(1);
    let mut longest = [Duration::ZERO; 4];
    let mut shortest = [secs(9); 4];

    for _ in 0..64 {
        for (at, wait) in waits(&budget).await.into_iter().enumerate() {
            assert!(wait <= secs([1, 2, 4, 4][at]) + grain, "{at}: {wait:?}");
            longest[at] = longest[at].max(wait);
            shortest[at] = shortest[at].min(wait);
        }
    }

    for (at, limit) in [1, 2, 4, 4].into_iter().enumerate() {
        // By chance each is missed once in a hundred million times.
        assert!(longest[at] > secs(limit) * 3 / 4, "{longest:?}");
        assert!(shortest[at] < secs(limit) / 4, "{shortest:?}");
    }
}

/// covers: G1
#[tokio::test(start_paused = true)]
async fn a_decorrelated_backoff_is_never_below_its_base() {
    let budget = RetryBudget::new()
        .delays(secs(1), secs(8))
        .jitter(Jitter::Decorrelated);

    for _ in 0..32 {
        let waits = waits(&budget).await;
        assert!(waits.iter().all(|&wait| wait >= secs(1)), "{waits:?}");
        let most = secs(8) + Duration::from_millis(1);
        assert!(waits.iter().all(|&wait| wait <= most), "{waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn ceilings_run_on_during_the_wait() {
    let never = Script::before_head().never();
    let upstream = Upstream::scripts([failure(429).header("retry-after", "20"), never]);
    let stack = Stack::default().ceiling(30).budget(no_delay());
    let start = Instant::now();

    let outcome = stack.build(&upstream).ask(prompt("m")).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
    assert_eq!(outcome.at, secs(30));
    assert_eq!(upstream.times(start), [secs(0), secs(20)]);
}

#[tokio::test(start_paused = true)]
async fn step_windows_stand_still_during_the_wait() {
    for scope in [Scope::Found, Scope::Run] {
        let late = Script::before_head()
            .wait(9.0)
            .head("text/event-stream")
            .data(chat("a"))
            .data(DONE);
        let upstream = Upstream::scripts([failure(429).header("retry-after", "45"), late]);
        let service = ServiceBuilder::new()
            .layer(StepTimeoutLayer::new(secs(10)).scope(scope))
            .layer(RetryBudgetLayer::new(no_delay()))
            .service(upstream.clone());
        let run = Run::open();
        let start = Instant::now();

        let request = run.attach(prompt("m"));
        let answer = service.oneshot(request).await.unwrap();

        assert_eq!(start.elapsed(), secs(54));
        answer.into_body().read().await.whole();
        assert_eq!(run.terminal_reason(), None);
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_gives_no_window_more_than_the_wait() {
    for scope in [Scope::Found, Scope::Run] {
        let never = Script::before_head().never();
        let upstream = Upstream::scripts([failure(429).header("retry-after", "45"), never]);
        let stack = Stack::default()
            .layer(Place::Step, StepTimeoutLayer::new(secs(10)).scope(scope))
            .budget(no_delay());

        let request = Run::open().attach(prompt("m"));
        let outcome = stack.build(&upstream).ask(request).await;

        assert_eq!(outcome.status, Outcome::NO_ANSWER);
        assert_eq!(outcome.reason, Some(TerminalReason::StepTimeout));
        assert_eq!(outcome.at, secs(55));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_try_restarts_the_windows_of_call_and_run() {
    for scope in [Scope::Found, Scope::Run] {
        let slow = Script::before_head().wait(9.0).fail("reset");
        let never = Script::before_head().never();
        let upstream = Upstream::scripts([slow.clone(), slow, never]);
        let stack = Stack::default()
            .layer(Place::Step, StepTimeoutLayer::new(secs(10)).scope(scope))
            .retry(3);
        let run = Run::open();
        let start = Instant::now();

        let request = run.attach(prompt("m"));
        let outcome = stack.build(&upstream).ask(request).await;

        assert_eq!(outcome.status, Outcome::NO_ANSWER);
        assert_eq!(outcome.reason, Some(TerminalReason::StepTimeout));
        assert_eq!(upstream.times(start), [secs(0), secs(9), secs(18)]);
        assert_eq!(outcome.at, secs(28));
        assert_eq!(run.in_flight(), 0);
    }
}

/// covers: C1, T33
#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_in_the_wait_gives_the_repeat_back() {
    let budget = no_delay().shared(0.5, 0);
    let layer = RetryBudgetLayer::new(budget);
    let run = Run::open();
    let failing_once = || Upstream::script(failure(500));
    let first = layer.layer(failing_once()).oneshot(prompt("m"));
    first.await.unwrap();
    let upstream = Upstream::scripts([failure(429).header("retry-after", "30"), healthy()]);
    let (request, call) = attach(&run, prompt("m"));

    // The second deposit makes a whole repeat, which is taken and given back.
    let waiting = layer.layer(upstream.clone()).oneshot(request);
    assert!(timeout(secs(5), waiting).await.is_err());

    assert_eq!(upstream.calls(), 1);
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!(run.in_flight(), 0);
    let third = failing_once();
    let asked = layer.layer(third.clone()).oneshot(prompt("m"));
    asked.await.unwrap();
    assert_eq!(third.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_is_overloaded_is_left_alone_for_longer() {
    let mut longest = [Duration::ZERO; 2];
    for (status, longest) in [500, 529].into_iter().zip(&mut longest) {
        for _ in 0..32 {
            let upstream = Upstream::script(failure(status));
            let budget = RetryBudget::new().delays(secs(1), secs(60)).unshared();
            let service = RetryBudgetLayer::new(budget).layer(upstream.clone());
            let start = Instant::now();
            service.oneshot(prompt("m")).await.unwrap();
            *longest = start.elapsed().max(*longest);
        }
    }

    let [server, overloaded] = longest;
    assert!(server <= secs(1) + Duration::from_millis(1), "{server:?}");
    assert!(overloaded > secs(2), "{overloaded:?}");
    assert!(overloaded <= secs(4) + Duration::from_millis(1));
}

#[tokio::test(start_paused = true)]
async fn a_window_runs_again_after_the_wait() {
    let upstream = Upstream::scripts([
        failure(429).header("retry-after", "20"),
        Script::sse().data(PRELUDE).data(chat("a")).never(),
    ]);
    let stack = Stack::default().step(10).budget(no_delay());

    let outcome = stack.build(&upstream).ask(prompt("m")).await;

    assert_eq!(outcome.terminated().reason, TerminalReason::StepTimeout);
    assert_eq!(outcome.at, secs(30));
}

/// covers: C1, T33
#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_in_the_wait_takes_its_pause_along() {
    let run = Run::open();
    let step = StepTimeoutLayer::new(secs(10)).scope(Scope::Run);
    let upstream = Upstream::scripts([
        failure(429).header("retry-after", "30"),
        Script::before_head().never(),
    ]);
    let service = ServiceBuilder::new()
        .layer(step)
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone());

    let waiting = service.clone().oneshot(run.attach(prompt("m")));
    assert!(timeout(secs(5), waiting).await.is_err());
    let start = Instant::now();
    let error = service.oneshot(run.attach(prompt("m"))).await;

    let reason = reason_of(&error.unwrap_err());
    assert_eq!(reason, Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), secs(10));
}

/// covers: T32
#[tokio::test(start_paused = true)]
async fn calls_of_one_run_that_fail_together_do_not_come_back_together() {
    let mut apart = 0;
    for _ in 0..8 {
        let upstream = Upstream::scripts([failure(429), failure(429), healthy()]);
        let service = RetryBudgetLayer::new(RetryBudget::new()).layer(upstream.clone());
        let run = Run::open();
        let start = Instant::now();

        let calls = [(); 2].map(|()| service.clone().oneshot(run.attach(prompt("m"))));
        let [one, other] = calls;
        let (one, other) = tokio::join!(one, other);

        for answer in [one.unwrap(), other.unwrap()] {
            assert_eq!(answer.status(), 200);
        }
        let times = upstream.times(start);
        assert_eq!(times.len(), 4);
        apart += usize::from(times[2] != times[3]);
    }
    // Of waits of up to two seconds, in milliseconds, two may be the same.
    assert!(apart >= 6, "{apart} of 8");
}
