use bytes::Bytes;
use serde::Serialize;

/// The event after which an OpenAI chat stream is complete.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// What the caller is told when a run ends early.
#[derive(Clone, Copy, Debug)]
pub struct ErrorInfo<'a> {
    /// The reason's wire name; it serves as the error's type and as its code.
    pub code: &'a str,
    /// What happened, for people.
    pub message: &'a str,
    /// The run that ended, if it may be named.
    pub run_id: Option<&'a str>,
    /// See [`StreamReader::next_sequence`](crate::llm::stream::StreamReader::next_sequence).
    pub sequence: u64,
    /// See [`StreamReader::response_id`](crate::llm::stream::StreamReader::response_id); only if the caller was sent the event
    /// that said it.
    pub response_id: Option<&'a str>,
}

pub(crate) fn common_event(info: &ErrorInfo<'_>) -> Bytes {
    let mut out = Vec::new();
    write_common(&mut out, info);
    out.into()
}

pub(crate) fn responses_event(info: &ErrorInfo<'_>) -> Bytes {
    let Some(id) = info.response_id else {
        return common_event(info);
    };
    let mut out = Vec::new();
    let failed = ResponseFailed {
        kind: "response.failed",
        sequence_number: info.sequence,
        response: Response {
            id,
            object: "response",
            created_at: 0,
            status: "failed",
            error: ResponseError {
                code: info.code,
                message: info.message,
            },
            incomplete_details: (),
            model: "",
            output: [],
            usage: (),
        },
    };
    write_event(&mut out, failed.kind, &failed);
    write_common(
        &mut out,
        &ErrorInfo {
            sequence: info.sequence.saturating_add(1),
            ..*info
        },
    );
    out.into()
}

pub(crate) fn openai_body(info: &ErrorInfo<'_>) -> Bytes {
    let ErrorInfo { code, message, .. } = *info;
    json(&OpenAiBody {
        error: OpenAiError {
            message,
            kind: code,
            code,
            param: (),
        },
    })
    .into()
}

pub(crate) fn anthropic_body(info: &ErrorInfo<'_>) -> Bytes {
    let error = AnthropicError {
        kind: info.code,
        message: info.message,
    };
    json(&AnthropicBody {
        kind: "error",
        error,
    })
    .into()
}

fn write_common(out: &mut Vec<u8>, info: &ErrorInfo<'_>) {
    let ErrorInfo {
        code,
        message,
        run_id,
        sequence,
        response_id: _,
    } = *info;
    let error = NestedError {
        kind: code,
        code,
        message,
        param: (),
        run_id,
    };
    let event = CommonEvent {
        kind: "error",
        error,
        code,
        message,
        param: (),
        sequence_number: sequence,
    };
    write_event(out, event.kind, &event);
}

fn write_event(out: &mut Vec<u8>, name: &str, data: &impl Serialize) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\ndata: ");
    out.extend_from_slice(&json(data));
    out.extend_from_slice(b"\n\n");
}

/// Structs of texts and numbers always serialise.
fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

// `()` serialises as `null`. The order of the fields is the order on the wire.

#[derive(Serialize)]
struct CommonEvent<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: NestedError<'a>,
    code: &'a str,
    message: &'a str,
    param: (),
    sequence_number: u64,
}

#[derive(Serialize)]
struct NestedError<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    code: &'a str,
    message: &'a str,
    param: (),
    run_id: Option<&'a str>,
}

/// With every field that strictly typed clients require of a response.
#[derive(Serialize)]
struct ResponseFailed<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    sequence_number: u64,
    response: Response<'a>,
}

#[derive(Serialize)]
struct Response<'a> {
    id: &'a str,
    object: &'static str,
    created_at: u64,
    status: &'static str,
    error: ResponseError<'a>,
    incomplete_details: (),
    model: &'static str,
    output: [(); 0],
    usage: (),
}

#[derive(Serialize)]
struct ResponseError<'a> {
    code: &'a str,
    message: &'a str,
}

#[derive(Serialize)]
struct OpenAiBody<'a> {
    error: OpenAiError<'a>,
}

#[derive(Serialize)]
struct OpenAiError<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    code: &'a str,
    param: (),
}

#[derive(Serialize)]
struct AnthropicBody<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: AnthropicError<'a>,
}

#[derive(Serialize)]
struct AnthropicError<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    message: &'a str,
}
