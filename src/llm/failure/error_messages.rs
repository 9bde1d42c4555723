use http::StatusCode;

use super::{class::FailureClass, error_codes};

/// A phrase by which a provider reports an error without a code.
pub(super) struct Sentence {
    class: FailureClass,
    /// The statuses with one of which the phrase counts.
    statuses: &'static [u16],
    /// The error name beside which the phrase counts; any name if empty.
    name: &'static str,
    words: Words,
}

enum Words {
    Anywhere(&'static str),
    First(&'static str),
}

/// The known phrases, in the order of judging: the first match wins.
///
/// Each phrase counts only with the status that its provider sends, and a common phrase
/// only with the provider's error name.
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
    // llama.cpp, while it answers
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
            && (self.name.is_empty() || error_codes::is_among(self.name, names))
            && match self.words {
                Words::Anywhere(words) => has(message, words),
                Words::First(words) => starts(message, words),
            }
    }
}

/// Finds the failure class of the first known phrase that matches an error's message.
pub(super) fn find(status: StatusCode, names: &[&str], message: &str) -> Option<FailureClass> {
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
