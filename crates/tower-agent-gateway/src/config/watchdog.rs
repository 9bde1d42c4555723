//! `[watchdog]`: the services that examine runs that look stuck.

use std::ops::Range;
use std::time::Duration;

use http::Uri;
use toml::Spanned;

use super::candidates::url;
use super::error::Problem;
use super::limit::Limit;
use super::{file, number};

/// `[watchdog]`; it has a checker, a question, or both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WatchdogServices {
    /// The URL that answers a run's snapshot with a verdict.
    pub(crate) checker: Option<Uri>,
    /// The longest that a check may take; `None` is the library's default.
    pub(crate) check_within: Option<Duration>,
    /// The URL that answers a question whether a run shall go on.
    pub(crate) question: Option<Uri>,
    /// The longest that an answer may take; `None` as long as the run lives.
    pub(crate) answer_within: Option<Duration>,
    /// Whether the checker's verdict alone ends a run.
    pub(crate) ends: bool,
    /// Whether the watchdog only gives notices, asks no question and ends no run.
    pub(crate) observe: bool,
    /// The most bytes of each action, and of the task, that the services see.
    pub(crate) excerpts: u32,
}

/// The most bytes of an excerpt, as in the library.
const MOST_EXCERPT: u32 = 1024;

/// Resolves the table. Only the loop guard tells the gateway what a run does, so without `loops`
/// no run ever looks stuck.
pub(super) fn watchdog(
    table: Spanned<file::WatchdogTable>,
    loops: bool,
) -> Result<WatchdogServices, Problem> {
    let needs = |what: &str, there: bool, need: &str, span: Option<Range<usize>>| match span {
        Some(span) if !there => {
            Err(Problem::new(format!("{what} is of no use without {need}")).at(span))
        }
        _ => Ok(()),
    };
    let span = table.span();
    let table = table.into_inner();
    let (checks, asks) = (table.checker.is_some(), table.question.is_some());
    needs("[watchdog]", loops, "[loops]", Some(span.clone()))?;
    needs(
        "[watchdog]",
        checks || asks,
        "`checker` or `question`",
        Some(span),
    )?;
    let of = table.check_within.as_ref().map(Spanned::span);
    needs("watchdog.check_within", checks, "watchdog.checker", of)?;
    let of = table.answer_within.as_ref().map(Spanned::span);
    needs("watchdog.answer_within", asks, "watchdog.question", of)?;
    let of = table.ends.as_ref().map(Spanned::span);
    needs("watchdog.ends", checks, "watchdog.checker", of)?;
    let url = |key, text: Option<Spanned<String>>| {
        let url = |text| url(key, &text, "http://host/path");
        text.map(url).transpose()
    };
    let excerpts = number::count("watchdog.excerpts", table.excerpts, 0..=MOST_EXCERPT)?;
    Ok(WatchdogServices {
        checker: url("watchdog.checker", table.checker)?,
        check_within: Limit::above_zero("watchdog.check_within", table.check_within)?,
        question: url("watchdog.question", table.question)?,
        answer_within: Limit::read("watchdog.answer_within", table.answer_within)?.or(None),
        ends: table.ends.is_some_and(Spanned::into_inner),
        observe: table.observe.unwrap_or(false),
        excerpts: excerpts.unwrap_or(0),
    })
}
