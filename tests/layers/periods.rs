//! Caps of an owner in a day, a week and a month of the calendar.
//!
//! covers: D6, H8, H12

use std::{
    ops::Range,
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, advance};
use tower::Layer;
use tower_agent::{
    OwnerCapLayer, OwnerCaps, RunLayer, RunRegistry, TerminalReason, TokenCaps,
    registry::{Calendar, CalendarPeriod, UtcCalendar},
};

use crate::support::{
    DONE, FINISH, Outcome, Place, Script, Stack, StackService, Upstream, prompt, secs, with_header,
};

/// 2026-11-29, a Sunday, at 23:50 UTC: the day and the week end in ten minutes, the month in a day.
const SUNDAY: Duration = Duration::from_secs(20_786 * DAY + DAY - 600);

const DAY: u64 = 24 * 3600;

/// UTC, by a clock that the tests move.
#[derive(Debug)]
pub(crate) struct PausedCalendar {
    pub(crate) began: Instant,
}

impl PausedCalendar {
    fn new() -> Self {
        Self {
            began: Instant::now(),
        }
    }
}

impl Calendar for PausedCalendar {
    fn bounds(&self, period: CalendarPeriod, at: SystemTime) -> Range<SystemTime> {
        UtcCalendar.bounds(period, at)
    }

    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + SUNDAY + self.began.elapsed()
    }
}

fn capped(caps: OwnerCaps) -> (StackService, Upstream, RunRegistry) {
    let upstream = Upstream::script(Script::json().data("{}"));
    let registry = RunRegistry::new();
    registry.set_calendar(PausedCalendar::new());
    let service = OwnerCapLayer::new(registry.clone(), caps).layer(upstream.clone());
    let service = StackService::new(RunLayer::new(registry.clone()).layer(service));
    (service, upstream, registry)
}

async fn ask(service: &StackService, owner: &'static str) -> Outcome {
    service
        .ask(with_header(prompt("a"), "authorization", owner))
        .await
}

async fn is_refused(service: &StackService, owner: &'static str, why: &str) {
    let refused = ask(service, owner).await;
    assert_eq!(refused.reason, Some(TerminalReason::TurnCap), "{why}");
    let message = refused.terminated().message();
    assert!(message.contains(why), "{message}");
}

#[tokio::test(start_paused = true)]
async fn the_turns_of_a_day_are_back_at_midnight_and_those_of_a_week_on_monday() {
    let caps = OwnerCaps::new().turns_per_day(2).turns_per_month(6);
    let (service, upstream, _) = capped(caps);
    for _ in 0..2 {
        ask(&service, "one").await.whole();
    }
    is_refused(
        &service,
        "one",
        "2 turns this day, as many as it may (turn_cap_reached). Wait for the next day",
    )
    .await;
    ask(&service, "two").await.whole();
    advance(secs(599)).await;
    is_refused(&service, "one", "2 turns this day").await;
    advance(secs(1)).await;
    for _ in 0..2 {
        ask(&service, "one").await.whole();
    }
    is_refused(&service, "one", "2 turns this day").await;
    // The first of the next month.
    advance(secs(DAY)).await;
    ask(&service, "one").await.whole();
    assert_eq!(upstream.calls(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_month_is_counted_through_its_days_and_without_requests() {
    let caps = OwnerCaps::new()
        .turns_per_day(2)
        .turns_per_week(3)
        .turns_per_month(4);
    let (service, _, registry) = capped(caps);
    // A new month, and the middle of a week: Tuesday.
    advance(secs(DAY + 600)).await;
    for _ in 0..2 {
        ask(&service, "one").await.whole();
    }
    advance(secs(DAY)).await;
    ask(&service, "one").await.whole();
    is_refused(&service, "one", "3 turns this week").await;
    advance(secs(5 * DAY)).await;
    // Other owners' requests make the registry forget what counts no more.
    ask(&service, "two").await.whole();
    ask(&service, "one").await.whole();
    is_refused(&service, "one", "4 turns this month").await;
    advance(secs(20 * DAY)).await;
    ask(&service, "three").await.whole();
    is_refused(&service, "one", "4 turns this month").await;
    // Another calendar whose month began then: the count goes on.
    registry.set_calendar(UtcCalendar);
    registry.set_calendar(PausedCalendar {
        began: Instant::now() - secs(27 * DAY),
    });
    is_refused(&service, "one", "4 turns this month").await;
    advance(secs(7 * DAY)).await;
    ask(&service, "one").await.whole();
}

#[tokio::test(start_paused = true)]
async fn the_cap_that_is_met_first_is_the_one_that_is_named() {
    let tokens = TokenCaps::new().max_output_tokens(100);
    for (caps, words) in [
        (
            OwnerCaps::new().tokens_per_day(tokens),
            "used up, this day, its 100 output tokens",
        ),
        (
            OwnerCaps::new().tokens_per_week(tokens),
            "used up, this week, its 100 output tokens",
        ),
        (
            OwnerCaps::new().tokens_per_month(tokens),
            "used up, this month, its 100 output tokens",
        ),
    ] {
        let answer = Script::sse().data(super::token_cap::ten()).data(FINISH);
        let answer = answer.data(super::token_cap::usage(7, 60)).data(DONE);
        let upstream = Upstream::script(answer);
        let registry = RunRegistry::new();
        registry.set_calendar(PausedCalendar::new());
        let layer = OwnerCapLayer::new(registry.clone(), caps);
        let stack = Stack::default()
            .run(&registry)
            .layer(Place::OwnerCap, layer);
        let service = stack.retry(1).build(&upstream);
        for _ in 0..2 {
            ask(&service, "one").await.whole();
        }
        let refused = ask(&service, "one").await;
        assert_eq!(refused.reason, Some(TerminalReason::TokenCap));
        let message = refused.terminated().message();
        assert!(message.contains(words), "{message}");
        ask(&service, "two").await.whole();
        // The hour is over, and the period is not.
        if !words.contains("month") {
            continue;
        }
        advance(secs(3 * 3600)).await;
        assert_eq!(
            ask(&service, "one").await.reason,
            Some(TerminalReason::TokenCap)
        );
        advance(secs(DAY)).await;
        ask(&service, "one").await.whole();
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_over_midnight_counts_in_each_day_what_came_in_it() {
    let upstream = Upstream::script(Script::sse().repeat(100, 60.0, super::token_cap::ten()));
    let registry = RunRegistry::new();
    registry.set_calendar(PausedCalendar::new());
    let caps = OwnerCaps::new().tokens_per_day(TokenCaps::new().max_output_tokens(155));
    let layer = OwnerCapLayer::new(registry.clone(), caps);
    let stack = Stack::default()
        .run(&registry)
        .layer(Place::OwnerCap, layer);
    let cut = ask(&stack.retry(1).build(&upstream), "one").await;
    assert_eq!(cut.reason, Some(TerminalReason::TokenCap));
    // Nine or ten frames before midnight, and sixteen after it.
    assert!((25..=27).contains(&cut.frames), "{}", cut.frames);
}
