//! The stop reasons by which an upstream tells that an answer is broken, and not complete.

/// The stop reasons of upstreams that broke an answer off.
///
/// They are those of Z.ai, of vLLM and SGLang, and of DeepSeek.
const BROKEN_OFF: [&str; 3] = ["network_error", "abort", "insufficient_system_resource"];

/// The stop reason of a model that wrote a tool call which cannot be read: Gemini's.
const MALFORMED: &str = "MALFORMED_FUNCTION_CALL";

/// What Gemini's compatible endpoint puts before its own reasons.
const PREFIX: &str = "function_call_filter: ";

/// Why an answer with a faulty stop reason is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultyStop {
    /// The upstream broke the answer off.
    BrokenOff,
    /// The model wrote a tool call that cannot be read.
    MalformedCall,
}

impl FaultyStop {
    /// The fault that a stop reason names; `None` if it names none.
    pub(crate) fn of(reason: &str) -> Option<Self> {
        let reason = reason.strip_prefix(PREFIX).unwrap_or(reason);
        if BROKEN_OFF.contains(&reason) {
            Some(Self::BrokenOff)
        } else {
            (reason == MALFORMED).then_some(Self::MalformedCall)
        }
    }

    /// Whether a stop reason names a fault.
    pub(super) fn is(reason: &[u8]) -> bool {
        std::str::from_utf8(reason).is_ok_and(|reason| Self::of(reason).is_some())
    }

    /// The beginnings of all stop reasons that may name a fault.
    pub(crate) fn beginnings() -> impl Iterator<Item = &'static str> {
        BROKEN_OFF.into_iter().chain([MALFORMED, PREFIX])
    }
}
