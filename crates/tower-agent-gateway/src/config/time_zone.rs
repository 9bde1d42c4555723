//! `auth.timezone`: the place whose days, weeks and months the caps of owners count in.

use std::{ops::Range, time::SystemTime};

use jiff::{Timestamp, ToSpan, Zoned, civil::Weekday, tz};
use tower_agent::registry::{Calendar, CalendarPeriod, UtcCalendar};

/// A time zone of the IANA database, which is in the program; UTC by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimeZone(tz::TimeZone);

impl Default for TimeZone {
    fn default() -> Self {
        Self(tz::TimeZone::UTC)
    }
}

impl TimeZone {
    pub(super) fn named(name: &str) -> Result<Self, String> {
        let zone = tz::TimeZone::get(name);
        zone.map(Self).map_err(|_| {
            format!("{name:?} is not a time zone such as \"Europe/Berlin\" or \"UTC\"")
        })
    }

    fn zoned(&self, period: CalendarPeriod, at: SystemTime) -> Result<Range<Zoned>, jiff::Error> {
        let now = Timestamp::try_from(at)?.to_zoned(self.0.clone());
        let today = now.date();
        let (first, next) = match period {
            CalendarPeriod::Day => (today, today.tomorrow()?),
            CalendarPeriod::Week => {
                let since = today.weekday().since(Weekday::Monday);
                let monday = today.checked_sub(i64::from(since).days())?;
                (monday, monday.checked_add(1.week())?)
            }
            CalendarPeriod::Month => {
                let first = today.first_of_month();
                (first, first.checked_add(1.month())?)
            }
        };
        // A day that does not begin at midnight begins with the first time that it has.
        let begin = |date: jiff::civil::Date| date.to_zoned(self.0.clone());
        Ok(begin(first)?..begin(next)?)
    }
}

impl Calendar for TimeZone {
    fn bounds(&self, period: CalendarPeriod, at: SystemTime) -> Range<SystemTime> {
        match self.zoned(period, at) {
            Ok(bounds) => bounds.start.timestamp().into()..bounds.end.timestamp().into(),
            // The clock is beyond the years that have dates.
            Err(_) => UtcCalendar.bounds(period, at),
        }
    }
}

#[cfg(test)]
mod tests {
    //! covers: D6

    use super::*;

    fn bounds(zone: &str, period: CalendarPeriod, at: &str) -> String {
        let at: Timestamp = at.parse().unwrap();
        let zone = TimeZone::named(zone).unwrap();
        let bounds = zone.bounds(period, at.into());
        let text = |at: SystemTime| Timestamp::try_from(at).unwrap().to_string();
        format!("{} {}", text(bounds.start), text(bounds.end))
    }

    #[test]
    fn days_weeks_and_months_are_those_of_the_place() {
        use CalendarPeriod::{Day, Month, Week};

        for (zone, period, at, expected) in [
            (
                "Europe/Berlin",
                Day,
                "2026-11-28T23:30:00Z",
                "2026-11-28T23:00:00Z 2026-11-29T23:00:00Z",
            ),
            (
                "Europe/Berlin",
                Week,
                "2026-11-29T22:59:59Z",
                "2026-11-22T23:00:00Z 2026-11-29T23:00:00Z",
            ),
            (
                "Europe/Berlin",
                Month,
                "2026-10-31T23:00:00Z",
                "2026-10-31T23:00:00Z 2026-11-30T23:00:00Z",
            ),
            // A day of 25 hours, and a month with a change of the clocks.
            (
                "Europe/Berlin",
                Day,
                "2026-10-25T12:00:00Z",
                "2026-10-24T22:00:00Z 2026-10-25T23:00:00Z",
            ),
            (
                "Europe/Berlin",
                Month,
                "2026-03-15T00:00:00Z",
                "2026-02-28T23:00:00Z 2026-03-31T22:00:00Z",
            ),
            // The clocks go forward at midnight: the day begins at one.
            (
                "America/Havana",
                Day,
                "2026-03-08T12:00:00Z",
                "2026-03-08T05:00:00Z 2026-03-09T04:00:00Z",
            ),
            (
                "Asia/Kolkata",
                Month,
                "2026-11-30T18:30:00Z",
                "2026-11-30T18:30:00Z 2026-12-31T18:30:00Z",
            ),
        ] {
            assert_eq!(bounds(zone, period, at), expected, "{zone} {period} {at}");
        }
    }

    #[test]
    fn utc_is_the_calendar_of_the_library() {
        let mut at = SystemTime::UNIX_EPOCH;
        let step = std::time::Duration::from_secs(86_400 * 5 + 3_607);
        for _ in 0..20_000 {
            at += step;
            for period in CalendarPeriod::ALL {
                let expected = UtcCalendar.bounds(period, at);
                assert_eq!(TimeZone::default().bounds(period, at), expected, "{at:?}");
            }
        }
    }

    #[test]
    fn what_is_no_time_zone_is_named() {
        let error = TimeZone::named("Mars/Olympus").unwrap_err();
        assert_eq!(
            error,
            "\"Mars/Olympus\" is not a time zone such as \"Europe/Berlin\" or \"UTC\""
        );
    }
}
