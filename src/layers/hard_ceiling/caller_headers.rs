use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

/// Until the head, or for a whole answer.
const ANSWER: HeaderName = HeaderName::from_static("x-stainless-timeout");

/// Until the head, then between two bytes.
const SILENCE: HeaderName = HeaderName::from_static("x-stainless-read-timeout");

/// For everything.
const TOTAL: HeaderName = HeaderName::from_static("grpc-timeout");

/// What a timer can measure: less would end a call in the poll that begins it.
const SHORTEST: Duration = Duration::from_millis(1);

/// No call lasts longer.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// How long a caller waits, as it announced; each from the call's opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallerLimits {
    /// For the last byte.
    pub(super) total: Option<Duration>,
    /// For the head; for the last byte of an answer that is no event stream.
    pub(super) answer: Option<Duration>,
    /// For the head, and then for each further byte.
    pub(super) silence: Option<Duration>,
}

impl CallerLimits {
    /// What the headers say; none if that is nothing.
    ///
    /// A hint that cannot be read is as good as none: what no SDK means must
    /// neither end a call nor refuse it. Of several of one name the shortest
    /// that can be read counts, since what comes over the wire only tightens.
    pub(super) fn by(headers: &HeaderMap) -> Option<Self> {
        let silence = shortest(headers, &SILENCE, seconds);
        // Anthropic's SDK for Python puts its one read timeout into both.
        let answer = shortest(headers, &ANSWER, seconds).filter(|answer| Some(*answer) != silence);
        let total = shortest(headers, &TOTAL, grpc);
        let announced = Self {
            total,
            answer,
            silence,
        };
        announced.until_the_head().map(|_| announced)
    }

    /// The earliest of all, since each is also a limit to the head.
    pub(super) fn until_the_head(&self) -> Option<Duration> {
        let all = [self.total, self.answer, self.silence];
        all.into_iter().flatten().min()
    }

    /// What of it is left from the head on, but for the silence.
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

/// Seconds as the SDKs write a number: `600`, `0.5`, `1e-05`.
fn seconds(text: &str) -> Option<Duration> {
    let number = |byte: u8| byte.is_ascii_digit() || b".eE+-".contains(&byte);
    // Words that would be read as numbers too: "inf", "NaN".
    if !text.bytes().all(number) {
        return None;
    }
    let seconds: f64 = text.parse().ok().filter(|seconds| *seconds > 0.0)?;
    // Out of range is what it says: very long.
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST))
}

/// At most eight digits and a unit, as gRPC puts it.
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
