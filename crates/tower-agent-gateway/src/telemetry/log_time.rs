//! The time of a line of the log.

use std::{
    cell::RefCell,
    fmt::{self, Write},
    time::{Duration, SystemTime},
};

use tracing_subscriber::fmt::{format::Writer, time::FormatTime};

/// Writes the time as tracing-subscriber does by default, `2026-11-29T20:10:10.123456Z`.
///
/// Each thread keeps the text of its last second, so that most lines format six digits.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogTime;

/// A second since 1970, and its text without a fraction.
struct LastSecond {
    second: u64,
    text: String,
}

thread_local! {
    static LAST: RefCell<LastSecond> = const {
        RefCell::new(LastSecond { second: u64::MAX, text: String::new() })
    };
}

impl FormatTime for LogTime {
    #[expect(
        clippy::disallowed_methods,
        reason = "a line of the log has the time of day"
    )]
    fn format_time(&self, line: &mut Writer<'_>) -> fmt::Result {
        write_time(line, SystemTime::now())
    }
}

fn write_time(line: &mut impl Write, now: SystemTime) -> fmt::Result {
    // No clock of a machine that runs this is before 1970.
    let since = now.duration_since(SystemTime::UNIX_EPOCH);
    let since = since.unwrap_or_default();
    LAST.with_borrow_mut(|last| {
        if last.second != since.as_secs() {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs());
            last.text = humantime::format_rfc3339_seconds(at).to_string();
            last.text.pop();
            last.second = since.as_secs();
        }
        line.write_str(&last.text)
    })?;
    let mut fraction = *b".000000Z";
    let mut micros = since.subsec_micros();
    for digit in fraction[1..7].iter_mut().rev() {
        // A digit is less than 10.
        *digit += (micros % 10) as u8;
        micros /= 10;
    }
    line.write_str(std::str::from_utf8(&fraction).map_err(|_| fmt::Error)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_to_the_microsecond() {
        let written = |seconds, nanos| {
            let mut line = String::new();
            let at = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
            write_time(&mut line, at).unwrap();
            line
        };
        assert_eq!(written(0, 0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(written(1_795_982_400, 1_999), "2026-11-29T20:00:00.000001Z");
        assert_eq!(
            written(1_795_982_400, 999_999_999),
            "2026-11-29T20:00:00.999999Z"
        );
        assert_eq!(
            written(1_795_982_401, 40_000),
            "2026-11-29T20:00:01.000040Z"
        );
        assert_eq!(written(0, 1_000_000), "1970-01-01T00:00:00.001000Z");
    }
}
