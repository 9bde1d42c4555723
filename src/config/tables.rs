//! The configuration as it is written: every table and every key.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::{
    key::KeyPart,
    values::{Amount, BoundedCount, BoundedNumber, Span, Url},
};
use crate::{
    attempt::CandidateDialect,
    layers::step_timeout::StepTimeoutLayer,
    llm::failure::{FailureClass, SignalPlace},
};

/// A number of bytes of a partial text, at most 1 MiB.
type Bytes = BoundedCount<0, { 1 << 20 }>;
/// A number of failures, of turns, or of repeats per second.
type Number = BoundedCount<0, 1_000_000>;
/// A number of tokens a second.
type Speed = BoundedNumber<{ StepTimeoutLayer::MAX_TOKENS_PER_SECOND as u32 }>;
/// A number of tokens.
type TokenCount = BoundedCount<0, { u32::MAX }>;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct File {
    pub(super) preset: Option<Preset>,
    pub(super) run: RunTable,
    pub(super) attempt: AttemptTable,
    /// An empty table already turns repeats on.
    pub(super) retry: Option<RetryTable>,
    pub(super) fallback: FallbackTable,
    pub(super) disconnect: DisconnectTable,
    pub(super) stop: Option<StopTable>,
    /// An empty table already turns the loop guard on.
    pub(super) loops: Option<LoopsTable>,
    /// An empty table already turns notices and keep-alive comments on.
    pub(super) progress: Option<ProgressTable>,
    pub(super) candidates: Vec<CandidateTable>,
    pub(super) signals: Vec<SignalTable>,
    pub(super) agents: BTreeMap<String, AgentTable>,
    pub(super) tools: ToolsTable,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Preset {
    Recommended,
}

/// The keys that have another name in agents' own configurations, and that name.
///
/// An error has the first name, whichever a document uses.
pub(super) const ALIASES: [(&str, &str); 5] = [
    ("step_timeout", "stepTimeoutSeconds"),
    ("max_turn_time", "maxTurnTimeSeconds"),
    ("timeout", "timeoutSeconds"),
    ("max_turns", "maxTurnsPerRun"),
    ("notify_after", "progressNotifyAfterSeconds"),
];

/// Defines `[run]`, `[retry]`, and `[agents.NAME]` with the keys of both.
///
/// Serde cannot refuse unknown keys in a table with flattened parts.
macro_rules! limits {
    (
        run { $($(#[$of_run:meta])* $run:ident: $run_type:ty,)* }
        retry { $($retry:ident: $retry_type:ty,)* }
    ) => {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
        #[serde(deny_unknown_fields, default, expecting = "a table")]
        pub(super) struct RunTable {
            $($(#[$of_run])* pub(super) $run: Option<$run_type>,)*
        }

        #[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
        #[serde(deny_unknown_fields, default, expecting = "a table")]
        pub(super) struct RetryTable {
            $(pub(super) $retry: Option<$retry_type>,)*
        }

        #[derive(Clone, Copy, Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, default, expecting = "a table")]
        pub(super) struct AgentTable {
            $($(#[$of_run])* $run: Option<$run_type>,)*
            $($retry: Option<$retry_type>,)*
            #[serde(alias = "progressNotifyAfterSeconds")]
            pub(super) notify_after: Option<Span>,
            #[serde(rename = "retryBudget")]
            pub(super) retry_budget: Option<RetryBudgetTable>,
        }

        impl AgentTable {
            pub(super) fn split(self) -> (RunTable, RetryTable) {
                (RunTable { $($run: self.$run,)* }, RetryTable { $($retry: self.$retry,)* })
            }
        }

        limits!(@merge RunTable $($run)*);
        limits!(@merge RetryTable $($retry)*);
    };
    (@merge $table:ident $($field:ident)*) => {
        impl $table {
            /// Fills in the absent keys of this table from `other`.
            pub(super) fn or(self, other: Self) -> Self {
                Self { $($field: self.$field.or(other.$field),)* }
            }

            /// The keys that both tables set.
            pub(super) fn set_twice(&self, other: &Self) -> Vec<&'static str> {
                let mut twice = Vec::new();
                $(if self.$field.is_some() && other.$field.is_some() {
                    twice.push(stringify!($field));
                })*
                twice
            }
        }
    };
}

limits! {
    run {
        #[serde(alias = "stepTimeoutSeconds")]
        step_timeout: Span,
        #[serde(alias = "maxTurnTimeSeconds")]
        max_turn_time: Span,
        #[serde(alias = "timeoutSeconds")]
        timeout: Span,
        #[serde(alias = "maxTurnsPerRun")]
        max_turns: Number,
        max_output_tokens: TokenCount,
        max_total_tokens: TokenCount,
        max_cost: Amount,
        count_cached_input: bool,
        ask_at: BoundedNumber<1>,
        near_at: BoundedNumber<1>,
        at_cap: AtCap,
        pause_wait: Span,
        pause_limit: Span,
        idle: Span,
        idle_breaker: BoundedCount<0, 1000>,
        idle_fails_over: bool,
        observe: bool,
        partial: Bytes,
    }
    retry {
        max_attempts_per_candidate: BoundedCount<1, 100>,
        per_error_key: Number,
        per_run: Number,
        consecutive_errors: Number,
        shared_ratio: BoundedNumber<10>,
        shared_floor: Number,
        base_delay: Span,
        max_delay: Span,
        max_retry_after: Span,
    }
}

/// What a run does at one of its caps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum AtCap {
    End,
    Pause,
}

/// `retryBudget` of an agent; an empty one already turns repeats on.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct RetryBudgetTable {
    #[serde(rename = "perErrorKey")]
    pub(super) per_error_key: Option<Number>,
    #[serde(rename = "perDispatch")]
    pub(super) per_run: Option<Number>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct AttemptTable {
    pub(super) profile: Profile,
    pub(super) heartbeat: Option<Span>,
    pub(super) observe: bool,
    pub(super) step_timeout: Option<Span>,
    pub(super) first_token_timeout: Option<Span>,
    pub(super) max_time: Option<Span>,
    pub(super) min_tokens_per_second: Option<Speed>,
    pub(super) over: Option<Span>,
    pub(super) hold: Option<Span>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Profile {
    #[default]
    Cloud,
    Local,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct FallbackTable {
    pub(super) cooldown: Option<bool>,
    pub(super) sticky: Option<bool>,
    pub(super) share: Option<bool>,
    pub(super) default_model: Option<bool>,
    pub(super) after_refusal: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct DisconnectTable {
    pub(super) policy: DisconnectPolicy,
    pub(super) drain_limit: Option<Span>,
    pub(super) caller_deadline: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DisconnectPolicy {
    #[default]
    Cancel,
    Drain,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct StopTable {
    pub(super) phrases: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct LoopsTable {
    pub(super) warn: Option<BoundedCount<0, 1000>>,
    pub(super) stop: Option<BoundedCount<0, 1000>>,
    pub(super) unknown_tool: Option<BoundedCount<0, 1000>>,
    pub(super) any_tool: Option<BoundedCount<0, 1000>>,
    pub(super) observe: bool,
    pub(super) polls: Vec<String>,
    pub(super) exact_results: bool,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct ProgressTable {
    pub(super) notify_after: Option<Span>,
    pub(super) keep_alive: Option<Span>,
    pub(super) early_head: Option<Span>,
    pub(super) comments: bool,
}

/// An entry of `[[candidates]]`, as it is written.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
#[non_exhaustive]
pub struct CandidateTable {
    /// The place of the entry in the list of the document.
    #[serde(skip)]
    pub(super) index: usize,
    pub(super) name: Option<String>,
    /// The name of the model in requests to the upstream.
    pub model: String,
    /// The part of the URL before the operation.
    pub base_url: Url,
    #[serde(default, with = "DialectName")]
    pub(super) dialect: CandidateDialect,
    pub(super) api_key_env: Option<String>,
    /// The context window of the model in tokens, if known.
    pub context_window: Option<std::num::NonZeroU64>,
    #[serde(default)]
    pub(super) transport: Transport,
    #[serde(default)]
    pub(super) trusted: bool,
    pub(super) price: Option<PriceTable>,
}

/// An entry of `[[signals]]`, as it is written: one of the six places, and what it means.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct SignalTable {
    /// The place of the entry in the list of the document.
    #[serde(skip)]
    pub(super) index: usize,
    pub(super) name: Option<String>,
    pub(super) phrase: Option<String>,
    pub(super) start: Option<String>,
    pub(super) header: Option<String>,
    pub(super) quota: Option<String>,
    pub(super) field: Option<String>,
    pub(super) beside: Option<String>,
    #[serde(default)]
    pub(super) status: Vec<u16>,
    pub(super) class: Class,
    pub(super) concerns: Option<ConcernName>,
    #[serde(default)]
    pub(super) renewed: bool,
    #[serde(default)]
    pub(super) quoted: bool,
}

/// The class of a failure, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(pub(super) FailureClass);

/// What a failure concerns, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ConcernName {
    Request,
    Model,
    ModelOfAccount,
    Account,
    Host,
}

impl SignalTable {
    /// The path of a key of this entry.
    pub(super) fn path(&self, key: &str) -> [KeyPart; 3] {
        ["signals".into(), self.index.into(), key.into()]
    }

    /// The places that the entry has, each with its key.
    pub(super) fn places(&self) -> Vec<(&'static str, SignalPlace, &str)> {
        let places = [
            ("name", SignalPlace::Name, &self.name),
            ("phrase", SignalPlace::Phrase, &self.phrase),
            ("start", SignalPlace::Start, &self.start),
            ("header", SignalPlace::Header, &self.header),
            ("quota", SignalPlace::Quota, &self.quota),
            ("field", SignalPlace::Field, &self.field),
        ];
        let places = places.into_iter();
        let places = places.filter_map(|(key, place, what)| Some((key, place, what.as_deref()?)));
        places.collect()
    }
}

impl<'de> Deserialize<'de> for Class {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        FailureClass::named(&name).map(Self).ok_or_else(|| {
            let names: Vec<_> = FailureClass::ALL.iter().map(|it| it.as_str()).collect();
            let names = names.join(", ");
            D::Error::custom(format!(
                "\"{name}\" is not a class of failures: write one of {names}"
            ))
        })
    }
}

impl Serialize for Class {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.0.as_str())
    }
}

/// The prices of a million of a candidate's tokens, by the kind of token.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct PriceTable {
    pub(super) input: Amount,
    pub(super) output: Amount,
    pub(super) cached_input: Option<Amount>,
}

impl CandidateTable {
    /// The name of the candidate in calls and logs: its `name`, or else its `model`.
    #[must_use]
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.model)
    }

    /// The path of a key of this entry.
    pub(super) fn path(&self, key: &str) -> [KeyPart; 3] {
        ["candidates".into(), self.index.into(), key.into()]
    }
}

/// The names of the dialects.
#[derive(Deserialize, Serialize)]
#[serde(remote = "CandidateDialect", rename_all = "lowercase")]
enum DialectName {
    Any,
    OpenAi,
    Anthropic,
}

/// How a candidate's upstream is asked for responses, by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Transport {
    #[default]
    Http,
    WebSocket,
}

/// The `tools` table of other agents' configurations: the loop guard, and errors in a row.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct ToolsTable {
    #[serde(rename = "loopDetection")]
    pub(super) loop_detection: LoopDetectionTable,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct LoopDetectionTable {
    pub(super) enabled: Option<bool>,
    #[serde(rename = "consecutiveErrorThreshold")]
    pub(super) consecutive_errors: Option<Number>,
}
