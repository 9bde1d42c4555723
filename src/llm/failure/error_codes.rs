//! The codes and sentences by which providers name an error.

use http::StatusCode;

use super::class::FailureClass::{
    self, Auth, Caller, Conflict, ContentFilter, ContextOverflow, ModelFault, ModelGone, NotReady,
    Overloaded, Quota, RateLimit, Region, RequestTimeout, Server, SessionExpired, TooLarge,
};

/// An error name, and the failure class of an error with it.
type Code = (&'static str, FailureClass);

/// The error names that decide the failure class by themselves, whatever the status.
///
/// The names are values of `error.type`, `error.code` and their equivalents. If an error has
/// several, the first one in the list wins. AWS's names are listed without their `Exception`.
pub(super) const EXACT: &[Code] = &[
    ("insufficient_quota", Quota),
    ("billing_error", Quota),
    ("billing_hard_limit_reached", Quota),
    ("billing_not_active", Quota),
    ("usage_limit_reached", Quota),
    ("budget_exceeded", Quota),
    ("rate_limit_error", RateLimit),
    ("rate_limit_exceeded", RateLimit),
    ("Throttling", RateLimit),
    ("ServiceQuotaExceeded", RateLimit),
    ("overloaded_error", Overloaded),
    ("server_is_overloaded", Overloaded),
    ("slow_down", Overloaded),
    ("capacity_exceeded", Overloaded),
    ("UNAVAILABLE", Overloaded),
    ("ModelNotReady", NotReady),
    ("MPAgreementBeingCreated", NotReady),
    ("ModelTimeout", RequestTimeout),
    ("ModelError", ModelFault),
    ("ModelStreamError", ModelFault),
    ("tool_use_failed", ModelFault),
    ("unsupported_country_region_territory", Region),
    ("authentication_error", Auth),
    ("invalid_api_key", Auth),
    ("account_deactivated", Auth),
    ("API_KEY_INVALID", Auth),
    ("UnrecognizedClient", Auth),
    ("InvalidSignature", Auth),
    ("ExpiredToken", Auth),
    ("model_not_found", ModelGone),
    ("model_decommissioned", ModelGone),
    ("model_not_available", ModelGone),
    ("dedicated_endpoint_not_running", ModelGone),
    ("DeploymentNotFound", ModelGone),
    ("ResourceNotFound", ModelGone),
    ("context_length_exceeded", ContextOverflow),
    ("model_context_window_exceeded", ContextOverflow),
    ("exceed_context_size_error", ContextOverflow),
    ("model_max_prompt_tokens_exceeded", ContextOverflow),
    ("request_too_large", TooLarge),
    ("content_filter", ContentFilter),
    ("content_policy_violation", ContentFilter),
    ("image_content_policy_violation", ContentFilter),
    ("moderation_blocked", ContentFilter),
    ("invalid_prompt", ContentFilter),
    ("previous_response_not_found", SessionExpired),
    ("session_expired", SessionExpired),
    ("session_not_found", SessionExpired),
];

/// The error names that several causes share: they count after [`SENTENCES`], before the
/// status.
pub(super) const SHARED: &[Code] = &[
    ("RESOURCE_EXHAUSTED", RateLimit),
    ("PERMISSION_DENIED", Auth),
    ("permission_error", ModelGone),
    ("AccessDenied", ModelGone),
];

/// The error names that only say which side is at fault: they count after the status.
pub(super) const BROAD: &[Code] = &[
    ("conflict_error", Conflict),
    ("api_error", Server),
    ("server_error", Server),
    ("timeout_error", Server),
    ("vector_store_timeout", Server),
    ("InternalServer", Server),
    ("DEADLINE_EXCEEDED", Server),
    ("CANCELLED", Server),
    ("invalid_request_error", Caller),
    ("not_found_error", Caller),
    ("Validation", Caller),
    ("string_above_max_length", Caller),
    ("invalid_image", Caller),
    ("invalid_image_format", Caller),
    ("invalid_base64_image", Caller),
    ("invalid_image_url", Caller),
    ("invalid_image_mode", Caller),
    ("image_too_large", Caller),
    ("image_too_small", Caller),
    ("image_parse_error", Caller),
    ("image_file_too_large", Caller),
    ("image_file_not_found", Caller),
    ("unsupported_image_media_type", Caller),
    ("empty_image_file", Caller),
    ("failed_to_download_image", Caller),
];

/// Finds the failure class of the first code that is one of `names`.
pub(super) fn find_code(codes: &[Code], names: &[&str]) -> Option<FailureClass> {
    let code = codes.iter().find(|(known, _)| is_among(known, names));
    code.map(|&(_, class)| class)
}

/// Whether one of an error's `names`, without AWS's additions, is the listed name `known`.
pub(super) fn is_among(known: &str, names: &[&str]) -> bool {
    names
        .iter()
        .any(|name| bare(name) == known || starts_lower(known, bare(name)))
}

/// The status that an answer with one of these error names has; an event has no status.
pub(super) fn status_of(names: &[&str]) -> Option<StatusCode> {
    if is_among("invalid_request_error", names) || is_among("Validation", names) {
        Some(StatusCode::BAD_REQUEST)
    } else if is_among("not_found_error", names) {
        Some(StatusCode::NOT_FOUND)
    } else if is_among("permission_error", names) {
        Some(StatusCode::FORBIDDEN)
    } else {
        None
    }
}

/// Removes AWS's additions from an error name.
///
/// AWS adds a namespace before an error name or an address after it, and in most answers
/// the suffix `Exception`.
fn bare(name: &str) -> &str {
    let name = name.split_once('#').map_or(name, |(_, name)| name);
    let name = name.split_once(':').map_or(name, |(name, _)| name);
    name.strip_suffix("Exception").unwrap_or(name)
}

/// Whether `name` equals `known`, except for a lower-case first letter, as in AWS's streams.
fn starts_lower(known: &str, name: &str) -> bool {
    known.get(1..) == name.get(1..)
        && known.get(..1).map(str::to_ascii_lowercase).as_deref() == name.get(..1)
}

/// A phrase by which a provider reports an error without a code.
pub(super) struct Sentence {
    class: FailureClass,
    /// The statuses of an answer with which the phrase counts.
    statuses: &'static [u16],
    /// The error name that the answer must have besides the phrase; empty if any will do.
    name: &'static str,
    words: &'static str,
    /// Whether the message must begin with the words.
    is_start: bool,
}

/// The known phrases; if several match a message, the first of them wins.
///
/// Each phrase counts only with the statuses that its provider sends, and a common phrase only
/// with the provider's error name.
pub(super) const SENTENCES: &[Sentence] = &[
    // Anthropic's API sends the next two phrases.
    sentence(Quota, &[400], "credit balance").beside("invalid_request_error"),
    sentence(Quota, &[400], "api usage limits").beside("invalid_request_error"),
    // OpenRouter sends the next phrase.
    sentence(Quota, &[403], "key limit exceeded"),
    // The Gemini API sends the next phrase.
    sentence(Quota, &[429], "spending cap").beside("RESOURCE_EXHAUSTED"),
    // Ollama sends the next phrase.
    sentence(Overloaded, &[503], "maximum pending requests exceeded"),
    // The Gemini API sends the next phrase; some proxies drop the error name beside it.
    sentence(Overloaded, &[503], "the model is overloaded"),
    // llama.cpp sends the next phrase while it loads a model.
    sentence(NotReady, &[503], "loading model"),
    // Bedrock sends the next phrase.
    sentence(
        NotReady,
        &[403],
        "marketplace subscription for this model is still being processed",
    ),
    // The Gemini API sends the next phrase.
    sentence(Region, &[400, 403], "location is not supported"),
    // Bedrock sends the next phrase.
    sentence(
        Region,
        &[400, 403],
        "unsupported countries, regions, or territories",
    ),
    // The Gemini API sends the next phrase.
    sentence(Auth, &[400], "api key not valid").beside("INVALID_ARGUMENT"),
    // Some proxies send the next phrase.
    sentence(Auth, &[400], "missing api key").at_start(),
    // The API of xAI sends the next phrase.
    sentence(Auth, &[400], "incorrect api key provided").at_start(),
    // Anthropic's API sends the next two phrases.
    sentence(Auth, &[400], "organization has been disabled").beside("invalid_request_error"),
    sentence(Auth, &[403], "not allowed for this organization").beside("permission_error"),
    // Some proxies send the next four phrases.
    sentence(SessionExpired, &[404, 410], "session not found"),
    sentence(SessionExpired, &[404, 410], "session does not exist"),
    sentence(SessionExpired, &[404, 410], "session expired"),
    sentence(SessionExpired, &[404, 410], "session has expired"),
    // OpenAI's API sends the next phrase; some proxies drop the error name beside it.
    sentence(SessionExpired, &[404, 410], "previous response").at_start(),
    // Messages of Anthropic, Gemini and Ollama begin with the next word.
    sentence(ModelGone, &[404], "model").at_start(),
    // vLLM begins a message with the next phrase.
    sentence(ModelGone, &[404], "the model").at_start(),
    // DeepSeek begins a message with the next phrase.
    sentence(ModelGone, &[400], "model not exist").at_start(),
    // OpenRouter begins a message with the next phrase, and a model. Without "for", the message is
    // about a feature that the request asks for.
    sentence(ModelGone, &[404], "no endpoints found for").at_start(),
    // Google's Vertex begins a message with the next phrase.
    sentence(ModelGone, &[404], "publisher model").at_start(),
    // Anthropic's API sends the next two phrases; Bedrock passes them on.
    sentence(ContextOverflow, &[400], "prompt is too long"),
    sentence(ContextOverflow, &[400], "exceed context limit"),
    // The Gemini API sends the next phrase.
    sentence(
        ContextOverflow,
        &[400],
        "exceeds the maximum number of tokens allowed",
    ),
    // Bedrock sends the next phrase.
    sentence(ContextOverflow, &[400], "input is too long").beside("Validation"),
    // vLLM and OpenRouter send the next phrase.
    sentence(ContextOverflow, &[400], "maximum context length is"),
    // The API of xAI sends the next phrase.
    sentence(ContextOverflow, &[400], "maximum prompt length is"),
    // SGLang and newer versions of vLLM send the next phrase.
    sentence(ContextOverflow, &[400], "model's context length"),
    // Some hosts with engines of their own send the next phrase.
    sentence(ContextOverflow, &[400], "model's maximum context length"),
    // Moonshot, Mistral, MiniMax, Z.ai, Cohere, DashScope, SiliconFlow and Poolside send the next
    // phrases, in this order.
    sentence(ContextOverflow, &[400], "exceeded model token limit"),
    sentence(ContextOverflow, &[400], "too large for model with"),
    sentence(ContextOverflow, &[400], "context window exceeds limit"),
    sentence(ContextOverflow, &[400], "prompt exceeds max length"),
    sentence(
        ContextOverflow,
        &[400],
        "too many tokens: size limit exceeded",
    ),
    sentence(ContextOverflow, &[400], "range of input length should be"),
    sentence(ContextOverflow, &[400], "must be less than max_seq_len"),
    sentence(
        ContextOverflow,
        &[400],
        "exceeds the maximum allowed input length",
    ),
    // Some of GitHub Copilot's answers have this phrase and no code.
    sentence(ContextOverflow, &[400], "prompt token count of").at_start(),
    // Ollama sends the next phrase.
    sentence(ContextOverflow, &[400], "exceeded max context length"),
    // Versions of LM Studio send the next four phrases.
    sentence(ContextOverflow, &[400], "with context length of only"),
    sentence(
        ContextOverflow,
        &[400],
        "prompt is greater than the context length",
    ),
    sentence(
        ContextOverflow,
        &[400],
        "cannot truncate prompt with n_keep",
    ),
    sentence(ContextOverflow, &[400], "does not fit in context length"),
    // Text Generation Inference sends the next two phrases; Together sends them under 400.
    sentence(ContextOverflow, &[400, 422], "`inputs` must have less than"),
    sentence(
        ContextOverflow,
        &[400, 422],
        "`inputs` tokens + `max_new_tokens` must be <=",
    ),
    // llama.cpp sends the next phrase if the context fills up during the answer.
    sentence(ContextOverflow, &[500], "context size has been exceeded"),
];

const fn sentence(class: FailureClass, statuses: &'static [u16], words: &'static str) -> Sentence {
    Sentence {
        class,
        statuses,
        name: "",
        words,
        is_start: false,
    }
}

impl Sentence {
    const fn beside(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    const fn at_start(mut self) -> Self {
        self.is_start = true;
        self
    }

    /// Whether an error is the one that the phrase reports.
    ///
    /// An event of a stream may have no status. Then the phrases about the context's length count,
    /// whatever their statuses, because a server with a local model sends neither status nor name.
    fn fits(&self, status: Option<StatusCode>, names: &[&str], message: &str) -> bool {
        let says = if self.is_start { starts } else { has };
        let counts = match status {
            Some(status) => self.statuses.contains(&status.as_u16()),
            None => self.class == ContextOverflow,
        };
        counts && (self.name.is_empty() || is_among(self.name, names)) && says(message, self.words)
    }
}

/// Finds the class of the first of [`SENTENCES`] that fits the status, names and message.
pub(super) fn find_message(
    status: Option<StatusCode>,
    names: &[&str],
    message: &str,
) -> Option<FailureClass> {
    let mut sentences = SENTENCES.iter();
    let sentence = sentences.find(|sentence| sentence.fits(status, names, message))?;
    Some(sentence.class)
}

/// Whether `text` contains `phrase`, in any letter case.
pub(super) fn has(text: &str, phrase: &str) -> bool {
    after(text, phrase).is_some()
}

/// Returns the rest of `text` behind the first `phrase`, in any letter case.
pub(super) fn after<'a>(text: &'a str, phrase: &str) -> Option<&'a str> {
    let mut windows = text.as_bytes().windows(phrase.len());
    let at = windows.position(|window| window.eq_ignore_ascii_case(phrase.as_bytes()))?;
    text.get(at + phrase.len()..)
}

fn starts(text: &str, start: &str) -> bool {
    let head = text.as_bytes().get(..start.len());
    head.is_some_and(|head| head.eq_ignore_ascii_case(start.as_bytes()))
}
