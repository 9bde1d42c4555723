//! Tests of the known phrases, each by itself, and of the answers in which they do not
//! count.

use proptest::prelude::*;

use super::{
    super::class::FailureClass::{
        self, Auth, Caller, ContextOverflow, ModelGone, NotReady, Overloaded, Quota, Region,
    },
    class,
};
use crate::failure::prose;

/// A phrase's class, the statuses with which and the error name beside which it counts,
/// and its text.
type Case = (FailureClass, &'static [u16], &'static str, &'static str);

const CASES: &[Case] = &[
    (
        Quota,
        &[400],
        "invalid_request_error",
        "Your credit balance is too low",
    ),
    (Quota, &[403], "", "Key limit exceeded (daily limit)."),
    (
        Quota,
        &[429],
        "RESOURCE_EXHAUSTED",
        "Your billing account has exceeded its monthly spending cap.",
    ),
    (
        Overloaded,
        &[503],
        "",
        "server busy, please try again.  maximum pending requests exceeded",
    ),
    (NotReady, &[503], "", "Loading model"),
    (
        NotReady,
        &[403],
        "",
        "Your AWS Marketplace subscription for this model is still being processed",
    ),
    (
        Region,
        &[400, 403],
        "",
        "User location is not supported for the API use.",
    ),
    (
        Region,
        &[400, 403],
        "",
        "not allowed from unsupported countries, regions, or territories.",
    ),
    (
        Auth,
        &[400],
        "INVALID_ARGUMENT",
        "API key not valid. Please pass a valid API key.",
    ),
    (
        ModelGone,
        &[404],
        "",
        "models/x is not found for API version v1beta",
    ),
    (ModelGone, &[404], "", "The model `x` does not exist."),
    (ModelGone, &[404], "", "Publisher Model `x` was not found"),
    (
        ContextOverflow,
        &[400],
        "",
        "prompt is too long: 3 tokens > 2 maximum",
    ),
    (
        ContextOverflow,
        &[400],
        "",
        "input length and `max_tokens` exceed context limit: 1 + 2 > 2",
    ),
    (
        ContextOverflow,
        &[400],
        "",
        "The input token count (3) exceeds the maximum number of tokens allowed (2).",
    ),
    (
        ContextOverflow,
        &[400],
        "ValidationException",
        "Input is too long for requested model.",
    ),
    (
        ContextOverflow,
        &[400],
        "",
        "This endpoint's maximum context length is 2 tokens.",
    ),
    (
        ContextOverflow,
        &[400],
        "",
        "The input (3 tokens) is longer than the model's context length (2 tokens).",
    ),
    (
        ContextOverflow,
        &[400],
        "",
        "Requested token count exceeds the model's maximum context length of 2 tokens.",
    ),
    (
        ContextOverflow,
        &[400],
        "",
        "Your request exceeded model token limit: 2 (requested: 3)",
    ),
    (
        ContextOverflow,
        &[400],
        "",
        "Prompt contains 3 tokens and 0 draft tokens, too large for model with 2 maximum context length",
    ),
    (
        ContextOverflow,
        &[400],
        "",
        "invalid params, context window exceeds limit (2013)",
    ),
    (ContextOverflow, &[400], "", "Prompt exceeds max length"),
    (
        ContextOverflow,
        &[400],
        "",
        "too many tokens: size limit exceeded by 1 tokens.",
    ),
    (
        ContextOverflow,
        &[400],
        "",
        "Range of input length should be [1, 2]",
    ),
    (
        ContextOverflow,
        &[400],
        "",
        "length of prompt_tokens (3) must be less than max_seq_len (2).",
    ),
    (
        ContextOverflow,
        &[400],
        "",
        "Input length 3 exceeds the maximum allowed input length of 2 tokens.",
    ),
    (
        ContextOverflow,
        &[400],
        "",
        "prompt token count of 3 exceeds the limit of 2",
    ),
    (
        ContextOverflow,
        &[400],
        "",
        "prompt too long; exceeded max context length by 1 tokens",
    ),
    (
        ContextOverflow,
        &[400],
        "",
        "the model is loaded with context length of only 2 tokens",
    ),
    (
        ContextOverflow,
        &[400],
        "",
        "tokens to keep from the initial prompt is greater than the context length",
    ),
    (
        ContextOverflow,
        &[400],
        "",
        "Cannot truncate prompt with n_keep (3) >= n_ctx (2)",
    ),
    (
        ContextOverflow,
        &[400],
        "",
        "Input does not fit in context length.",
    ),
    (
        ContextOverflow,
        &[400, 422],
        "",
        "`inputs` tokens + `max_new_tokens` must be <= 2.",
    ),
    (
        ContextOverflow,
        &[400, 422],
        "",
        "Input validation error: `inputs` must have less than 2 tokens. Given: 3",
    ),
    (
        ContextOverflow,
        &[500],
        "",
        "Context size has been exceeded.",
    ),
];

fn body(name: &str, message: &str) -> String {
    format!(r#"{{"error":{{"type":"{name}","message":"{message}"}}}}"#)
}

#[test]
fn a_sentence_counts_with_the_statuses_that_its_provider_sends() {
    for &(expected, statuses, name, message) in CASES {
        for status in statuses {
            let case = format!("{status} {name} {message}");
            assert_eq!(
                class(*status, &body(name, message)),
                Some(expected),
                "{case}"
            );
        }
    }
}

#[test]
fn a_number_or_a_quotation_is_no_signal() {
    let cases = [
        (400, "invalid_request_error", "a 402 bolt, HTTP 429, 503"),
        (
            400,
            "invalid_request_error",
            "insufficient_quota rate_limit_error",
        ),
        (400, "invalid_request_error", "quota exceeded"),
        (404, "", "There is no model here"),
        (404, "", "Unknown path: model"),
        (404, "", "No route for the model"),
        (404, "", "No route for publisher model"),
    ];
    for (status, name, message) in cases {
        assert_eq!(
            class(status, &body(name, message)),
            Some(Caller),
            "{message}"
        );
    }
}

proptest! {
    #[test]
    fn what_follows_a_phrase_is_found_wherever_it_stands(
        before in "\\PC{0,20}",
        after in "\\PC{0,20}",
    ) {
        let text = format!("{before}Try Again In {after}");
        let found = prose::after(&text, "again in ").unwrap();
        prop_assert!(found.ends_with(&after));
        prop_assert_eq!(prose::has(&before, "again in "), before.to_ascii_lowercase().contains("again in "));
    }
}
