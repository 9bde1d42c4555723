//! The error events that end a stream, and the bodies of answers that are errors.

use bytes::Bytes;
use serde_json::Value;

/// The error that a caller receives instead of an answer, or of the rest of one.
#[derive(Clone, Copy, Debug)]
pub struct ErrorInfo<'a> {
    /// The error's type and code: mostly the wire name of the terminal reason.
    ///
    /// An error without a terminal reason has another name, such as `invalid_request_error`.
    pub code: &'a str,
    /// A description of the error, for people.
    pub message: &'a str,
    /// The id of the run, if it is known and the caller may know it.
    pub run_id: Option<&'a str>,
    /// The sequence number of the error event: see
    /// [`StreamReader::next_sequence`](crate::stream::StreamReader::next_sequence).
    pub sequence: u64,
    /// The id of the answer that the error ends: see
    /// [`StreamReader::response_id`](crate::stream::StreamReader::response_id).
    ///
    /// Set the id to `None` unless the caller got the event that carries the id: OpenAI's SDKs
    /// raise a mismatch, and not this error, for an id that they do not know.
    pub response_id: Option<&'a str>,
}

/// Writes one error frame that the official SDKs of OpenAI and Anthropic all raise.
pub(crate) fn common_event(info: &ErrorInfo<'_>) -> Bytes {
    let [code, message] = [info.code, info.message].map(json);
    let run_id = info.run_id.map_or("null".into(), json);
    let sequence = info.sequence;
    format!(
        r#"event: error
data: {{"type":"error","error":{{"type":{code},"code":{code},"message":{message},"param":null,"run_id":{run_id}}},"code":{code},"message":{message},"param":null,"sequence_number":{sequence}}}

"#
    )
    .into()
}

/// Writes a `response.failed` event for a response with an id, then the common error
/// frame.
///
/// The `response.failed` event has every field that strictly typed clients require.
pub(crate) fn responses_event(info: &ErrorInfo<'_>) -> Bytes {
    let Some(id) = info.response_id else {
        return common_event(info);
    };
    let [id, code, message] = [id, info.code, info.message].map(json);
    let sequence = info.sequence;
    let failed = format!(
        r#"event: response.failed
data: {{"type":"response.failed","sequence_number":{sequence},"response":{{"id":{id},"object":"response","created_at":0,"status":"failed","error":{{"code":{code},"message":{message}}},"incomplete_details":null,"model":"","output":[],"usage":null}}}}

"#
    );
    let common = common_event(&ErrorInfo {
        sequence: sequence.saturating_add(1),
        ..*info
    });
    [failed.as_bytes(), &common].concat().into()
}

pub(crate) fn openai_body(info: &ErrorInfo<'_>) -> Bytes {
    let [code, message] = [info.code, info.message].map(json);
    format!(r#"{{"error":{{"message":{message},"type":{code},"code":{code},"param":null}}}}"#)
        .into()
}

pub(crate) fn anthropic_body(info: &ErrorInfo<'_>) -> Bytes {
    let [code, message] = [info.code, info.message].map(json);
    format!(r#"{{"type":"error","error":{{"type":{code},"message":{message}}}}}"#).into()
}

/// Writes a text as a JSON string.
fn json(text: &str) -> String {
    Value::from(text).to_string()
}
