//! Judges a failed answer: its cause for this call, and what it says about other calls.
//!
//! The cause reads everything that the answer says. What rests a candidate for other calls reads
//! only what the upstream itself can have written: names, headers, and the status. What a text adds
//! to that is a [`Suspicion`], which needs a second witness.

use std::{borrow::Cow, time::Duration};

use http::StatusCode;

use super::{
    class::{self, Concern, Cooldown, FailureClass},
    evidence::Evidence,
    prose,
    signals::{BROAD, DETAILS, EXACT, Found, PHRASES, Row, SHARED, Signal, SignalUntil},
};

/// The signal of an event, or of an answer under a good status, in which nothing was found.
const BY_DEFAULT: &str = "error event";

/// A stated delay above this one tells of a quota, if nothing names the cause: no rate limit lasts
/// for so long.
const LONGEST_RATE_LIMIT: Duration = Duration::from_secs(60 * 60);

/// Beside the name of a quota, a delay up to this one is that of a rate limit: proxies and providers
/// add it to each 429. It says nothing of the quota.
const LONGEST_FALSE_DELAY: Duration = Duration::from_secs(60);

/// What a failure says about other calls, and which signal decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judgment {
    /// The signal that decided the class.
    pub(super) signal: Cow<'static, str>,
    /// What the failure concerns.
    pub(super) concern: Concern,
    /// The rest that the failure begins at once; `None` if it begins none.
    pub(crate) rest: Option<Rest>,
    /// What takes the place of `rest` if the words that say so are not the request's own.
    pub(crate) easing: Option<Easing>,
    /// The rest that the failure begins once a second witness confirms it.
    pub(crate) suspicion: Option<Suspicion>,
}

/// A text that says less than the status beside it: a 402 that only asks to wait, for example.
///
/// It needs no second witness, because it rests nobody whom the status would not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Easing {
    pub rest: Option<Rest>,
    /// The words that must not stand in the request: they may be quoted from it.
    pub words: String,
}

/// A rest of a candidate, or of what it shares with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// The class of the failure that begins the rest.
    pub class: FailureClass,
    /// What rests.
    pub concern: Concern,
    /// The length that the upstream states; `None` for the steps of the class.
    pub stated: Option<Duration>,
}

/// A rest for which there is only a text, which may quote a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspicion {
    pub rest: Rest,
    /// The words that must not stand in the request: they may be quoted from it.
    pub words: String,
}

/// The class of a failure, and where it was read.
#[derive(Clone, Debug)]
struct Cause {
    class: FailureClass,
    concern: Concern,
    until: SignalUntil,
    signal: Cow<'static, str>,
    source: Source,
    /// Whether the signal is a name that several causes share.
    is_general: bool,
}

/// Where a cause was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// A rule of the program, the end of a run elsewhere, or what this crate found itself.
    Ruled,
    /// A name, a field or a header that only the upstream can have written.
    Structured,
    /// A text outside of quotation marks, or a name inside of a text.
    Text,
    /// A text inside of quotation marks.
    Quoted,
    /// The status alone, or nothing.
    Status,
}

/// The inputs of a judgment that are not in the answer's body.
pub(super) struct Circumstances<'a> {
    /// The status of the answer, else the one in the error's code.
    pub(super) status: Option<StatusCode>,
    /// Whether the answer's body is an HTML page.
    pub(super) is_page: bool,
    /// The class that a rule, cut JSON or a stop reason has decided already.
    pub(super) ruled: Option<(FailureClass, &'static str)>,
    /// The class of the terminal reason in the answer's head.
    pub(super) ended: Option<FailureClass>,
    /// The rows of the program.
    pub(super) own: &'a [Signal],
}

/// The class of a failed answer, the delay that it asks for, and the judgment.
pub(super) struct Judged {
    pub(super) class: FailureClass,
    pub(super) retry_after: Option<Duration>,
    pub(super) judgment: Judgment,
}

/// The words of a row that was found in a text.
type Words<'a> = Option<&'a str>;

pub(super) fn judge(evidence: &Evidence<'_>, around: &Circumstances<'_>) -> Judged {
    let (cause, words) = decide(evidence, around, true);
    let (outer, _) = decide(evidence, around, false);
    let all = stated(evidence, &cause, true);
    let known = stated(evidence, &outer, false);
    let rest = rest_of(&outer, around.status, known);
    let easing = easing(&outer, &cause, words, known, rest);
    let suspicion = suspicion(evidence, &cause, words, all, rest);
    let retry_after = match cause.class.retry() {
        // Where nothing is repeated, only the head says when the caller may come back, and the time
        // at which a limit is renewed.
        class::RetrySame::No if cause.class.cooldown() == Cooldown::No => evidence.times.header,
        _ => all,
    };
    Judged {
        class: cause.class,
        retry_after,
        judgment: Judgment {
            signal: cause.signal,
            concern: cause.concern,
            rest,
            easing,
            suspicion,
        },
    }
}

/// Decides the class by all of the evidence, or only by what the upstream itself has written.
fn decide<'a>(
    evidence: &'a Evidence<'_>,
    around: &'a Circumstances<'_>,
    reads_texts: bool,
) -> (Cause, Words<'a>) {
    if let Some((class, signal)) = around.ruled {
        return (Cause::of(class, signal.into(), Source::Ruled), None);
    }
    if let Some(class) = around.ended {
        return (
            Cause::of(class, "x-terminal-reason".into(), Source::Ruled),
            None,
        );
    }
    let status = around.status.map(|status| status.as_u16());
    // An event has no status: its name tells under which status its phrases would come.
    let status = status.or_else(|| evidence.named_status());
    let find = |row: &Row<'_>| {
        let found = row.find(evidence, status)?;
        (reads_texts || found == Found::Structured).then_some(found)
    };
    let first = |rows: &'static [Row<'static>]| {
        #[cfg(test)]
        let mut rows = rows.iter().filter(|row| !super::tests::is_left_out(row));
        #[cfg(not(test))]
        let mut rows = rows.iter();
        rows.find_map(|row| Some((*row, find(row)?)))
    };
    let own = around.own.iter().map(Signal::row);
    let own = own.into_iter().find_map(|row| Some((row, find(&row)?)));
    if let Some((row, found)) = own {
        let signal = row.what.to_owned().into();
        return (Cause::of_row(&row, signal, found), Some(row.what));
    }
    let known = first(EXACT)
        .or_else(|| first(DETAILS))
        .or_else(|| first(PHRASES));
    let shared = || first(SHARED);
    let is_general = known.is_none();
    if let Some((row, found)) = known.or_else(shared) {
        let cause = Cause {
            is_general,
            ..Cause::of_row(&row, row.what.into(), found)
        };
        return (
            refined(cause, evidence, around, reads_texts),
            Some(row.what),
        );
    }
    if let Some((cause, words)) = of_status(evidence, around, reads_texts) {
        return (refined(cause, evidence, around, reads_texts), words);
    }
    if let Some((row, found)) = first(BROAD) {
        let cause = Cause::of_row(&row, row.what.into(), found);
        return (cause, Some(row.what));
    }
    let mut names = evidence.structured_names();
    if let Some(class) = names.find_map(class::of_reason) {
        let signal = "terminal reason".into();
        return (Cause::of(class, signal, Source::Structured), None);
    }
    let signal = match around.status {
        Some(status) => format!("status {}", status.as_u16()).into(),
        None => BY_DEFAULT.into(),
    };
    let class = class::fallback_class(around.status);
    (Cause::of(class, signal, Source::Status), None)
}

/// Whether a text names the plan or the period of a quota.
fn names_a_plan(evidence: &Evidence<'_>) -> bool {
    const PLANS: [&str; 6] = ["plan", "daily", "day", "week", "month", "subscription"];
    let mut texts = evidence.texts.iter();
    texts.any(|text| PLANS.iter().any(|plan| prose::has(text, plan)))
}

/// The phrase by which a 402 says that money is not what is missing.
const LATER: &str = "try again later";

/// The class that the status decides by itself; `None` if it decides none. Also the words that
/// changed it.
fn of_status(
    evidence: &Evidence<'_>,
    around: &Circumstances<'_>,
    reads_texts: bool,
) -> Option<(Cause, Words<'static>)> {
    let status = around.status?;
    let mut class = class::class_of_status(status)?;
    // A firewall sends its page under 403: it blocks by location, not by credential.
    if around.is_page && status == StatusCode::FORBIDDEN {
        class = FailureClass::Region;
    }
    let times = &evidence.times;
    let is_soon = |delay: &Duration| *delay < LONGEST_RATE_LIMIT;
    // An upstream asks for no delay if no credit is left, but for the next window of a plan.
    let asked = times.header.or(times.retry.structured);
    let asks = asked.as_ref().is_some_and(is_soon);
    let said = || {
        let later = |text: &String| prose::find_unquoted(text, LATER).is_some();
        let words = match times.retry.text.as_ref().is_some_and(is_soon) {
            true => Some(times.words),
            false => evidence.texts.iter().any(later).then_some(LATER),
        };
        words.filter(|_| reads_texts && !names_a_plan(evidence))
    };
    let is_quota = class == FailureClass::Quota;
    let said = (is_quota && !asks).then(said).flatten();
    if is_quota && asks || said.is_some() {
        class = FailureClass::RateLimit;
    }
    let signal = format!("status {}", status.as_u16()).into();
    let source = match said {
        Some(_) => Source::Text,
        None => Source::Status,
    };
    Some((Cause::of(class, signal, source), said))
}

/// Tells a rate limit from what is called one: a request that exceeds it by itself, and a quota.
fn refined(
    mut cause: Cause,
    evidence: &Evidence<'_>,
    around: &Circumstances<'_>,
    reads_texts: bool,
) -> Cause {
    if cause.class != FailureClass::RateLimit {
        return cause;
    }
    let is_too_large = around.status == Some(StatusCode::PAYLOAD_TOO_LARGE)
        || reads_texts
            && evidence
                .texts
                .iter()
                .any(|text| prose::has(text, "request too large for"));
    let times = &evidence.times;
    // A limit may be renewed as a whole long after it allows the next call.
    let known = times.header.or(times
        .retry
        .structured
        .max(times.reset.structured)
        .max(times.limit));
    let said = times
        .retry
        .text
        .max(times.reset.text)
        .filter(|_| reads_texts);
    if is_too_large {
        cause.class = FailureClass::RequestLimit;
        cause.concern = Concern::Request;
    } else if times.names_renewal && reads_texts {
        cause.class = FailureClass::Quota;
        cause.concern = Concern::Account;
        cause.source = Source::Text;
    } else if known
        .max(said)
        .is_some_and(|delay| delay > LONGEST_RATE_LIMIT)
    {
        cause.class = FailureClass::Quota;
        // Nothing says that the account's other models are used up.
        cause.concern = Concern::ModelOfAccount;
        if known.is_none_or(|delay| delay <= LONGEST_RATE_LIMIT) {
            cause.source = Source::Text;
        } else if cause.source == Source::Status {
            cause.source = Source::Structured;
        }
    }
    cause
}

/// The time that an answer states for a failure of this cause.
fn stated(evidence: &Evidence<'_>, cause: &Cause, reads_texts: bool) -> Option<Duration> {
    let times = &evidence.times;
    let text = |time: Option<Duration>| time.filter(|_| reads_texts);
    let is_quota = cause.class == FailureClass::Quota;
    let is_limit = is_quota || cause.class == FailureClass::RateLimit;
    let reset = || {
        let limit = times.limit.filter(|_| is_limit);
        let structured = times.reset.structured.max(limit);
        structured.or(text(times.reset.text))
    };
    let retry = || {
        times
            .header
            .or(times.retry.structured)
            .or(text(times.retry.text))
    };
    match cause.until {
        SignalUntil::Renewed => reset(),
        // Beside a quota the time of its renewal says more than a delay.
        SignalUntil::Stated if is_quota => {
            let delay = || retry().filter(|delay| *delay > LONGEST_FALSE_DELAY);
            reset().or_else(delay)
        }
        SignalUntil::Stated => retry().or_else(reset),
    }
}

/// The rest that a failure begins by what the upstream itself has written.
fn rest_of(cause: &Cause, status: Option<StatusCode>, stated: Option<Duration>) -> Option<Rest> {
    let may = match cause.source {
        Source::Ruled | Source::Structured => true,
        Source::Status => status.is_some_and(rests_alone),
        Source::Text | Source::Quoted => false,
    };
    (may && cause.class.cooldown() != Cooldown::No).then_some(Rest {
        class: cause.class,
        concern: cause.concern,
        stated,
    })
}

/// Whether a status begins a rest without a name.
fn rests_alone(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 402 | 429) || status.is_server_error() && status != 501
}

/// What a text says that makes the rest of a status, or of a name that several causes share, shorter
/// or narrower.
fn easing(
    outer: &Cause,
    cause: &Cause,
    words: Words<'_>,
    stated: Option<Duration>,
    rest: Option<Rest>,
) -> Option<Easing> {
    let rest = rest.filter(|_| outer.source == Source::Status || outer.is_general)?;
    if cause.source != Source::Text || cause.class == rest.class {
        return None;
    }
    let narrower = cause.concern.breadth() <= rest.concern.breadth();
    let (shorter, kept) = match (cause.class.cooldown(), rest.class.cooldown()) {
        (Cooldown::No, _) => (true, None),
        (Cooldown::Short, Cooldown::Long | Cooldown::Quota) => (
            true,
            Some(Rest {
                class: cause.class,
                concern: cause.concern,
                stated,
            }),
        ),
        // A longer rest than a moment's is a suspicion, and not more.
        (Cooldown::Long, Cooldown::Long) => (cause.concern != rest.concern, None),
        _ => (false, None),
    };
    let words = words.unwrap_or_default().to_owned();
    (narrower && shorter).then_some(Easing { rest: kept, words })
}

/// The rest that a text adds to `rest`.
fn suspicion(
    evidence: &Evidence<'_>,
    cause: &Cause,
    words: Words<'_>,
    stated: Option<Duration>,
    rest: Option<Rest>,
) -> Option<Suspicion> {
    let suspected = Rest {
        class: cause.class,
        concern: cause.concern,
        stated,
    };
    let is_more = rest != Some(suspected) && cause.class.cooldown() != Cooldown::No;
    if !is_more || cause.source == Source::Quoted {
        return None;
    }
    let is_said = cause.source == Source::Text || rest.is_some_and(|rest| rest.stated != stated);
    let words = match (cause.source, words) {
        (Source::Text, Some(words)) => words.to_owned(),
        // The time alone is from a text.
        _ => evidence.times.words.to_owned(),
    };
    is_said.then_some(Suspicion {
        rest: suspected,
        words,
    })
}

impl Cause {
    fn of(class: FailureClass, signal: Cow<'static, str>, source: Source) -> Self {
        Self {
            class,
            concern: class.concern(),
            until: SignalUntil::Stated,
            signal,
            source,
            is_general: false,
        }
    }

    fn of_row(row: &Row<'_>, signal: Cow<'static, str>, found: Found) -> Self {
        Self {
            class: row.class,
            concern: row.concern(),
            until: row.until,
            signal,
            source: match found {
                Found::Structured => Source::Structured,
                Found::Text => Source::Text,
                Found::Quoted => Source::Quoted,
            },
            is_general: false,
        }
    }
}

impl Judgment {
    /// Whether no signal was found.
    pub(super) fn is_by_default(&self) -> bool {
        self.signal == BY_DEFAULT
    }

    /// The judgment of a failure without an answer, or of one that this crate found itself: its
    /// class says what rests.
    pub(super) fn of_class(class: FailureClass, stated: Option<Duration>) -> Self {
        let rest = Rest {
            class,
            concern: class.concern(),
            stated,
        };
        Self {
            signal: Cow::Borrowed(""),
            concern: class.concern(),
            rest: (class.cooldown() != Cooldown::No).then_some(rest),
            easing: None,
            suspicion: None,
        }
    }
}
