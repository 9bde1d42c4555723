//! The file as it is written: every key that a gateway's file may hold.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use serde::Deserialize;
use toml::{Spanned, Value};

use super::Dialect;

/// The value of a time limit, parsed later so that errors name its key.
pub(super) type Time = Option<Spanned<Value>>;

/// The value of a number, parsed later for the same reason.
pub(super) type Number = Option<Spanned<Value>>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct File {
    pub(super) preset: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) server: ServerTable,
    #[serde(default)]
    pub(super) run: RunTable,
    #[serde(default)]
    pub(super) attempt: AttemptTable,
    /// `[retry]`; the table's presence alone turns retries on.
    pub(super) retry: Option<RetryTable>,
    #[serde(default)]
    pub(super) fallback: FallbackTable,
    #[serde(default)]
    pub(super) disconnect: DisconnectTable,
    #[serde(default)]
    pub(super) control: ControlTable,
    #[serde(default)]
    pub(super) candidates: Vec<Spanned<CandidateTable>>,
    pub(super) auth: Option<AuthTable>,
    pub(super) cors: Option<CorsTable>,
    #[serde(default)]
    pub(super) agents: BTreeMap<Spanned<String>, AgentTable>,
    pub(super) stop: Option<StopTable>,
    /// `[loops]`; the table's presence alone turns the loop guard on.
    pub(super) loops: Option<LoopsTable>,
    /// `[progress]`; the table's presence alone turns notices and keep-alive comments on.
    pub(super) progress: Option<ProgressTable>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct ServerTable {
    pub(super) head_timeout: Time,
    pub(super) upload_idle: Time,
    pub(super) max_connections: Number,
    pub(super) keep_alive: Time,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RunTable {
    pub(super) step_timeout: Time,
    pub(super) max_turn_time: Time,
    pub(super) timeout: Time,
    pub(super) max_turns: Number,
    pub(super) idle: Time,
    pub(super) idle_breaker: Number,
    pub(super) idle_fails_over: Option<Spanned<bool>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct AttemptTable {
    pub(super) step_timeout: Time,
    pub(super) first_token_timeout: Time,
    pub(super) max_time: Time,
    pub(super) hold: Time,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RetryTable {
    pub(super) max_attempts_per_candidate: Number,
    pub(super) per_error_key: Number,
    pub(super) per_run: Number,
    pub(super) consecutive_errors: Number,
    pub(super) shared_ratio: Number,
    pub(super) shared_floor: Number,
    pub(super) base_delay: Time,
    pub(super) max_delay: Time,
    pub(super) max_retry_after: Time,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct FallbackTable {
    pub(super) cooldown: Option<bool>,
    pub(super) sticky: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct DisconnectTable {
    pub(super) policy: Option<Spanned<DisconnectPolicy>>,
    pub(super) drain_limit: Time,
    pub(super) caller_deadline: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DisconnectPolicy {
    Cancel,
    Drain,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct ControlTable {
    pub(super) token_env: Option<Spanned<String>>,
    pub(super) drain: Time,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct StopTable {
    pub(super) phrases: Spanned<Vec<Spanned<String>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct LoopsTable {
    pub(super) warn: Number,
    pub(super) stop: Number,
    pub(super) unknown_tool: Number,
    pub(super) any_tool: Number,
    pub(super) observe: Option<bool>,
    pub(super) polls: Option<Vec<String>>,
    pub(super) exact_results: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct ProgressTable {
    pub(super) notify_after: Time,
    pub(super) keep_alive: Time,
    pub(super) comments: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct CandidateTable {
    pub(super) name: Option<Spanned<String>>,
    pub(super) model: Spanned<String>,
    pub(super) base_url: Spanned<String>,
    #[serde(default)]
    pub(super) dialect: Dialect,
    pub(super) api_key_env: Option<Spanned<String>>,
    pub(super) context_window: Option<NonZeroU64>,
    #[serde(default)]
    pub(super) trusted: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct AuthTable {
    pub(super) keys_env: Spanned<String>,
    pub(super) max_open_runs: Number,
    pub(super) turns_per_hour: Number,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct CorsTable {
    pub(super) origins: Spanned<Vec<Spanned<String>>>,
}

/// The keys of [`RunTable`] and of [`RetryTable`] in one table.
///
/// Written out, because serde cannot refuse unknown keys in a table with flattened parts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct AgentTable {
    step_timeout: Time,
    max_turn_time: Time,
    timeout: Time,
    max_turns: Number,
    idle: Time,
    idle_breaker: Number,
    idle_fails_over: Option<Spanned<bool>>,
    max_attempts_per_candidate: Number,
    per_error_key: Number,
    per_run: Number,
    consecutive_errors: Number,
    shared_ratio: Number,
    shared_floor: Number,
    base_delay: Time,
    max_delay: Time,
    max_retry_after: Time,
}

impl AgentTable {
    pub(super) fn split(self) -> (RunTable, RetryTable) {
        let run = RunTable {
            step_timeout: self.step_timeout,
            max_turn_time: self.max_turn_time,
            timeout: self.timeout,
            max_turns: self.max_turns,
            idle: self.idle,
            idle_breaker: self.idle_breaker,
            idle_fails_over: self.idle_fails_over,
        };
        let retry = RetryTable {
            max_attempts_per_candidate: self.max_attempts_per_candidate,
            per_error_key: self.per_error_key,
            per_run: self.per_run,
            consecutive_errors: self.consecutive_errors,
            shared_ratio: self.shared_ratio,
            shared_floor: self.shared_floor,
            base_delay: self.base_delay,
            max_delay: self.max_delay,
            max_retry_after: self.max_retry_after,
        };
        (run, retry)
    }
}
