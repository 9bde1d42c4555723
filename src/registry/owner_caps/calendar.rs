//! The days, weeks and months in which what owners use counts against their caps.

use std::{
    fmt,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, SystemTime},
};

use crate::{lock::Lock, wall_clock::wall_clock};

/// A period of the calendar, in which what an owner uses counts against its caps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalendarPeriod {
    /// A day.
    Day,
    /// A week, which begins on Monday.
    Week,
    /// A month.
    Month,
}

impl CalendarPeriod {
    /// All periods.
    pub const ALL: [Self; 3] = [Self::Day, Self::Week, Self::Month];

    /// The name of the period: `day`, `week` or `month`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }
}

impl fmt::Display for CalendarPeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The calendar of a registry: when its days, weeks and months begin and end.
///
/// [`UtcCalendar`] is the default. A program that has a time zone implements this with a library that
/// knows it, and [sets](crate::RunRegistry::set_calendar) it.
///
/// ```
/// use std::{ops::Range, time::{Duration, SystemTime}};
///
/// use tower_agent::{
///     RunRegistry,
///     registry::{Calendar, CalendarPeriod, UtcCalendar},
/// };
///
/// /// A place that is five hours behind UTC all year.
/// #[derive(Debug)]
/// struct Lima;
///
/// const OFFSET: Duration = Duration::from_secs(5 * 3600);
///
/// impl Calendar for Lima {
///     fn bounds(&self, period: CalendarPeriod, at: SystemTime) -> Range<SystemTime> {
///         let Range { start, end } = UtcCalendar.bounds(period, at - OFFSET);
///         start + OFFSET..end + OFFSET
///     }
/// }
///
/// let registry = RunRegistry::new();
/// registry.set_calendar(Lima);
/// ```
pub trait Calendar: fmt::Debug + Send + Sync + 'static {
    /// The period of this kind in which `at` lies: from its first moment to the first one after it.
    ///
    /// The call is made under a lock, once a period, and must not block.
    fn bounds(&self, period: CalendarPeriod, at: SystemTime) -> Range<SystemTime>;

    /// The present time: by default the system's.
    fn now(&self) -> SystemTime {
        wall_clock()
    }
}

/// The calendar of UTC.
#[derive(Clone, Copy, Debug, Default)]
pub struct UtcCalendar;

const DAY: u64 = 24 * 3600;

impl Calendar for UtcCalendar {
    fn bounds(&self, period: CalendarPeriod, at: SystemTime) -> Range<SystemTime> {
        let since = at.duration_since(SystemTime::UNIX_EPOCH);
        let day = since.unwrap_or_default().as_secs() / DAY;
        let days = match period {
            CalendarPeriod::Day => day..day + 1,
            CalendarPeriod::Week => {
                // The day 0 was a Thursday.
                let monday = (day + 3) / 7 * 7;
                monday.saturating_sub(3)..monday + 4
            }
            CalendarPeriod::Month => month_of(day),
        };
        let at = |day: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(day * DAY);
        at(days.start)..at(days.end)
    }
}

/// The days of the month in which the day lies. Days count from 1970.
fn month_of(day: u64) -> Range<u64> {
    let is_leap = |year: u64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    // 400 years have 146,097 days.
    let mut first = day / 146_097 * 146_097;
    let mut year = 1970 + first / 146_097 * 400;
    loop {
        let days = if is_leap(year) { 366 } else { 365 };
        if day < first + days {
            break;
        }
        first += days;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < first + days {
            return first..first + days;
        }
        first += days;
    }
    first..first + 31
}

/// A period of the calendar that runs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PresentPeriod {
    pub(crate) began: SystemTime,
    pub(crate) ends: SystemTime,
}

impl PresentPeriod {
    const NONE: Self = Self {
        began: SystemTime::UNIX_EPOCH,
        ends: SystemTime::UNIX_EPOCH,
    };
}

/// The periods that run now, each if a cap asks for it.
pub(crate) type PresentPeriods = [Option<PresentPeriod>; 3];

/// The calendar in use, and the periods for which a cap asks.
#[derive(Debug)]
pub(crate) struct Periods {
    /// A bit for each period with a cap.
    capped: AtomicU8,
    state: Lock<PeriodState>,
}

#[derive(Debug)]
struct PeriodState {
    calendar: Arc<dyn Calendar>,
    /// Of each period the one that was the present one last.
    last: [PresentPeriod; 3],
}

impl Default for Periods {
    fn default() -> Self {
        Self {
            capped: AtomicU8::new(0),
            state: Lock::new(PeriodState {
                calendar: Arc::new(UtcCalendar),
                last: [PresentPeriod::NONE; 3],
            }),
        }
    }
}

impl Periods {
    pub(super) fn set_calendar(&self, calendar: Arc<dyn Calendar>) {
        let mut state = self.state.lock();
        state.calendar = calendar;
        state.last = [PresentPeriod::NONE; 3];
    }

    /// Counts in this period from now on.
    pub(super) fn count(&self, period: CalendarPeriod) {
        let bit = 1 << period as u8;
        self.capped.fetch_or(bit, Ordering::Relaxed);
    }

    /// The present time by the calendar.
    pub(super) fn now(&self) -> SystemTime {
        self.state.lock().calendar.now()
    }

    /// The periods that count now.
    pub(super) fn present(&self) -> PresentPeriods {
        let capped = self.capped.load(Ordering::Relaxed);
        if capped == 0 {
            return [None; 3];
        }
        let mut state = self.state.lock();
        let PeriodState { calendar, last } = &mut *state;
        let now = calendar.now();
        CalendarPeriod::ALL.map(|period| {
            if capped & (1 << period as u8) == 0 {
                return None;
            }
            let last = &mut last[period as usize];
            if now < last.began || now >= last.ends {
                let Range { start, end } = calendar.bounds(period, now);
                *last = PresentPeriod {
                    began: start,
                    ends: end,
                };
            }
            Some(*last)
        })
    }
}

/// What is counted in the present period of a kind; in the next one it is nothing again.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeriodCount<T> {
    began: SystemTime,
    count: T,
}

impl<T: Default> Default for PeriodCount<T> {
    fn default() -> Self {
        Self {
            began: SystemTime::UNIX_EPOCH,
            count: T::default(),
        }
    }
}

impl<T: Copy + Default> PeriodCount<T> {
    /// The count, if it is of this period.
    pub(super) fn in_period(&self, present: PresentPeriod) -> T {
        match self.began == present.began {
            true => self.count,
            false => T::default(),
        }
    }

    pub(super) fn set(&mut self, present: PresentPeriod, count: T) {
        *self = Self {
            began: present.began,
            count,
        };
    }
}

#[cfg(test)]
mod tests {
    //! covers: D6

    use super::*;

    fn days(period: CalendarPeriod, day: u64) -> (u64, u64) {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(day * DAY + DAY - 1);
        let bounds = UtcCalendar.bounds(period, at);
        let day_of =
            |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / DAY;
        (day_of(bounds.start), day_of(bounds.end))
    }

    #[test]
    fn days_weeks_and_months_follow_each_other_without_a_gap() {
        for period in CalendarPeriod::ALL {
            let mut end = days(period, 4).1;
            let mut months = Vec::new();
            // 800 years.
            while end < 2 * 146_097 {
                let (began, ends) = days(period, end);
                assert_eq!(began, end, "{period}");
                for day in [began, (began + ends) / 2, ends - 1] {
                    assert_eq!(days(period, day), (began, ends), "{period}");
                }
                months.push(ends - began);
                end = ends;
            }
            let expected = match period {
                CalendarPeriod::Day => 1..=1,
                CalendarPeriod::Week => 7..=7,
                CalendarPeriod::Month => 28..=31,
            };
            assert!(months.iter().all(|days| expected.contains(days)));
        }
    }

    #[test]
    fn known_dates_are_in_their_periods() {
        // 2026-11-29 is day 20,786 and a Sunday; 2024-02-29 is day 19,782 and a Thursday.
        assert_eq!(days(CalendarPeriod::Day, 20_786), (20_786, 20_787));
        assert_eq!(days(CalendarPeriod::Week, 20_786), (20_780, 20_787));
        assert_eq!(days(CalendarPeriod::Month, 20_786), (20_758, 20_788));
        assert_eq!(days(CalendarPeriod::Week, 19_782), (19_779, 19_786));
        assert_eq!(days(CalendarPeriod::Month, 19_782), (19_754, 19_783));
        // 2100 is no leap year: February ends with day 47,540.
        assert_eq!(days(CalendarPeriod::Month, 47_540), (47_513, 47_541));
    }
}
