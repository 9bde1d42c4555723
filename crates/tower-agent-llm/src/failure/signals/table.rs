//! This crate's own rows: what providers send, and what it means.
//!
//! `tests/fixtures/upstream/index.toml` has an answer for each row with the place where it was seen,
//! and `docs/providers.md` is made from both. A row has the providers whose answers show it; others
//! may send it too.
//!
//! The sections are in the order of judging: names that say the whole cause, details, phrases, names
//! that several causes share, and, after the status, names that only say which side is at fault.
//! Within a section the first row that fits decides.

use super::{Row, SignalPlace, SignalUntil};
use crate::failure::class::{
    Concern,
    FailureClass::{
        self, Auth, Caller, Conflict, ContentFilter, ContextOverflow, ModelFault, ModelGone,
        NotOffered, NotReady, Overloaded, Quota, RateLimit, Region, RequestLimit, RequestTimeout,
        Server, SessionExpired, TooLarge,
    },
};

/// The names that decide by themselves, whatever the status. AWS's are without their `Exception`.
pub(crate) static EXACT: &[Row<'static>] = &[
    name("insufficient_quota", Quota, "OpenAI, Azure, DashScope"),
    name("billing_error", Quota, "Anthropic"),
    name("billing_hard_limit_reached", Quota, "OpenAI"),
    name("billing_not_active", Quota, "OpenAI"),
    name("usage_limit_reached", Quota, "OpenAI"),
    name("budget_exceeded", Quota, "LiteLLM"),
    name("exceeded_current_quota_error", Quota, "Moonshot"),
    name("Arrearage", Quota, "DashScope"),
    name("1113", Quota, "Z.ai"),
    name("1308", Quota, "Z.ai"),
    name("1310", Quota, "Z.ai"),
    name("1008", Quota, "MiniMax"),
    name("insufficient_user_quota", Quota, "one-api"),
    name("openrouter_free_tier_daily", Quota, "OpenRouter").renewed(),
    name("4006", Quota, "Cloudflare").renewed(),
    name("ServiceQuotaExceeded", RateLimit, "Bedrock"),
    name("server_is_overloaded", Overloaded, "OpenAI"),
    name("slow_down", Overloaded, "OpenAI"),
    name("capacity_exceeded", Overloaded, "Groq"),
    name("MODEL_CAPACITY_EXHAUSTED", Overloaded, "Gemini"),
    name("overloaded_error", Overloaded, "Anthropic"),
    name("UNAVAILABLE", Overloaded, "Gemini"),
    name("ModelNotReady", NotReady, "Bedrock"),
    name("MPAgreementBeingCreated", NotReady, "Bedrock"),
    name("ModelTimeout", RequestTimeout, "Bedrock"),
    name("ModelError", ModelFault, "Bedrock"),
    name("ModelStreamError", ModelFault, "Bedrock"),
    name("tool_use_failed", ModelFault, "Groq"),
    name("json_validate_failed", ModelFault, "Groq"),
    name("unsupported_country_region_territory", Region, "OpenAI"),
    name("invalid_api_key", Auth, "OpenAI"),
    name("account_deactivated", Auth, "OpenAI"),
    name("API_KEY_INVALID", Auth, "Gemini"),
    name("UnrecognizedClient", Auth, "Bedrock"),
    name("InvalidSignature", Auth, "Bedrock"),
    name("ExpiredToken", Auth, "Bedrock"),
    name("model_not_found", ModelGone, "OpenAI"),
    name("model_decommissioned", ModelGone, "Groq"),
    name("model_not_available", ModelGone, "Together"),
    name("dedicated_endpoint_not_running", ModelGone, "Together"),
    name("key_model_access_denied", ModelGone, "LiteLLM"),
    name("team_model_access_denied", ModelGone, "LiteLLM"),
    name("model_blocked", ModelGone, "proxies"),
    name("OperationNotSupported", ModelGone, "Azure"),
    name("unsupported_api_for_model", ModelGone, "GitHub Copilot"),
    name("DeploymentNotFound", ModelGone, "Azure"),
    name("ResourceNotFound", ModelGone, "Bedrock"),
    name("context_length_exceeded", ContextOverflow, "OpenAI"),
    name(
        "model_context_window_exceeded",
        ContextOverflow,
        "Anthropic",
    ),
    name("exceed_context_size_error", ContextOverflow, "llama.cpp"),
    name(
        "model_max_prompt_tokens_exceeded",
        ContextOverflow,
        "GitHub Copilot",
    ),
    name("tokens_limit_reached", ContextOverflow, "GitHub Models"),
    name("request_too_large", TooLarge, "Anthropic"),
    name("content_filter", ContentFilter, "Azure"),
    name("content_policy_violation", ContentFilter, "OpenAI"),
    name("image_content_policy_violation", ContentFilter, "OpenAI"),
    name("moderation_blocked", ContentFilter, "OpenAI"),
    name("invalid_prompt", ContentFilter, "OpenAI"),
    name("previous_response_not_found", SessionExpired, "OpenAI"),
    name("session_expired", SessionExpired, "proxies"),
    name("session_not_found", SessionExpired, "proxies"),
    // The operator of another server with these layers has paused the run, or admits no new one, or the
    // server has lost its peers: another try elsewhere would evade that, and no model has failed.
    name("run_paused", Caller, "tower-agent").under(&[503]),
    name("frozen", Caller, "tower-agent").under(&[503]),
    name("peers_lost", Caller, "tower-agent").under(&[503]),
];

/// The names of [`EXACT`] with which a server of these layers puts a request off.
pub(crate) const PUT_OFF: [&str; 3] = ["run_paused", "frozen", "peers_lost"];

/// Fields that some providers use instead of a name.
pub(crate) static DETAILS: &[Row<'static>] = &[
    row(SignalPlace::Quota, "PerDay", Quota, "Gemini").renewed(),
    row(SignalPlace::Quota, "per_day", Quota, "Gemini").renewed(),
    row(
        SignalPlace::Field,
        "metadata.reasons",
        ContentFilter,
        "OpenRouter",
    ),
    row(
        SignalPlace::Field,
        "metadata.flagged_input",
        ContentFilter,
        "OpenRouter",
    ),
];

/// The phrases by which providers report an error whose name does not say the cause.
pub(crate) static PHRASES: &[Row<'static>] = &[
    phrase("credit balance is too low", Quota, "Anthropic"),
    phrase("out of extra usage", Quota, "Anthropic"),
    phrase("api usage limits", Quota, "Anthropic"),
    phrase("key limit exceeded", Quota, "OpenRouter"),
    phrase("free-models-per-day", Quota, "OpenRouter").renewed(),
    phrase("spending cap", Quota, "Gemini").under(&[429]),
    phrase("prepayment credits are depleted", Quota, "Gemini"),
    phrase("tokens per day", Quota, "Bedrock")
        .under(&[429])
        .renewed(),
    phrase("weekly usage limit", Quota, "Ollama"),
    phrase("monthly usage limit", Quota, "OpenCode"),
    phrase("budget has been exceeded", Quota, "LiteLLM").under(&[400, 429]),
    phrase("crossed budget", Quota, "LiteLLM").under(&[429]),
    phrase("reached its usage limit", Quota, "LLM Gateway").under(&[401]),
    phrase("ai usage limit reached", Quota, "Anthropic"),
    phrase("usage limit for this billing cycle", Quota, "Moonshot"),
    phrase("insufficient balance", Quota, "Z.ai, MiniMax"),
    phrase("used all available credits", Quota, "xAI"),
    phrase("t have any credits", Quota, "xAI"),
    phrase("reaching the monthly spending limit", Quota, "Fireworks"),
    phrase(
        "extra usage is required for long context",
        RequestLimit,
        "Anthropic",
    ),
    phrase("in-flight requests", RateLimit, "OpenRouter").under(&[402]),
    phrase("maximum pending requests exceeded", Overloaded, "Ollama"),
    phrase("the model is overloaded", Overloaded, "Gemini"),
    phrase("temporarily overloaded", Overloaded, "proxies"),
    phrase("servers are currently overloaded", Overloaded, "OpenAI"),
    phrase("model is at capacity", Overloaded, "OpenAI"),
    phrase("service tier capacity exceeded", Overloaded, "Mistral"),
    phrase("loading model", NotReady, "llama.cpp").under(&[503]),
    phrase("is currently loading", NotReady, "Hugging Face").under(&[503]),
    phrase("failed to load model", NotReady, "LM Studio").under(&[400]),
    phrase(
        "marketplace subscription for this model is still being processed",
        NotReady,
        "Bedrock",
    ),
    phrase("virtual network/firewall rules", Region, "Azure").under(&[403]),
    phrase("location is not supported", Region, "Gemini").under(&[400, 403]),
    phrase(
        "unsupported countries, regions, or territories",
        Region,
        "Bedrock",
    ),
    phrase("api key not valid", Auth, "Gemini").under(&[400]),
    phrase("no api key found", Auth, "proxies").under(&[400]),
    start("missing api key", Auth, "proxies").under(&[400]),
    start("incorrect api key provided", Auth, "xAI").under(&[400]),
    phrase("organization has been disabled", Auth, "Anthropic").under(&[400]),
    phrase("not allowed for this organization", Auth, "Anthropic").under(&[403]),
    phrase("session not found", SessionExpired, "proxies").under(&[404, 410]),
    phrase("session does not exist", SessionExpired, "proxies").under(&[404, 410]),
    phrase("session expired", SessionExpired, "proxies").under(&[404, 410]),
    phrase("session has expired", SessionExpired, "proxies").under(&[404, 410]),
    phrase("conversation expired", SessionExpired, "proxies").under(&[404, 410]),
    phrase("has expired", SessionExpired, "proxies").under(&[410]),
    start("previous response", SessionExpired, "OpenAI").under(&[404, 410]),
    phrase("requires a subscription", ModelGone, "Ollama").under(&[401, 403]),
    phrase("on-demand throughput isn", ModelGone, "Bedrock"),
    phrase("missing scopes:", ModelGone, "OpenAI").under(&[401, 403]),
    phrase("no available channel for model", ModelGone, "new-api"),
    phrase("无可用渠道", ModelGone, "new-api"),
    phrase("not found for account", ModelGone, "NVIDIA").under(&[404]),
    phrase("requires more system memory", ModelGone, "Ollama"),
    phrase(
        "no endpoints found matching your data policy",
        ModelGone,
        "OpenRouter",
    ),
    phrase("is not allowed to use publisher model", ModelGone, "Vertex"),
    phrase("must be verified to stream", ModelGone, "OpenAI"),
    phrase("does not support the responses api", ModelGone, "proxies"),
    phrase(
        "does not support the chat completions api",
        ModelGone,
        "proxies",
    ),
    start("model", ModelGone, "Anthropic, Gemini, Ollama").under(&[404]),
    start("the model", ModelGone, "vLLM").under(&[404]),
    start("model not exist", ModelGone, "DeepSeek").under(&[400]),
    // Without "for", the message is about a feature that the request asks for.
    start("no endpoints found for", ModelGone, "OpenRouter").under(&[404]),
    start("publisher model", ModelGone, "Vertex").under(&[404]),
    phrase("unexpected endpoint or method", NotOffered, "LM Studio"),
    phrase("t support counting tokens", NotOffered, "Bedrock"),
    phrase(
        "prompt is too long",
        ContextOverflow,
        "Anthropic, Bedrock, Vertex",
    ),
    phrase("exceed context limit", ContextOverflow, "Anthropic"),
    phrase("enable context shift", ContextOverflow, "llama.cpp"),
    phrase(
        "exceeds the maximum number of tokens allowed",
        ContextOverflow,
        "Gemini",
    ),
    phrase("input is too long", ContextOverflow, "Bedrock"),
    phrase(
        "maximum context length is",
        ContextOverflow,
        "vLLM, OpenRouter",
    ),
    phrase("maximum prompt length is", ContextOverflow, "xAI"),
    phrase("model's context length", ContextOverflow, "SGLang, vLLM"),
    phrase(
        "model's maximum context length",
        ContextOverflow,
        "Together",
    ),
    phrase("exceeds the context window", ContextOverflow, "OpenAI"),
    phrase("exceeded model token limit", ContextOverflow, "Moonshot"),
    phrase("too large for model with", ContextOverflow, "Mistral"),
    phrase("context window exceeds limit", ContextOverflow, "MiniMax"),
    phrase("prompt exceeds max length", ContextOverflow, "Z.ai"),
    phrase(
        "too many tokens: size limit exceeded",
        ContextOverflow,
        "Cohere",
    ),
    phrase(
        "range of input length should be",
        ContextOverflow,
        "DashScope",
    ),
    phrase(
        "must be less than max_seq_len",
        ContextOverflow,
        "SiliconFlow",
    ),
    phrase(
        "exceeds the maximum allowed input length",
        ContextOverflow,
        "Poolside",
    ),
    start("prompt token count of", ContextOverflow, "GitHub Copilot"),
    phrase("exceeded max context length", ContextOverflow, "Ollama"),
    phrase("with context length of only", ContextOverflow, "LM Studio"),
    phrase(
        "prompt is greater than the context length",
        ContextOverflow,
        "LM Studio",
    ),
    phrase(
        "cannot truncate prompt with n_keep",
        ContextOverflow,
        "LM Studio",
    ),
    phrase(
        "does not fit in context length",
        ContextOverflow,
        "LM Studio",
    ),
    phrase(
        "`inputs` must have less than",
        ContextOverflow,
        "Text Generation Inference",
    ),
    phrase(
        "`inputs` tokens + `max_new_tokens` must be <=",
        ContextOverflow,
        "Text Generation Inference, Together",
    ),
    phrase(
        "context size has been exceeded",
        ContextOverflow,
        "llama.cpp",
    ),
];

/// The names that several causes share.
pub(crate) static SHARED: &[Row<'static>] = &[
    name("rate_limit_error", RateLimit, "Anthropic"),
    name("rate_limit_exceeded", RateLimit, "OpenAI, Groq"),
    name("rate_limited", RateLimit, "Mistral"),
    name("Throttling", RateLimit, "Bedrock"),
    name("RESOURCE_EXHAUSTED", RateLimit, "Gemini"),
    name("authentication_error", Auth, "Anthropic"),
    name("PERMISSION_DENIED", Auth, "Gemini"),
    name("permission_error", ModelGone, "Anthropic"),
    name("AccessDenied", ModelGone, "Bedrock"),
    row(
        SignalPlace::Field,
        "metadata.provider_name",
        Overloaded,
        "OpenRouter",
    )
    .under(&[502, 503]),
];

/// The names that only say which side is at fault: they count after the status.
pub(crate) static BROAD: &[Row<'static>] = &[
    name("conflict_error", Conflict, "Anthropic"),
    name("api_error", Server, "Anthropic"),
    name("server_error", Server, "OpenAI"),
    name("timeout_error", Server, "Anthropic"),
    name("vector_store_timeout", Server, "OpenAI"),
    name("InternalServer", Server, "Bedrock"),
    name("DEADLINE_EXCEEDED", Server, "Gemini"),
    name("CANCELLED", Server, "Gemini"),
    name("invalid_request_error", Caller, "OpenAI, Anthropic"),
    name("not_found_error", Caller, "Anthropic"),
    name("Validation", Caller, "Bedrock"),
    name("string_above_max_length", Caller, "OpenAI"),
    name("invalid_image", Caller, "OpenAI"),
    name("invalid_image_format", Caller, "OpenAI"),
    name("invalid_base64_image", Caller, "OpenAI"),
    name("invalid_image_url", Caller, "OpenAI"),
    name("invalid_image_mode", Caller, "OpenAI"),
    name("image_too_large", Caller, "OpenAI"),
    name("image_too_small", Caller, "OpenAI"),
    name("image_parse_error", Caller, "OpenAI"),
    name("image_file_too_large", Caller, "OpenAI"),
    name("image_file_not_found", Caller, "OpenAI"),
    name("unsupported_image_media_type", Caller, "OpenAI"),
    name("empty_image_file", Caller, "OpenAI"),
    name("failed_to_download_image", Caller, "OpenAI"),
];

const fn row(
    place: SignalPlace,
    what: &'static str,
    class: FailureClass,
    provider: &'static str,
) -> Row<'static> {
    Row {
        place,
        what,
        beside: "",
        statuses: &[],
        class,
        concern: None,
        until: SignalUntil::Stated,
        is_quoted: false,
        provider,
    }
}

const fn name(what: &'static str, class: FailureClass, provider: &'static str) -> Row<'static> {
    row(SignalPlace::Name, what, class, provider)
}

const fn phrase(what: &'static str, class: FailureClass, provider: &'static str) -> Row<'static> {
    row(SignalPlace::Phrase, what, class, provider)
}

const fn start(what: &'static str, class: FailureClass, provider: &'static str) -> Row<'static> {
    row(SignalPlace::Start, what, class, provider)
}

impl Row<'static> {
    const fn under(mut self, statuses: &'static [u16]) -> Self {
        self.statuses = statuses;
        self
    }

    const fn renewed(mut self) -> Self {
        self.until = SignalUntil::Renewed;
        self
    }

    #[allow(dead_code, reason = "rows of single models use it")]
    const fn concerns(mut self, concern: Concern) -> Self {
        self.concern = Some(concern);
        self
    }
}
