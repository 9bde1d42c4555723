//! What a caller's headers announce.

mod caller_headers;

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::caller_limits::CallerLimits;

fn by(pairs: &[(&'static str, &str)]) -> Option<CallerLimits> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let value = HeaderValue::from_str(value).unwrap();
        headers.append(HeaderName::from_static(name), value);
    }
    CallerLimits::of(&headers)
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
