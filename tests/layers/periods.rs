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

/// UTC with an offset, by a clock that begins at a day and a time.
#[derive(Debug)]
struct Town {
    began: Instant,
    at: SystemTime,
    ahead: Duration,
}

impl Calendar for Town {
    fn bounds(&self, period: CalendarPeriod, at: SystemTime) -> Range<SystemTime> {
        let Range { start, end } = UtcCalendar.bounds(period, at + self.ahead);
        start - self.ahead..end - self.ahead
    }

    fn now(&self) -> SystemTime {
        self.at + self.began.elapsed()
    }
}

/// A server in a place at this time of UTC, in days since 1970 and seconds.
fn at_place(day: u64, second: u64, ahead: u64, caps: OwnerCaps) -> StackService {
    let (service, _, registry) = capped(caps);
    registry.set_calendar(Town {
        began: Instant::now(),
        at: SystemTime::UNIX_EPOCH + secs(day * DAY + second),
        ahead: secs(ahead),
    });
    service
}

const HOUR: u64 = 3600;

/// A budget that is set in the middle of a month begins anew with the next month, not a month later, and
/// not after 30 days (github.com/BerriAI/litellm/issues/4196, /4042 and /9098).
#[tokio::test(start_paused = true)]
async fn a_month_ends_with_the_month_however_long_it_is() {
    // 2027-01-31 at noon, and 2027-02-15 at noon.
    for (day, until) in [(20_849, DAY / 2), (20_864, 13 * DAY + DAY / 2)] {
        let service = at_place(day, DAY / 2, 0, OwnerCaps::new().turns_per_month(1));
        ask(&service, "one").await.whole();
        advance(secs(until - 1)).await;
        is_refused(&service, "one", "1 turns this month").await;
        advance(secs(1)).await;
        ask(&service, "one").await.whole();
    }
}

/// Days begin at midnight and weeks on Monday, whenever the first request came
/// (github.com/BerriAI/litellm/issues/10288 and /41211).
#[tokio::test(start_paused = true)]
async fn a_day_begins_at_midnight_and_a_week_on_monday_whenever_the_first_request_came() {
    // A Thursday, 2026-11-26, at 15:43.
    let afternoon = 15 * HOUR + 43 * 60;
    let caps = OwnerCaps::new().turns_per_day(1).turns_per_week(2);
    let service = at_place(20_783, afternoon, 0, caps);
    ask(&service, "one").await.whole();
    advance(secs(DAY - afternoon - 1)).await;
    is_refused(&service, "one", "this day").await;
    advance(secs(1)).await;
    ask(&service, "one").await.whole();
    advance(secs(2 * DAY)).await;
    is_refused(&service, "one", "this week").await;
    advance(secs(DAY - 1)).await;
    is_refused(&service, "one", "this week").await;
    advance(secs(1)).await;
    ask(&service, "one").await.whole();
}

/// East of UTC a day ends at the midnight of the place, and is 24 hours long: not when UTC's day does
/// (github.com/BerriAI/litellm/pull/40978).
#[tokio::test(start_paused = true)]
async fn a_day_of_another_place_is_24_hours_from_its_midnight() {
    // 21:30 in Shanghai.
    let caps = OwnerCaps::new().turns_per_day(2);
    let service = at_place(20_783, 13 * HOUR + 1800, 8 * HOUR, caps);
    ask(&service, "one").await.whole();
    ask(&service, "one").await.whole();
    is_refused(&service, "one", "this day").await;
    advance(secs(2 * HOUR + 1800)).await;
    ask(&service, "one").await.whole();
    advance(secs(8 * HOUR)).await;
    // UTC's midnight is nothing here.
    ask(&service, "one").await.whole();
    is_refused(&service, "one", "this day").await;
    advance(secs(16 * HOUR - 1)).await;
    is_refused(&service, "one", "this day").await;
    advance(secs(1)).await;
    ask(&service, "one").await.whole();
}

/// What a caller used long ago does not fill a window that it is given now
/// (github.com/BerriAI/litellm/issues/34492).
#[tokio::test(start_paused = true)]
async fn a_window_that_is_set_later_does_not_begin_full() {
    let upstream = Upstream::script(Script::json().data("{}"));
    let registry = RunRegistry::new();
    registry.set_calendar(PausedCalendar::new());
    let with = |caps| {
        let service = OwnerCapLayer::new(registry.clone(), caps).layer(upstream.clone());
        StackService::new(RunLayer::new(registry.clone()).layer(service))
    };
    let hourly = with(OwnerCaps::new().turns_per_hour(1000));
    for _ in 0..500 {
        ask(&hourly, "one").await.whole();
    }
    let daily = with(OwnerCaps::new().turns_per_day(3));
    for _ in 0..3 {
        ask(&daily, "one").await.whole();
    }
    is_refused(&daily, "one", "3 turns this day").await;
}

/// One cap that is used up does not hide that another one is met first in the next period: the spending of
/// each window is its own, and none is for the life of the process (github.com/BerriAI/litellm/issues/40020
/// and /24675).
#[tokio::test(start_paused = true)]
async fn no_window_counts_for_the_life_of_the_process() {
    let caps = OwnerCaps::new().turns_per_day(2);
    let service = at_place(20_783, 12 * HOUR, 0, caps);
    for _ in 0..400 {
        ask(&service, "one").await.whole();
        ask(&service, "one").await.whole();
        is_refused(&service, "one", "2 turns this day").await;
        advance(secs(DAY)).await;
    }
}
