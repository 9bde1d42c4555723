//! The format of a case, as the README of `tests/field` has it.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;
use serde_json::Value;

/// A report, as it is played once: a file, with one of its variations merged into it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    /// The path below the folder, and the variation.
    #[serde(skip)]
    pub(crate) name: String,
    /// Where the report is, and what happened.
    pub(crate) report: Report,
    /// Whether it held when it was first run.
    #[allow(dead_code, reason = "for readers")]
    pub(crate) held_at_first: Option<bool>,
    /// Whether it is known not to hold yet.
    #[serde(default)]
    pub(crate) open: bool,
    /// How the upstreams send the bodies of their errors.
    #[serde(default)]
    pub(crate) sent_as: SentAs,
    #[serde(default = "two_candidates")]
    pub(crate) candidates: Vec<Candidate>,
    /// Tables of the gateway's file, above those that a case has anyway.
    #[serde(default)]
    pub(crate) gateway: toml::Table,
    #[serde(default)]
    pub(crate) request: Request,
    /// What each candidate answers, in order; the last answer repeats.
    #[serde(default)]
    pub(crate) answers: BTreeMap<String, Vec<Answer>>,
    pub(crate) expect: Expect,
    /// Requests that follow.
    #[serde(default)]
    pub(crate) then: Vec<Then>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Report {
    pub(crate) source: String,
    pub(crate) what: String,
    pub(crate) kind: String,
}

/// The places of an error in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SentAs {
    /// The body of an answer with the status.
    #[default]
    Answer,
    /// The first event of a stream under 200.
    FirstEvent,
    /// An event behind content.
    AfterContent,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Candidate {
    /// What callers call it.
    pub(crate) name: String,
    /// By default its name.
    model: Option<String>,
    /// Candidates of one account have one key; by default each has its own.
    pub(crate) account: Option<String>,
    /// Candidates of one host have one upstream; by default each account has its own.
    pub(crate) host: Option<String>,
    #[serde(default)]
    pub(crate) refuses_connection: bool,
    /// Further keys of its table in the gateway's file.
    #[serde(default)]
    pub(crate) config: toml::Table,
}

impl Candidate {
    fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            model: None,
            account: None,
            host: None,
            refuses_connection: false,
            config: toml::Table::new(),
        }
    }

    pub(crate) fn model(&self) -> &str {
        self.model.as_ref().unwrap_or(&self.name)
    }

    pub(crate) fn account(&self) -> &str {
        self.account.as_ref().unwrap_or(&self.name)
    }

    /// The value of its key.
    pub(crate) fn key(&self) -> String {
        format!("sk-{}", self.account())
    }

    pub(crate) fn host(&self) -> &str {
        self.host.as_deref().unwrap_or_else(|| self.account())
    }
}

fn two_candidates() -> Vec<Candidate> {
    ["a", "b"].map(Candidate::named).into()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Operation {
    #[default]
    Chat,
    Responses,
    Messages,
    CountTokens,
    Embeddings,
    Images,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    #[serde(default)]
    pub(crate) operation: Operation,
    #[serde(default)]
    pub(crate) stream: bool,
    /// By default that of the first candidate.
    pub(crate) model: Option<String>,
    pub(crate) prompt: Option<String>,
    /// Further fields of the body; they replace those that are there.
    #[serde(default)]
    pub(crate) body: serde_json::Map<String, Value>,
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    /// Who asks: `one`, by default, or `two`.
    #[serde(default)]
    pub(crate) owner: Owner,
    /// When the gateway's process stops, from the request on, and for how long.
    pub(crate) freeze_ms: Option<[u64; 2]>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Owner {
    #[default]
    One,
    Two,
}

/// An answer of an upstream: at most one of `json`, `body`, `events`, `chunks` and `healthy`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Answer {
    /// The operation that it answers; by default each.
    pub(crate) operation: Option<Operation>,
    pub(crate) status: Option<u16>,
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) json: Option<Value>,
    pub(crate) body: Option<String>,
    /// The events of a stream, each without its blank line.
    pub(crate) events: Option<Vec<String>>,
    /// The pieces of a body, each in a write of its own.
    pub(crate) chunks: Option<Vec<String>>,
    /// A good answer in the shape that the request asks for.
    #[serde(default)]
    pub(crate) healthy: bool,
    /// A pause before the head.
    #[serde(default)]
    pub(crate) head_pause_ms: u64,
    /// A pause before each event or chunk.
    #[serde(default)]
    pub(crate) pause_ms: Pauses,
    /// The version of the head.
    #[serde(default)]
    pub(crate) http: Http,
    /// What comes instead of the end of the body.
    #[serde(default)]
    pub(crate) close: Close,
}

/// The pauses of an answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Pauses {
    Each(u64),
    /// One after another; the last one repeats.
    List(Vec<u64>),
}

impl Default for Pauses {
    fn default() -> Self {
        Self::Each(0)
    }
}

impl Pauses {
    /// The pause before a piece of the body, by its place from zero.
    pub(crate) fn before(&self, piece: usize) -> Duration {
        Duration::from_millis(match self {
            Self::Each(pause) => *pause,
            Self::List(pauses) => pauses.get(piece).or(pauses.last()).copied().unwrap_or(0),
        })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Http {
    #[default]
    #[serde(rename = "1.1")]
    Http11,
    /// The body has no chunks, and ends with the connection.
    #[serde(rename = "1.0")]
    Http10,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Close {
    #[default]
    Kept,
    /// With a FIN.
    Cut,
    /// With a RST.
    Reset,
    /// Nothing more, on a connection that stays open.
    Open,
}

/// What follows a request.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    #[serde(default = "ok")]
    pub(crate) status: u16,
    /// The candidate in `x-served-candidate`; empty if the answer has none.
    pub(crate) served: Option<String>,
    /// The class of the failure for which the call left its first candidate, or ended; empty if
    /// there was none.
    pub(crate) class: Option<String>,
    /// Headers of the answer; an empty value is a header that is not there.
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    /// Values in the body, by JSON pointer.
    #[serde(default)]
    pub(crate) json: BTreeMap<String, Value>,
    /// Values in the last event of a stream that is JSON, by JSON pointer.
    #[serde(default)]
    pub(crate) last_event: BTreeMap<String, Value>,
    #[serde(default)]
    pub(crate) contains: Vec<String>,
    #[serde(default)]
    pub(crate) lacks: Vec<String>,
    pub(crate) starts_with: Option<String>,
    pub(crate) ends_with: Option<String>,
    /// How often the body has each text.
    #[serde(default)]
    pub(crate) counts: BTreeMap<String, usize>,
    /// Whether the connection ends before the body.
    #[serde(default)]
    pub(crate) cut: bool,
    /// The version of the answer, as in `HTTP/1.1`.
    pub(crate) version: Option<String>,
    /// The longest until the head came, from the request on.
    pub(crate) head_within_ms: Option<u64>,
    /// The longest until the first byte of the body came.
    pub(crate) first_byte_within_ms: Option<u64>,
    /// The longest until the answer ended.
    pub(crate) within_ms: Option<u64>,
    /// The longest from the end of the answer until no upstream still answers.
    pub(crate) released_within_ms: Option<u64>,
    /// How many calls each candidate got for this request; one that is not named got none.
    pub(crate) calls: Option<BTreeMap<String, usize>>,
    /// All candidates that rest afterwards.
    pub(crate) rests: Option<Vec<Rest>>,
    /// Values in the run, by JSON pointer, as `GET /runs/{id}` shows it.
    #[serde(default)]
    pub(crate) run: BTreeMap<String, Value>,
}

const fn ok() -> u16 {
    200
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rest {
    pub(crate) candidate: String,
    pub(crate) class: String,
    pub(crate) seconds: Seconds,
}

/// How long a rest still lasts.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Seconds {
    /// This long when it began, moments ago.
    Of(f64),
    Between([f64; 2]),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Then {
    /// What this request shows.
    pub(crate) why: String,
    #[serde(default)]
    pub(crate) pause_ms: u64,
    #[serde(default)]
    pub(crate) request: Request,
    pub(crate) expect: Expect,
}
