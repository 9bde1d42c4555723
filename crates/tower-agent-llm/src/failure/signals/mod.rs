//! The signals by which upstreams tell the cause of a failure, as rows of one table.
//!
//! A [`Signal`] is a row of the program; the rows of [`table`] are this crate's own. Both kinds are
//! read through a [`Row`].

mod table;

use std::fmt;

use super::{
    class::{Concern, FailureClass},
    evidence::{Evidence, is_named},
    prose,
};

pub(super) use self::table::{BROAD, DETAILS, EXACT, PHRASES, PUT_OFF, SHARED};

/// Where in an answer a signal stands.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SignalPlace {
    /// The signal is the value of a field that names the error: `type`, `code`, `status`, `reason`
    /// and their equivalents, or `x-amzn-errortype`. The value is the whole name, and AWS's
    /// namespace, address and suffix `Exception` do not count.
    Name,
    /// The signal is a phrase in the error's message, in any letter case.
    Phrase,
    /// The signal is the beginning of the error's message, in any letter case.
    Start,
    /// The signal is a header of the answer: its name, or `name: value` with a part of its value.
    Header,
    /// The signal is a part of the id or metric of an exceeded quota, as Google reports it.
    Quota,
    /// The signal is a field of the error that has a value: `metadata.reasons`,
    /// `metadata.flagged_input` or `metadata.provider_name`.
    Field,
}

/// How long a rest lasts that a signal begins.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SignalUntil {
    /// The rest lasts as long as the answer states, else as its class does.
    #[default]
    Stated,
    /// The rest lasts until the time at which the answer says that a limit is renewed, else as its
    /// class does. A stated delay before the next try does not count: upstreams send one of half a
    /// minute under the quota of a day.
    Renewed,
}

/// A row of the program for the judgment of failed answers: what an upstream says, and what it
/// means.
///
/// The rows of the program come before this crate's own; of several that fit, the first one
/// decides. The judgment of a call reads a phrase wherever it stands. What it says about others
/// needs a second witness, because an upstream may quote a caller: see
/// `tower_agent::Cooldowns`.
///
/// # Examples
///
/// A proxy that reports a used-up plan under 400:
///
/// ```
/// use std::time::SystemTime;
/// use http::{HeaderMap, StatusCode};
/// use tower_agent_llm::failure::{Classifier, FailureClass, Signal};
///
/// let spent = Signal::name("team_plan_spent", FailureClass::Quota);
/// let classifier = Classifier::new().signals([spent]);
///
/// let body = br#"{"error":{"code":"team_plan_spent","message":"Ask your admin."}}"#;
/// let (status, headers) = (StatusCode::BAD_REQUEST, HeaderMap::new());
/// let failure = classifier.of_answer(status, &headers, body, SystemTime::now()).unwrap();
/// assert_eq!(failure.class, FailureClass::Quota);
/// assert_eq!(failure.signal(), "team_plan_spent");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signal {
    place: SignalPlace,
    what: String,
    beside: String,
    statuses: Vec<u16>,
    class: FailureClass,
    concern: Option<Concern>,
    until: SignalUntil,
    is_quoted: bool,
}

impl Signal {
    /// Creates a signal: an error with `what` at this place is of this class.
    #[must_use]
    pub fn new(place: SignalPlace, what: impl Into<String>, class: FailureClass) -> Self {
        Self {
            place,
            what: what.into(),
            beside: String::new(),
            statuses: Vec::new(),
            class,
            concern: None,
            until: SignalUntil::Stated,
            is_quoted: false,
        }
    }

    /// Creates a signal of an error with this name.
    #[must_use]
    pub fn name(name: impl Into<String>, class: FailureClass) -> Self {
        Self::new(SignalPlace::Name, name, class)
    }

    /// Creates a signal of an error with this phrase in its message.
    #[must_use]
    pub fn phrase(phrase: impl Into<String>, class: FailureClass) -> Self {
        Self::new(SignalPlace::Phrase, phrase, class)
    }

    /// Makes the signal count only beside an error with this name.
    #[must_use]
    pub fn beside(mut self, name: impl Into<String>) -> Self {
        self.beside = name.into();
        self
    }

    /// Makes the signal count only under these statuses. Without them it counts under any, and in
    /// the events of streams.
    #[must_use]
    pub fn under(mut self, statuses: impl IntoIterator<Item = u16>) -> Self {
        self.statuses = statuses.into_iter().collect();
        self
    }

    /// Sets what the failure concerns; by default that of its [class](FailureClass::concern).
    #[must_use]
    pub const fn concerns(mut self, concern: Concern) -> Self {
        self.concern = Some(concern);
        self
    }

    /// Sets how long a rest lasts that the signal begins.
    #[must_use]
    pub const fn until(mut self, until: SignalUntil) -> Self {
        self.until = until;
        self
    }

    /// Makes the phrase count for others also where it stands in quotation marks.
    ///
    /// For an upstream that quotes its own words. Mostly a quoted phrase is a caller's.
    #[must_use]
    pub const fn quoted(mut self) -> Self {
        self.is_quoted = true;
        self
    }

    /// The signal's place in an answer.
    #[must_use]
    pub const fn place(&self) -> SignalPlace {
        self.place
    }

    /// The name, phrase or header that the signal looks for.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    pub(super) fn row(&self) -> Row<'_> {
        Row {
            place: self.place,
            what: &self.what,
            beside: &self.beside,
            statuses: &self.statuses,
            class: self.class,
            concern: self.concern,
            until: self.until,
            is_quoted: self.is_quoted,
            provider: "",
        }
    }
}

/// The phrases of the table.
pub fn phrases() -> impl Iterator<Item = &'static str> {
    PHRASES.iter().map(|row| row.what)
}

/// A row of a table of signals; see [`Signal`] for its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row<'a> {
    pub(super) place: SignalPlace,
    pub(super) what: &'a str,
    /// The name that the error must have besides; empty if any will do.
    pub(super) beside: &'a str,
    /// The statuses under which the signal counts; empty for any and none.
    pub(super) statuses: &'a [u16],
    pub(super) class: FailureClass,
    pub(super) concern: Option<Concern>,
    pub(super) until: SignalUntil,
    pub(super) is_quoted: bool,
    /// The providers that send the signal.
    pub(super) provider: &'a str,
}

/// How a row was found in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Only the upstream can have written it.
    Structured,
    /// It stands in a text or in a name inside of a text, outside of quotation marks.
    Text,
    /// It stands in quotation marks, so that it is most likely a caller's.
    Quoted,
}

impl Row<'_> {
    pub(super) fn concern(&self) -> Concern {
        self.concern.unwrap_or(self.class.concern())
    }

    /// Finds the signal in an answer with this status; `None` if it is not there.
    pub(super) fn find(&self, evidence: &Evidence<'_>, status: Option<u16>) -> Option<Found> {
        let counts = |status| self.statuses.contains(&status);
        if !self.statuses.is_empty() && !status.is_some_and(counts) {
            return None;
        }
        let has = |known: &str, may_be_inner: bool| {
            let names = evidence.names.iter();
            names
                .filter(|name| may_be_inner || !name.is_inner)
                .any(|name| is_named(known, &name.text))
        };
        if !self.beside.is_empty() && !has(self.beside, true) {
            return None;
        }
        match self.place {
            SignalPlace::Name if has(self.what, false) => Some(Found::Structured),
            SignalPlace::Name => has(self.what, true).then_some(Found::Text),
            SignalPlace::Header => evidence.has_header(self.what).then_some(Found::Structured),
            SignalPlace::Quota => {
                let quotas = evidence.quotas.iter();
                let fits = quotas.filter(|quota| quota.text.contains(self.what));
                // Of those that fit, one that is not inside of a text says the most.
                fits.map(|quota| quota.is_inner)
                    .min()
                    .map(|is_inner| match is_inner {
                        true => Found::Text,
                        false => Found::Structured,
                    })
            }
            SignalPlace::Field => evidence
                .fields
                .contains(&self.what)
                .then_some(Found::Structured),
            SignalPlace::Phrase | SignalPlace::Start => self.find_words(evidence),
        }
    }

    fn find_words(&self, evidence: &Evidence<'_>) -> Option<Found> {
        let mut best = None;
        for text in &evidence.texts {
            let at = match self.place {
                SignalPlace::Start => prose::starts(text, self.what).then_some(0),
                _ => prose::position(text, self.what),
            };
            match at {
                Some(at) if self.is_quoted || !prose::is_quoted(text, at) => {
                    return Some(Found::Text);
                }
                Some(_) => best = Some(Found::Quoted),
                None => {}
            }
        }
        best
    }
}

impl fmt::Display for SignalPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "name",
            Self::Phrase => "phrase",
            Self::Start => "start",
            Self::Header => "header",
            Self::Quota => "quota",
            Self::Field => "field",
        })
    }
}
