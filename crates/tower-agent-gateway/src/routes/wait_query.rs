//! `?limit=30s`: how long a request waits for the end of a run.

use std::time::Duration;

use tower_agent::RunRegistry;

/// The longest wait; a client that wants to wait longer repeats its request.
const LONGEST: Duration = Duration::from_secs(600);

/// Reads the limit of a query, which may hold nothing else; a limit above `LONGEST` is cut to it.
///
/// # Errors
///
/// A message that names the mistake.
pub(super) fn read(query: Option<&str>) -> Result<Duration, String> {
    let mut limit = RunRegistry::WAIT;
    let pairs = query.unwrap_or_default().split('&');
    for pair in pairs.filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if name != "limit" {
            return Err(format!("unknown parameter {name:?}: there is only limit"));
        }
        limit = humantime::parse_duration(value).map_err(|error| {
            format!("limit = {value:?} is not a duration such as \"30s\": {error}")
        })?;
    }
    Ok(limit.min(LONGEST))
}

#[cfg(test)]
mod tests {
    //! covers: C6

    use super::*;

    #[test]
    fn a_limit_is_read_and_cut() {
        let seconds = |query| read(query).map(|limit| limit.as_secs_f64());

        assert_eq!(seconds(None), Ok(30.0));
        assert_eq!(seconds(Some("")), Ok(30.0));
        assert_eq!(seconds(Some("limit=1500ms")), Ok(1.5));
        assert_eq!(seconds(Some("limit=0s")), Ok(0.0));
        assert_eq!(seconds(Some("limit=10m")), Ok(600.0));
        assert_eq!(seconds(Some("limit=30days")), Ok(600.0));
    }

    #[test]
    fn what_is_no_limit_is_named() {
        for (query, told) in [
            ("limit=soon", "limit = \"soon\" is not a duration"),
            ("limit=30", "limit = \"30\" is not a duration"),
            ("limit=-5s", "limit = \"-5s\" is not a duration"),
            ("limit=", "limit = \"\" is not a duration"),
            ("limit", "limit = \"\" is not a duration"),
            ("limt=5s", "unknown parameter \"limt\""),
        ] {
            let error = read(Some(query)).unwrap_err();
            assert!(error.starts_with(told), "{error}");
        }
    }
}
