//! The codes and sentences by which providers name an error.

use http::StatusCode;

use super::class::FailureClass;

type CodeRow = (FailureClass, &'static [&'static str]);

/// The error names that decide the failure class by themselves, whatever the status.
///
/// The names are values of `error.type`, `error.code` and their equivalents. If an error has
/// several, the first row that contains one of them wins. AWS's names are listed without their
/// `Exception`.
pub(super) const EXACT: &[CodeRow] = &[
    (
        FailureClass::Quota,
        &[
            "insufficient_quota",
            "billing_error",
            "billing_hard_limit_reached",
            "billing_not_active",
        ],
    ),
    (
        FailureClass::RateLimit,
        &[
            "rate_limit_error",
            "rate_limit_exceeded",
            "Throttling",
            "ServiceQuotaExceeded",
        ],
    ),
    (
        FailureClass::Overloaded,
        &[
            "overloaded_error",
            "server_is_overloaded",
            "slow_down",
            "UNAVAILABLE",
        ],
    ),
    (
        FailureClass::NotReady,
        &["ModelNotReady", "MPAgreementBeingCreated"],
    ),
    (FailureClass::RequestTimeout, &["ModelTimeout"]),
    (
        FailureClass::ModelFault,
        &["ModelError", "ModelStreamError"],
    ),
    (
        FailureClass::Region,
        &["unsupported_country_region_territory"],
    ),
    (
        FailureClass::Auth,
        &[
            "authentication_error",
            "invalid_api_key",
            "account_deactivated",
            "API_KEY_INVALID",
            "UnrecognizedClient",
            "InvalidSignature",
            "ExpiredToken",
        ],
    ),
    (
        FailureClass::ModelGone,
        &[
            "model_not_found",
            "permission_error",
            "model_decommissioned",
            "DeploymentNotFound",
            "ResourceNotFound",
        ],
    ),
    (
        FailureClass::ContextOverflow,
        &[
            "context_length_exceeded",
            "model_context_window_exceeded",
            "exceed_context_size_error",
        ],
    ),
    (FailureClass::TooLarge, &["request_too_large"]),
    (
        FailureClass::ContentFilter,
        &[
            "content_filter",
            "content_policy_violation",
            "image_content_policy_violation",
            "moderation_blocked",
            "invalid_prompt",
        ],
    ),
];

/// The error names that several causes share: they count after [`SENTENCES`], before the
/// status.
pub(super) const SHARED: &[CodeRow] = &[
    (FailureClass::RateLimit, &["RESOURCE_EXHAUSTED"]),
    (FailureClass::Auth, &["PERMISSION_DENIED"]),
    (FailureClass::ModelGone, &["AccessDenied"]),
];

/// The error names that only say which side is at fault: they count after the status.
pub(super) const BROAD: &[CodeRow] = &[
    (FailureClass::Conflict, &["conflict_error"]),
    (
        FailureClass::Server,
        &[
            "api_error",
            "server_error",
            "timeout_error",
            "vector_store_timeout",
            "InternalServer",
            "DEADLINE_EXCEEDED",
            "CANCELLED",
        ],
    ),
    (
        FailureClass::Caller,
        &[
            "invalid_request_error",
            "not_found_error",
            "Validation",
            "string_above_max_length",
            "invalid_image",
            "invalid_image_format",
            "invalid_base64_image",
            "invalid_image_url",
            "invalid_image_mode",
            "image_too_large",
            "image_too_small",
            "image_parse_error",
            "image_file_too_large",
            "image_file_not_found",
            "unsupported_image_media_type",
            "empty_image_file",
            "failed_to_download_image",
        ],
    ),
];

/// Finds the failure class of the first row that contains one of `names`.
pub(super) fn find_code(rows: &[CodeRow], names: &[&str]) -> Option<FailureClass> {
    let row = rows
        .iter()
        .find(|(_, known)| known.iter().any(|known| is_among(known, names)));
    row.map(|&(class, _)| class)
}

/// Whether one of an error's `names`, without AWS's additions, is the listed name `known`.
pub(super) fn is_among(known: &str, names: &[&str]) -> bool {
    names
        .iter()
        .any(|name| bare(name) == known || starts_lower(known, bare(name)))
}

/// The status that answers with one of these error names have: events of a stream have none.
pub(super) fn status_of(names: &[&str]) -> Option<StatusCode> {
    if is_among("invalid_request_error", names) || is_among("Validation", names) {
        Some(StatusCode::BAD_REQUEST)
    } else if is_among("not_found_error", names) {
        Some(StatusCode::NOT_FOUND)
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
    match (known.split_at_checked(1), name.split_at_checked(1)) {
        (Some((upper, rest)), Some((lower, same))) => {
            rest == same && upper.to_ascii_lowercase() == lower
        }
        _ => false,
    }
}

/// A phrase by which a provider reports an error without a code.
pub(super) struct Sentence {
    class: FailureClass,
    /// The statuses of an answer with which the phrase counts.
    statuses: &'static [u16],
    /// The error name that the answer must have besides the phrase; empty if any will do.
    name: &'static str,
    words: Words,
}

enum Words {
    Anywhere(&'static str),
    First(&'static str),
}

/// The known phrases; if several match a message, the first of them wins.
///
/// Each phrase counts only with the statuses that its provider sends, and a common phrase only
/// with the provider's error name.
pub(super) const SENTENCES: &[Sentence] = &[
    // Anthropic
    sentence(FailureClass::Quota, &[400], "credit balance").beside("invalid_request_error"),
    // OpenRouter
    sentence(FailureClass::Quota, &[403], "key limit exceeded"),
    // Gemini
    sentence(FailureClass::Quota, &[429], "spending cap").beside("RESOURCE_EXHAUSTED"),
    // Ollama
    sentence(
        FailureClass::Overloaded,
        &[503],
        "maximum pending requests exceeded",
    ),
    // llama.cpp
    sentence(FailureClass::NotReady, &[503], "loading model"),
    // Bedrock
    sentence(
        FailureClass::NotReady,
        &[403],
        "marketplace subscription for this model is still being processed",
    ),
    // Gemini
    sentence(
        FailureClass::Region,
        &[400, 403],
        "location is not supported",
    ),
    // Bedrock
    sentence(
        FailureClass::Region,
        &[400, 403],
        "unsupported countries, regions, or territories",
    ),
    // Gemini
    sentence(FailureClass::Auth, &[400], "api key not valid").beside("INVALID_ARGUMENT"),
    // Anthropic, Gemini, Ollama
    first(FailureClass::ModelGone, &[404], "model"),
    // vLLM
    first(FailureClass::ModelGone, &[404], "the model"),
    // Vertex
    first(FailureClass::ModelGone, &[404], "publisher model"),
    // Anthropic, also behind Bedrock
    sentence(FailureClass::ContextOverflow, &[400], "prompt is too long"),
    sentence(
        FailureClass::ContextOverflow,
        &[400],
        "exceed context limit",
    ),
    // Gemini
    sentence(
        FailureClass::ContextOverflow,
        &[400],
        "exceeds the maximum number of tokens allowed",
    ),
    // Bedrock
    sentence(FailureClass::ContextOverflow, &[400], "input is too long").beside("Validation"),
    // vLLM, OpenRouter
    sentence(
        FailureClass::ContextOverflow,
        &[400],
        "maximum context length is",
    ),
    // SGLang, later vLLM
    sentence(
        FailureClass::ContextOverflow,
        &[400],
        "model's context length",
    ),
    // llama.cpp, if the context fills up during the answer
    sentence(
        FailureClass::ContextOverflow,
        &[500],
        "context size has been exceeded",
    ),
];

const fn sentence(class: FailureClass, statuses: &'static [u16], words: &'static str) -> Sentence {
    Sentence {
        class,
        statuses,
        name: "",
        words: Words::Anywhere(words),
    }
}

const fn first(class: FailureClass, statuses: &'static [u16], words: &'static str) -> Sentence {
    Sentence {
        class,
        statuses,
        name: "",
        words: Words::First(words),
    }
}

impl Sentence {
    const fn beside(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    fn fits(&self, status: StatusCode, names: &[&str], message: &str) -> bool {
        self.statuses.contains(&status.as_u16())
            && (self.name.is_empty() || is_among(self.name, names))
            && match self.words {
                Words::Anywhere(words) => has(message, words),
                Words::First(words) => starts(message, words),
            }
    }
}

/// Finds the class of the first of [`SENTENCES`] that fits the status, names and message.
pub(super) fn find_message(
    status: StatusCode,
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
