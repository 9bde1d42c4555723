//! Whole answers of each API.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;

/// An API whose streams the crate reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Messages,
    Responses,
}

/// The whole streams of each API, by name.
pub(crate) fn answers() -> Vec<(&'static str, Api, String)> {
    let file = |name, api, text: &str| (name, api, text.to_owned());
    let reply = |name, api, text: &str| {
        let text = text.replace("{id}", "1").replace("{model}", "m");
        (name, api, text.replace("{text}", "a reply"))
    };
    vec![
        file(
            "chat_usage",
            Api::Chat,
            include_str!("../fixtures/streams/chat_usage.sse"),
        ),
        file(
            "chat_tools",
            Api::Chat,
            include_str!("../fixtures/streams/chat_tools.sse"),
        ),
        file(
            "chat_choices",
            Api::Chat,
            include_str!("../fixtures/streams/chat_choices.sse"),
        ),
        reply(
            "chat",
            Api::Chat,
            include_str!("../../src/layers/stop_phrase/replies/chat.sse"),
        ),
        file(
            "messages_thinking",
            Api::Messages,
            include_str!("../fixtures/streams/messages_thinking.sse"),
        ),
        file(
            "messages_tools",
            Api::Messages,
            include_str!("../fixtures/streams/messages_tools.sse"),
        ),
        reply(
            "messages",
            Api::Messages,
            include_str!("../../src/layers/stop_phrase/replies/messages.sse"),
        ),
        file(
            "responses_completed",
            Api::Responses,
            include_str!("../fixtures/streams/responses_completed.sse"),
        ),
        file(
            "responses_incomplete",
            Api::Responses,
            include_str!("../fixtures/streams/responses_incomplete.sse"),
        ),
        file(
            "responses_done",
            Api::Responses,
            include_str!("../fixtures/streams/responses_done.sse"),
        ),
        reply(
            "responses",
            Api::Responses,
            include_str!("../../src/layers/stop_phrase/replies/responses.sse"),
        ),
    ]
}

impl Api {
    /// A request for a stream.
    pub(crate) fn request(self, asks_for_usage: bool) -> Request<Full<Bytes>> {
        let path = match self {
            Self::Chat => "/v1/chat/completions",
            Self::Messages => "/v1/messages",
            Self::Responses => "/v1/responses",
        };
        let options = match asks_for_usage {
            true => r#","stream_options":{"include_usage":true}"#,
            false => "",
        };
        let body = format!(r#"{{"model":"a","stream":true,"messages":[]{options}}}"#);
        Request::post(path).body(Full::from(body)).unwrap()
    }
}
