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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct File {
    /// Fills in the limits that the document leaves out; without it an absent limit is off.
    pub(super) preset: Option<Preset>,
    /// The limits of a run, over all its requests.
    pub(super) run: RunTable,
    /// The limits of one attempt, which end it and not its call: another attempt may follow.
    pub(super) attempt: AttemptTable,
    /// The repeats of failed attempts. An empty table already turns repeats on.
    pub(super) retry: Option<RetryTable>,
    /// The choice of a candidate.
    pub(super) fallback: FallbackTable,
    /// What happens when a caller leaves, or will leave.
    pub(super) disconnect: DisconnectTable,
    /// The words that end runs.
    pub(super) stop: Option<StopTable>,
    /// Ends runs that go in circles. An empty table already turns the loop guard on.
    pub(super) loops: Option<LoopsTable>,
    /// Signs of life for calls that take long. An empty table already turns notices and
    /// keep-alive comments on.
    pub(super) progress: Option<ProgressTable>,
    /// The models, in the order in which a call tries them.
    pub(super) candidates: Vec<CandidateTable>,
    /// What errors of upstreams mean; the entries come before the built-in table.
    pub(super) signals: Vec<SignalTable>,
    /// The limits of single agents, by name; `defaults` means all agents.
    pub(super) agents: BTreeMap<String, AgentTable>,
    /// The names that agents' own configurations have for parts of `[loops]` and `[retry]`.
    pub(super) tools: ToolsTable,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
        retry { $($(#[$of_retry:meta])* $retry:ident: $retry_type:ty,)* }
    ) => {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[cfg_attr(feature = "schema", schemars(transform = super::schema::with_aliases))]
        #[serde(deny_unknown_fields, default, expecting = "a table")]
        pub(super) struct RunTable {
            $($(#[$of_run])* pub(super) $run: Option<$run_type>,)*
        }

        #[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(deny_unknown_fields, default, expecting = "a table")]
        pub(super) struct RetryTable {
            $($(#[$of_retry])* pub(super) $retry: Option<$retry_type>,)*
        }

        #[derive(Clone, Copy, Debug, Default, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[cfg_attr(feature = "schema", schemars(transform = super::schema::with_aliases))]
        #[serde(deny_unknown_fields, default, expecting = "a table")]
        pub(super) struct AgentTable {
            $($(#[$of_run])* $run: Option<$run_type>,)*
            $($(#[$of_retry])* $retry: Option<$retry_type>,)*
            /// Observers get a notice of a step that takes longer.
            #[serde(alias = "progressNotifyAfterSeconds")]
            pub(super) notify_after: Option<Span>,
            /// The name that agents' own configurations have for two keys of `[retry]`.
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
        /// Ends a run in which nothing is progress for so long, as `step_timeout`. Off by default;
        /// the preset has "5m". Not shorter than that of `[attempt]`.
        #[serde(alias = "stepTimeoutSeconds")]
        step_timeout: Span,
        /// Ends a run at this age, whatever it does, as `max_turn_time`. Off by default; the
        /// preset has "60m".
        #[serde(alias = "maxTurnTimeSeconds")]
        max_turn_time: Span,
        /// Ends a run at this age as `timeout`: a total that callers know of. Off by default.
        #[serde(alias = "timeoutSeconds")]
        timeout: Span,
        /// Refuses one turn more, and ends the run as `turn_cap_reached`. Off by default; the
        /// preset has 30.
        #[serde(alias = "maxTurnsPerRun")]
        max_turns: Number,
        /// Ends a run whose answers have more tokens, in mid-stream too, as `token_cap_reached`.
        /// Off by default.
        max_output_tokens: TokenCount,
        /// Ends a run whose prompts and answers have more tokens, as `token_cap_reached`. Off by
        /// default.
        max_total_tokens: TokenCount,
        /// Ends a run that costs more by the `price` of the candidates, as `token_cap_reached`.
        /// Off by default.
        max_cost: Amount,
        /// Whether `max_total_tokens` counts the cached tokens of prompts, too. False by default.
        count_cached_input: bool,
        /// The part of a cap on tokens or cost at which the watchdog's question is asked. Off by
        /// default.
        ask_at: BoundedNumber<1>,
        /// The part of a cap at which observers and webhooks hear of the run. 0.8 if a webhook
        /// tells of `near_cap`, else off.
        near_at: BoundedNumber<1>,
        /// What a run does at one of its caps; with "pause" it waits for the operator. "end" by
        /// default.
        at_cap: AtCap,
        /// How long a turn of a paused run is held before it is refused for now. "60s" by default;
        /// only with at_cap = "pause".
        pause_wait: Span,
        /// How long a paused run waits before it ends as its cap says; above zero. "24h" by
        /// default; only with at_cap = "pause".
        pause_limit: Span,
        /// Completes a run that was given an id after so long with nothing in flight. By default
        /// half of the shorter of `max_turn_time` and `timeout`, at most "30m"; "0s" is never.
        idle: Span,
        /// Ends a run after so many silent attempts in a row, as `idle_circuit_open`. Off by
        /// default; the preset has 5.
        idle_breaker: BoundedCount<0, 1000>,
        /// Whether the breaker moves the run to the next candidate in place of ending it. False by
        /// default; needs `idle_breaker`.
        idle_fails_over: bool,
        /// Whether the limits on time end nothing and only tell observers. False by default.
        observe: bool,
        /// The bytes of an answer's text that `/events` shows if the run's end cuts it. Off by
        /// default.
        partial: Bytes,
    }
    retry {
        /// The attempts of one candidate within a call. 2 by default in `[retry]` and with the
        /// preset, else 1.
        max_attempts_per_candidate: BoundedCount<1, 100>,
        /// The failures of the same kind that a run may have; one more ends it as
        /// `retry_budget_exceeded`. Off by default; the preset has 3.
        per_error_key: Number,
        /// The failures of any kind that a run may have; one more ends it as
        /// `per_dispatch_errors_exceeded`. Off by default; the preset has 10.
        per_run: Number,
        /// The failures in a row that end a run as `consecutive_errors`. Off by default.
        consecutive_errors: Number,
        /// The repeats per first attempt of a candidate, for all runs together. Off by default;
        /// 0.2 with the preset, or beside `shared_floor`.
        shared_ratio: BoundedNumber<10>,
        /// The repeats of a candidate per second in any case, for all runs together. Off by
        /// default; 10 with the preset, or beside `shared_ratio`.
        shared_floor: Number,
        /// The wait before the first repeat, before jitter. "500ms" by default, or a shorter
        /// `max_delay`.
        base_delay: Span,
        /// The longest wait before a repeat; not shorter than `base_delay`. "8s" by default.
        max_delay: Span,
        /// The longest `retry-after` that is waited for; after a longer one nothing is repeated.
        /// "60s" by default.
        max_retry_after: Span,
    }
}

/// What a run does at one of its caps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(super) enum AtCap {
    End,
    Pause,
}

/// `retryBudget` of an agent; an empty one already turns repeats on.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct RetryBudgetTable {
    /// Another name of `per_error_key`.
    #[serde(rename = "perErrorKey")]
    pub(super) per_error_key: Option<Number>,
    /// Another name of `per_run`.
    #[serde(rename = "perDispatch")]
    pub(super) per_run: Option<Number>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct AttemptTable {
    /// What counts as alive. With "local" only the heartbeats of a stream count, and both step
    /// windows are off.
    pub(super) profile: Profile,
    /// The interval of a local model's heartbeats; above zero. "10s" by default; only with
    /// profile = "local".
    pub(super) heartbeat: Option<Span>,
    /// Whether the limits end no attempt and only tell observers; not for `hold`.
    pub(super) observe: bool,
    /// Ends an attempt that is silent for so long; pings and comments are no progress. Off by
    /// default; the preset has "120s".
    pub(super) step_timeout: Option<Span>,
    /// The same limit until the first content; "0s" is no limit until then. `step_timeout` by
    /// default; the preset has "4m".
    pub(super) first_token_timeout: Option<Span>,
    /// Ends an attempt at this age. Off by default.
    pub(super) max_time: Option<Span>,
    /// Ends an attempt whose stream is slower than that, as `slow`; above zero. Off by default.
    #[cfg_attr(feature = "schema", schemars(extend("exclusiveMinimum" = 0)))]
    pub(super) min_tokens_per_second: Option<Speed>,
    /// The time over which the speed counts, on average; above zero. "30s" by default; only with
    /// `min_tokens_per_second`.
    pub(super) over: Option<Span>,
    /// How long an answer is held back for its first content, and with `min_tokens_per_second` for
    /// its speed. By default as long as the attempt lives.
    pub(super) hold: Option<Span>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(super) enum Profile {
    #[default]
    Cloud,
    Local,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct FallbackTable {
    /// Whether a candidate that has failed rests for a while. False by default; true with the
    /// preset.
    pub(super) cooldown: Option<bool>,
    /// Whether a session stays with the candidate that served it last. False by default; true with
    /// the preset.
    pub(super) sticky: Option<bool>,
    /// Whether the candidates share the time before a ceiling or a deadline. True by default.
    pub(super) share: Option<bool>,
    /// Whether a body that names no `model` gets the candidate's. False by default.
    pub(super) default_model: Option<bool>,
    /// Whether another model is asked after a refusal of the content. False by default.
    pub(super) after_refusal: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct DisconnectTable {
    /// Whether a call ends with its caller, or is read on to learn what the answer cost.
    pub(super) policy: DisconnectPolicy,
    /// How long a call is read on; above zero. "30s" by default; only with policy = "drain".
    pub(super) drain_limit: Option<Span>,
    /// Whether a call ends when its caller would give up, as the caller's headers say.
    pub(super) caller_deadline: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(super) enum DisconnectPolicy {
    #[default]
    Cancel,
    Drain,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct StopTable {
    /// A last message of a user that is one of these ends the session's other runs as `aborted`.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub(super) phrases: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct LoopsTable {
    /// Observers get a notice when the same call came back so often. 10 by default; 0 is off.
    pub(super) warn: Option<BoundedCount<0, 1000>>,
    /// Ends a run when the same call came back so often with the same result, as `loop_detected`.
    /// 20 by default; 0 is off.
    pub(super) stop: Option<BoundedCount<0, 1000>>,
    /// Ends a run with so many calls of tools that the request does not declare. 10 by default; 0
    /// is off.
    pub(super) unknown_tool: Option<BoundedCount<0, 1000>>,
    /// Ends a run with so many equal calls in a row, with any result. 30 by default; 0 is off.
    pub(super) any_tool: Option<BoundedCount<0, 1000>>,
    /// Whether nothing ends and only observers are told.
    pub(super) observe: bool,
    /// The tools that poll: a loop with one of them counts at three times as many calls.
    pub(super) polls: Vec<String>,
    /// Whether results that differ only in ids, times and other such values are different.
    pub(super) exact_results: bool,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct ProgressTable {
    /// Observers get a notice of a step that takes longer. "30s" by default.
    pub(super) notify_after: Option<Span>,
    /// The longest silence of a stream before it gets a comment, or a `ping`. "15s" by default.
    pub(super) keep_alive: Option<Span>,
    /// A request for a stream that has no answer after so long gets the head of one. Off by
    /// default; the preset has "20s".
    pub(super) early_head: Option<Span>,
    /// Whether notices are comments of the stream, too.
    pub(super) comments: bool,
}

/// An entry of `[[candidates]]`, as it is written.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "a table")]
#[non_exhaustive]
pub struct CandidateTable {
    /// The place of the entry in the list of the document.
    #[serde(skip)]
    pub(super) index: usize,
    /// The name of the candidate for callers, metrics and the log. `model` by default.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub(super) name: Option<String>,
    /// The name of the model in requests to the upstream.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub model: String,
    /// The part of the URL before the operation, such as "https://host/v1".
    pub base_url: Url,
    /// The API that the upstream speaks; requests of another API skip it.
    #[serde(default, with = "DialectName")]
    #[cfg_attr(feature = "schema", schemars(with = "DialectName"))]
    pub(super) dialect: CandidateDialect,
    /// The environment variable that holds the upstream's key.
    pub(super) api_key_env: Option<String>,
    /// The context window of the model in tokens, if known.
    pub context_window: Option<std::num::NonZeroU64>,
    /// How the gateway asks the upstream for `/v1/responses`.
    #[serde(default)]
    pub(super) transport: Transport,
    /// Whether the upstream is a supervisor of the same kind, whose terminal reasons count.
    #[serde(default)]
    pub(super) trusted: bool,
    /// What a million of its tokens cost, in any one currency.
    pub(super) price: Option<PriceTable>,
}

/// An entry of `[[signals]]`, as it is written: one of the six places, and what it means.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct SignalTable {
    /// The place of the entry in the list of the document.
    #[serde(skip)]
    pub(super) index: usize,
    /// The error has this name as its `type`, `code`, `status` or `reason`.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"\S")))]
    pub(super) name: Option<String>,
    /// The error's message has this phrase, in any letter case.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"\S")))]
    pub(super) phrase: Option<String>,
    /// The error's message begins with this phrase.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"\S")))]
    pub(super) start: Option<String>,
    /// The answer has this header, or with "name: value" one with this part of a value.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"\S")))]
    pub(super) header: Option<String>,
    /// An exceeded quota's id or metric has this part.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"\S")))]
    pub(super) quota: Option<String>,
    /// The error has this field.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = crate::llm::FIELDS)))]
    pub(super) field: Option<String>,
    /// The signal counts beside an error of this name alone.
    pub(super) beside: Option<String>,
    /// The statuses under which alone the signal counts; empty means any.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 200, max = 599))))]
    pub(super) status: Vec<u16>,
    /// The class of the failure.
    pub(super) class: Class,
    /// What the failure concerns, and so what rests. As the class says by default.
    pub(super) concerns: Option<ConcernName>,
    /// Whether a rest lasts until a limit is renewed.
    #[serde(default)]
    pub(super) renewed: bool,
    /// Whether the phrase also counts for other words in quotation marks.
    #[serde(default)]
    pub(super) quoted: bool,
}

/// The class of a failure, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(pub(super) FailureClass);

/// What a failure concerns, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct PriceTable {
    /// The price of a million tokens of prompts.
    pub(super) input: Amount,
    /// The price of a million tokens of answers.
    pub(super) output: Amount,
    /// The price of a million cached tokens of prompts. 0 by default.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "CandidateDialect", rename_all = "lowercase")]
enum DialectName {
    Any,
    OpenAi,
    Anthropic,
}

/// How a candidate's upstream is asked for responses, by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(super) enum Transport {
    #[default]
    Http,
    WebSocket,
}

/// The `tools` table of other agents' configurations: the loop guard, and errors in a row.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct ToolsTable {
    /// The loop guard.
    #[serde(rename = "loopDetection")]
    pub(super) loop_detection: LoopDetectionTable,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct LoopDetectionTable {
    /// Whether the loop guard is on, with its defaults.
    pub(super) enabled: Option<bool>,
    /// Another name of `consecutive_errors` of `[retry]`.
    #[serde(rename = "consecutiveErrorThreshold")]
    pub(super) consecutive_errors: Option<Number>,
}
