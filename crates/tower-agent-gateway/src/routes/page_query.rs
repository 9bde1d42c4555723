//! `?limit=100&after=CURSOR`: the page of runs that a request lists.

use tower_agent::registry::RunCursor;

/// The default number of runs on a page.
const USUAL: usize = 100;

/// The most runs on a page: a snapshot is about a kilobyte of JSON.
const MOST: usize = 1000;

/// A page of the runs, newest first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) limit: usize,
    pub(super) after: Option<RunCursor>,
}

/// Reads the page of a query, which may hold nothing else.
///
/// # Errors
///
/// A message that names the mistake.
pub(super) fn read(query: Option<&str>) -> Result<Page, String> {
    let mut page = Page {
        limit: USUAL,
        after: None,
    };
    let pairs = query.unwrap_or_default().split('&');
    for pair in pairs.filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match name {
            "limit" => {
                let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
                let limit = value.parse().ok().filter(|_| is_number);
                page.limit = limit
                    .filter(|limit| (1..=MOST).contains(limit))
                    .ok_or_else(|| {
                        format!("limit = {value:?} is not a whole number from 1 to {MOST}")
                    })?;
            }
            "after" => {
                let after = value
                    .parse()
                    .map_err(|error| format!("after = {value:?} is {error}"))?;
                page.after = Some(after);
            }
            _ => {
                return Err(format!(
                    "unknown parameter {name:?}: there are limit and after"
                ));
            }
        }
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read() {
        let after = "17".parse().unwrap();
        for (query, limit, after) in [
            (None, 100, None),
            (Some(""), 100, None),
            (Some("limit=1"), 1, None),
            (Some("after=17&limit=1000"), 1000, Some(after)),
        ] {
            assert_eq!(read(query), Ok(Page { limit, after }), "{query:?}");
        }
    }

    #[test]
    fn what_is_no_page_is_named() {
        for (query, told) in [
            (
                "limit=0",
                "limit = \"0\" is not a whole number from 1 to 1000",
            ),
            ("limit=1001", "limit = \"1001\" is not"),
            ("limit=+5", "limit = \"+5\" is not"),
            ("limit=-5", "limit = \"-5\" is not"),
            ("limit=all", "limit = \"all\" is not"),
            ("limit", "limit = \"\" is not"),
            ("after=x", "after = \"x\" is not a cursor"),
            ("limt=5", "unknown parameter \"limt\""),
        ] {
            let error = read(Some(query)).unwrap_err();
            assert!(error.starts_with(told), "{error}");
        }
    }
}
