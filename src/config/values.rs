//! The values of a configuration: times, numbers and URLs, each checked as it is read.

use std::{fmt, time::Duration};

use http::Uri;
use humantime::DurationError;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use crate::run::Price;

/// The time to which longer ones are cut: far beyond any run, and safe to add to an instant.
pub(super) const LONGEST: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A span of time: a text such as `"1500ms"` or `"5m"`, or a number of seconds.
///
/// Times beyond 30 days are cut to 30 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub(super) Duration);

/// A whole number from `LEAST` to `MOST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BoundedCount<const LEAST: u32, const MOST: u32>(pub(super) u32);

/// A number from 0 to `MOST`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BoundedNumber<const MOST: u32>(pub(super) f64);

/// An amount of money, from 0 to a billion.
pub type Amount = BoundedNumber<{ Price::MAX as u32 }>;

/// An absolute `http` or `https` URL without credentials, query, fragment and trailing slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url(Uri);

/// A value before it is checked.
#[derive(Deserialize)]
#[serde(untagged, expecting = "the value is neither a number nor a text")]
enum Raw {
    Flag(bool),
    Whole(i64),
    Number(f64),
    Text(String),
}

impl Span {
    /// The time as a limit; `None` if it is zero.
    #[must_use]
    pub const fn limit(self) -> Option<Duration> {
        match self.0 {
            Duration::ZERO => None,
            limit => Some(limit),
        }
    }

    /// The time itself.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }

    fn read(raw: &Raw) -> Result<Duration, String> {
        let seconds = |number: f64| match Duration::try_from_secs_f64(number) {
            Ok(time) => Ok(time.min(LONGEST)),
            Err(_) if number > 0.0 => Ok(LONGEST),
            Err(_) => Err("is negative: write 0 to switch the limit off".to_owned()),
        };
        match raw {
            Raw::Whole(number) => seconds(*number as f64),
            Raw::Number(number) if !number.is_nan() => seconds(*number),
            Raw::Text(text) if text.trim_start().starts_with('-') => {
                Err("is negative: write \"0s\" to switch the limit off".to_owned())
            }
            Raw::Text(text) if text.contains('M') => {
                Err("is in months: write \"m\" for minutes".to_owned())
            }
            Raw::Text(text) => match humantime::parse_duration(text) {
                Ok(time) => Ok(time.min(LONGEST)),
                // Without a fraction, an overflow means a time that is too long: the longest
                // counts. With a fraction it is an error, because humantime reports an overflow
                // also for a part below a nanosecond.
                Err(DurationError::NumberOverflow) if !text.contains('.') => Ok(LONGEST),
                Err(error) => Err(format!("is not a duration such as \"60s\": {error}")),
            },
            Raw::Flag(_) | Raw::Number(_) => {
                Err("is not a duration: write \"60s\", or 60 for seconds".to_owned())
            }
        }
    }
}

impl<const LEAST: u32, const MOST: u32> BoundedCount<LEAST, MOST> {
    /// The number as a limit; `None` if it is zero.
    #[must_use]
    pub const fn limit(self) -> Option<u32> {
        match self.0 {
            0 => None,
            limit => Some(limit),
        }
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl<const MOST: u32> BoundedNumber<MOST> {
    /// The number as a limit; `None` if it is zero.
    #[must_use]
    pub const fn limit(self) -> Option<f64> {
        if self.0 > 0.0 { Some(self.0) } else { None }
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl Url {
    /// The URL.
    #[must_use]
    pub const fn get(&self) -> &Uri {
        &self.0
    }

    fn read(text: &str) -> Result<Uri, String> {
        let uri: Uri = text
            .trim_end_matches('/')
            .parse()
            .map_err(|error| format!("is not a URL ({error}): it must be absolute"))?;
        let (Some("http" | "https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err("must be an absolute http or https URL".to_owned());
        };
        let has_port = authority.port_u16().is_some() || authority.as_str() == authority.host();
        let why = if authority.as_str().contains('@') {
            "must not hold credentials"
        } else if uri.query().is_some() || text.contains('#') {
            "must have no query and no fragment"
        } else if authority.host().is_empty() || !has_port {
            "must name a host, and a port only from 0 to 65535"
        } else {
            return Ok(uri);
        };
        Err(why.to_owned())
    }
}

/// Reads a value and checks it. The message of a failed check begins with the value.
fn read<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    check: impl FnOnce(&Raw) -> Result<T, String>,
) -> Result<T, D::Error> {
    let raw = Raw::deserialize(deserializer)?;
    check(&raw).map_err(|why| D::Error::custom(format!("{raw} {why}")))
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(deserializer, Self::read).map(Self)
    }
}

impl<'de, const LEAST: u32, const MOST: u32> Deserialize<'de> for BoundedCount<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(deserializer, |raw| {
            let number = match raw {
                Raw::Whole(number) => u32::try_from(*number).ok(),
                _ => None,
            };
            let number = number.filter(|number| (LEAST..=MOST).contains(number));
            number.ok_or_else(|| format!("is not a whole number from {LEAST} to {MOST}"))
        })
        .map(Self)
    }
}

impl<'de, const MOST: u32> Deserialize<'de> for BoundedNumber<MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(deserializer, |raw| {
            let number = match raw {
                Raw::Whole(number) => *number as f64,
                Raw::Number(number) => *number,
                Raw::Flag(_) | Raw::Text(_) => f64::NAN,
            };
            // The range contains neither NaN nor an infinity.
            let is_in_range = (0.0..=f64::from(MOST)).contains(&number);
            let wrong = || format!("is not a number from 0 to {MOST}");
            is_in_range.then_some(number).ok_or_else(wrong)
        })
        .map(Self)
    }
}

impl<'de> Deserialize<'de> for Url {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::read(&text).map(Self).map_err(|why| {
            // A URL with an `@` is hidden: it may hold a password, and the message is logged.
            let shown = if text.contains('@') {
                "[hidden]"
            } else {
                &text
            };
            D::Error::custom(format!("{shown:?} {why}, as in \"https://host/v1\""))
        })
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(self.0))
    }
}

impl Serialize for Url {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl fmt::Display for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => flag.fmt(f),
            Self::Whole(number) => number.fmt(f),
            Self::Number(number) => write!(f, "{number:?}"),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// Whether one of these times limits anything: zero disables a limit.
pub(super) fn limits_anything(times: &[Option<Span>]) -> bool {
    times.iter().flatten().any(|time| time.limit().is_some())
}
