//! The stop reasons that count as failures, because another model might answer the request.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde_json::Value;

use super::class::FailureClass;
use crate::dialect::FaultyStop;

/// The stop reasons that are failures, with their classes.
///
/// The values are those of Anthropic's `stop_reason`, chat's `finish_reason`, the `reason` of
/// Responses' `incomplete_details`, and Gemini's `finishReason`.
const STOPS: [(&str, FailureClass); 11] = [
    ("refusal", FailureClass::ContentFilter),
    ("content_filter", FailureClass::ContentFilter),
    ("SAFETY", FailureClass::ContentFilter),
    ("PROHIBITED_CONTENT", FailureClass::ContentFilter),
    ("BLOCKLIST", FailureClass::ContentFilter),
    ("RECITATION", FailureClass::ContentFilter),
    ("SPII", FailureClass::ContentFilter),
    ("IMAGE_SAFETY", FailureClass::ContentFilter),
    ("IMAGE_PROHIBITED_CONTENT", FailureClass::ContentFilter),
    ("IMAGE_RECITATION", FailureClass::ContentFilter),
    (
        "model_context_window_exceeded",
        FailureClass::ContextOverflow,
    ),
];

/// The failure class of a stop reason in [`STOPS`], or of one that names a fault; `None` for any
/// other.
pub(super) fn class_of(reason: &str) -> Option<FailureClass> {
    let mut stops = STOPS.iter();
    let stop = stops.find(|(known, _)| *known == reason);
    stop.map(|&(_, class)| class).or_else(|| fault(reason))
}

/// The failure class of a stop reason that names a fault; `None` for any other.
pub(super) fn fault(reason: &str) -> Option<FailureClass> {
    Some(match FaultyStop::of(reason)? {
        FaultyStop::BrokenOff => FailureClass::Server,
        FaultyStop::MalformedCall => FailureClass::ModelFault,
    })
}

/// The failure class of an answer with a good status in which every stop reason is a failure.
///
/// The class is that of the first stop reason. A block reason of Gemini alone makes the class
/// `ContentFilter`. The answer may also be the last event of a stream.
pub(super) fn of_answer(body: &[u8]) -> Option<FailureClass> {
    if !is_suspect(body) {
        return None;
    }
    let answer: Value = serde_json::from_slice(body).ok()?;
    // Gemini sends a block reason, of any value, only instead of an answer.
    if answer["promptFeedback"]["blockReason"].is_string() {
        return Some(FailureClass::ContentFilter);
    }
    let choices = answer["choices"].as_array();
    let choices = choices.or(answer["candidates"].as_array());
    let of_choice = |choice: &'_ Value| {
        let reason = choice.get("finish_reason");
        class_of(reason.or(choice.get("finishReason"))?.as_str()?)
    };
    let present = |value| Some(value).filter(|value: &&Value| !value.is_null());
    let of_event = &answer["response"]["incomplete_details"];
    let details = [&answer["incomplete_details"], of_event].into_iter();
    let details = details
        .filter_map(present)
        .map(|details| &details["reason"]);
    let stops = [&answer["stop_reason"], &answer["delta"]["stop_reason"]].into_iter();
    let others = stops.filter_map(present).chain(details);
    let of_others = others.map(|reason| class_of(reason.as_str()?));
    let mut classes = choices
        .into_iter()
        .flatten()
        .map(of_choice)
        .chain(of_others);
    let first = classes.next()?;
    first.filter(|_| classes.all(|class| class.is_some()))
}

static REASON: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"eason\""));
static BLOCK_REASON: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"blockReason\""));

/// Whether a body has a key like those of the stop reasons, with a value from [`STOPS`] or one that
/// names a fault, or a `blockReason`.
///
/// After this search nearly no healthy answer has to be parsed as JSON.
fn is_suspect(body: &[u8]) -> bool {
    let reasons = REASON.find_iter(body);
    let mut values = reasons.filter_map(|at| {
        let rest = body[at + b"eason\"".len()..].trim_ascii_start();
        rest.strip_prefix(b":")?
            .trim_ascii_start()
            .strip_prefix(b"\"")
    });
    values.any(|value| {
        let stops = STOPS.iter().map(|(known, _)| *known);
        stops
            .chain(FaultyStop::beginnings())
            .any(|known| value.starts_with(known.as_bytes()))
    }) || BLOCK_REASON.find(body).is_some()
}
