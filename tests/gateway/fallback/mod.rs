//! Calls that fail, in front of an upstream that counts.

mod after_the_end;
mod all_failed;
mod bytes;
mod choices;
mod counted;
mod credentials;
mod halves;
mod left_alone;
mod nested;
mod redirects;
mod served;
mod simulated;
mod sole;

use serde_json::json;

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// A chat request for a model.
pub(crate) fn asks(model: &str, stream: bool) -> String {
    json!({"model": model, "stream": stream, "messages": []}).to_string()
}
