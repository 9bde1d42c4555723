//! The parameters of the routes, as axum's [`Query`](axum::extract::Query) reads them.
//!
//! A parameter that the route does not have is an error, which names it: a mistyped one would
//! otherwise be ignored.

use std::{fmt::Display, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, de::Error};
use tower_agent::{RunRegistry, registry::RunCursor};

use super::{
    names::OwnerNames,
    replicas::Positions,
    selection::{RunOrder, RunPhase, Selection},
};

/// The default number of runs on a page.
const PAGE: usize = 100;

/// The most runs on a page: a snapshot is about a kilobyte of JSON.
pub(super) const MAX_PAGE: usize = 1000;

/// The longest wait; a client that wants to wait longer repeats its request.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// `?limit=100&after=CURSOR&replicas=all`: a page of the runs, newest first.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PageQuery {
    pub(super) state: Option<RunPhase>,
    /// The name of a key, or what the library prints of an owner.
    pub(super) owner: Option<String>,
    pub(super) session: Option<String>,
    pub(super) candidate: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) sort: RunOrder,
    #[serde(deserialize_with = "page_size")]
    pub(super) limit: usize,
    #[serde(deserialize_with = "cursor")]
    pub(super) after: Option<PageStart>,
    pub(super) replicas: Option<AnswerScope>,
}

impl PageQuery {
    /// Which runs the list shows.
    pub(super) fn selection(&self, names: &OwnerNames) -> Selection {
        Selection {
            state: self.state,
            owner: self.owner.as_deref().map(|text| names.printed(text)),
            session: self.session.clone(),
            candidate: self.candidate.clone(),
            reason: self.reason.clone(),
            older_than_ms: None,
        }
    }
}

/// Where a page begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PageStart {
    /// Behind a run of this gateway.
    Own(RunCursor),
    /// Behind these positions in the runs of several.
    All(Positions),
}

/// `?replicas=all`: the events of all gateways.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct EventsQuery {
    pub(super) replicas: Option<AnswerScope>,
}

/// The gateways that an answer covers, if not this one alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum AnswerScope {
    All,
}

/// `?limit=30s`: how long a request waits for the end of a run, at most [`MAX_WAIT`].
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WaitQuery {
    #[serde(deserialize_with = "wait")]
    pub(super) limit: Duration,
}

impl Default for PageQuery {
    fn default() -> Self {
        Self {
            state: None,
            owner: None,
            session: None,
            candidate: None,
            reason: None,
            sort: RunOrder::Started,
            limit: PAGE,
            after: None,
            replicas: None,
        }
    }
}

impl Default for WaitQuery {
    fn default() -> Self {
        Self {
            limit: RunRegistry::WAIT,
        }
    }
}

fn page_size<'de, D: Deserializer<'de>>(value: D) -> Result<usize, D::Error> {
    let text = String::deserialize(value)?;
    // `usize::from_str` also takes a sign.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let size = text.parse().ok().filter(|_| is_number);
    size.filter(|size| (1..=MAX_PAGE).contains(size))
        .ok_or_else(|| wrong(&text, format!("not a whole number from 1 to {MAX_PAGE}")))
}

fn cursor<'de, D: Deserializer<'de>>(value: D) -> Result<Option<PageStart>, D::Error> {
    let text = String::deserialize(value)?;
    if let Ok(positions) = text.parse() {
        return Ok(Some(PageStart::All(positions)));
    }
    let cursor = RunCursor::from_str(&text).map_err(|error| wrong(&text, error))?;
    Ok(Some(PageStart::Own(cursor)))
}

fn wait<'de, D: Deserializer<'de>>(value: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(value)?;
    let limit = humantime::parse_duration(&text)
        .map_err(|error| wrong(&text, format!("not a duration such as \"30s\": {error}")))?;
    Ok(limit.min(MAX_WAIT))
}

fn wrong<E: Error>(text: &str, what: impl Display) -> E {
    E::custom(format!("{text:?} is {what}"))
}

#[cfg(test)]
mod tests {
    //! covers: C6

    use axum::extract::Query;
    use serde::de::DeserializeOwned;

    use super::*;

    fn read<T: DeserializeOwned>(query: &str) -> Result<T, String> {
        let uri = format!("/runs?{query}").parse().unwrap();
        let read = Query::try_from_uri(&uri);
        read.map(|Query(read)| read)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_page_is_read() {
        let after = || Some(PageStart::Own("17".parse().unwrap()));
        let of_all = || Some(PageStart::All("a-1~17~b-2~0".parse().unwrap()));
        let all = Some(AnswerScope::All);
        for (query, limit, after, replicas) in [
            ("", 100, None, None),
            ("limit=1", 1, None, None),
            ("after=17&limit=1000", 1000, after(), None),
            ("after=%317&", 100, after(), None),
            ("replicas=all&after=a-1~17~b-2~0", 100, of_all(), all),
        ] {
            let page = PageQuery {
                limit,
                after,
                replicas,
                ..PageQuery::default()
            };
            assert_eq!(read(query), Ok(page), "{query:?}");
        }
    }

    #[test]
    fn what_a_list_shows_is_read() {
        let query = "state=open&owner=coder&session=s&candidate=m&reason=aborted&sort=silent";
        let page = read::<PageQuery>(query).unwrap();
        assert_eq!(page.sort, RunOrder::Silent);
        let wanted = Selection {
            state: Some(RunPhase::Open),
            owner: Some("coder".to_owned()),
            session: Some("s".to_owned()),
            candidate: Some("m".to_owned()),
            reason: Some("aborted".to_owned()),
            older_than_ms: None,
        };
        assert_eq!(page.selection(&OwnerNames::default()), wanted);
    }

    #[test]
    fn a_wrong_page_is_named() {
        for (query, named) in [
            (
                "limit=0",
                "limit: \"0\" is not a whole number from 1 to 1000",
            ),
            ("limit=1001", "limit: \"1001\" is not"),
            ("limit=%2B5", "limit: \"+5\" is not"),
            ("limit=-5", "limit: \"-5\" is not"),
            ("limit=all", "limit: \"all\" is not"),
            ("limit", "limit: \"\" is not"),
            ("limit=1&limit=2", "duplicate field `limit`"),
            ("after=x", "after: \"x\" is not a cursor"),
            (
                "limt=5",
                "unknown field `limt`, expected one of `state`, `owner`, `session`, `candidate`, `reason`, `sort`, `limit`, `after`, `replicas`",
            ),
            ("after=a-1~x", "after: \"a-1~x\" is not a cursor"),
            (
                "replicas=two",
                "replicas: unknown variant `two`, expected `all`",
            ),
            ("replicas", "replicas: unknown variant ``, expected `all`"),
        ] {
            let error = read::<PageQuery>(query).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn a_wait_is_read_and_cut() {
        let seconds = |query| read::<WaitQuery>(query).map(|wait| wait.limit.as_secs_f64());

        assert_eq!(seconds(""), Ok(30.0));
        assert_eq!(seconds("limit=1500ms"), Ok(1.5));
        assert_eq!(seconds("limit=0s"), Ok(0.0));
        assert_eq!(seconds("limit=10m"), Ok(600.0));
        assert_eq!(seconds("limit=30days"), Ok(600.0));
    }

    #[test]
    fn a_wrong_wait_is_named() {
        for (query, named) in [
            ("limit=soon", "limit: \"soon\" is not a duration"),
            ("limit=30", "limit: \"30\" is not a duration"),
            ("limit=-5s", "limit: \"-5s\" is not a duration"),
            ("limit=", "limit: \"\" is not a duration"),
            ("limit", "limit: \"\" is not a duration"),
            ("limt=5s", "unknown field `limt`, expected `limit`"),
        ] {
            let error = read::<WaitQuery>(query).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
