use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header that limits the head, or a whole answer that is no event stream.
const ANSWER: HeaderName = HeaderName::from_static("x-stainless-timeout");

/// The header that limits the head, then the time between two bytes of the body.
const SILENCE: HeaderName = HeaderName::from_static("x-stainless-read-timeout");

/// The header that limits the whole answer, as a gRPC timeout.
const TOTAL: HeaderName = HeaderName::from_static("grpc-timeout");

/// The shortest limit, a timer's resolution: less would end a call in its first poll.
const SHORTEST: Duration = Duration::from_millis(1);

/// The longest limit that is kept; a longer one counts as this one.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// The limits that a caller announces, from the opening of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallerLimits {
    /// The longest time until the last byte of the answer.
    pub(super) total: Option<Duration>,
    /// The longest time until the head, or the last byte of an answer that is no event stream.
    pub(super) answer: Option<Duration>,
    /// The longest time until the head, and then until each further byte.
    pub(super) silence: Option<Duration>,
}

impl CallerLimits {
    /// The limits in a caller's headers; `None` if there are none.
    ///
    /// An unreadable value counts as absent: a value that no SDK sends must neither end a
    /// call nor refuse it. Of several values of one header the shortest counts, since
    /// a caller may only tighten.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let silence = shortest(headers, &SILENCE, seconds);
        // Anthropic's SDK for Python sends its read timeout under both names.
        let answer = shortest(headers, &ANSWER, seconds).filter(|answer| Some(*answer) != silence);
        let total = shortest(headers, &TOTAL, grpc);
        let announced = Self {
            total,
            answer,
            silence,
        };
        announced.until_the_head().map(|_| announced)
    }

    /// The time limit for the head: the earliest of all limits, as each holds until then.
    pub(super) fn until_the_head(&self) -> Option<Duration> {
        let all = [self.total, self.answer, self.silence];
        all.into_iter().flatten().min()
    }

    /// The time limit for the body, from the opening of the call, without the silence.
    pub(super) fn after_the_head(&self, streams: bool) -> Option<Duration> {
        let answer = self.answer.filter(|_| !streams);
        [self.total, answer].into_iter().flatten().min()
    }
}

fn shortest(
    headers: &HeaderMap,
    name: &HeaderName,
    read: impl Fn(&str) -> Option<Duration>,
) -> Option<Duration> {
    let values = headers.get_all(name).iter();
    let read = |value: &HeaderValue| {
        let limit = value.to_str().ok().and_then(|text| read(text.trim()));
        if limit.is_none() {
            tracing::debug!(header = %name, ?value, "no deadline, and ignored");
        }
        limit
    };
    let limit = values.filter_map(read).min()?;
    Some(limit.clamp(SHORTEST, LONGEST))
}

/// Parses seconds as the SDKs write them: `600`, `0.5`, `1e-05`.
fn seconds(text: &str) -> Option<Duration> {
    let number = |byte: u8| byte.is_ascii_digit() || b".eE+-".contains(&byte);
    // Excludes words that parse as a number: "inf", "NaN".
    if !text.bytes().all(number) {
        return None;
    }
    let seconds: f64 = text.parse().ok().filter(|seconds| *seconds > 0.0)?;
    // A number out of range means a very long time.
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST))
}

/// Parses a timeout of gRPC: at most eight digits and a unit.
fn grpc(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok().filter(|value| *value > 0)?;
    match unit {
        "H" => Some(Duration::from_secs(value * 3600)),
        "M" => Some(Duration::from_secs(value * 60)),
        "S" => Some(Duration::from_secs(value)),
        "m" => Some(Duration::from_millis(value)),
        "u" => Some(Duration::from_micros(value)),
        "n" => Some(Duration::from_nanos(value)),
        _ => None,
    }
}
