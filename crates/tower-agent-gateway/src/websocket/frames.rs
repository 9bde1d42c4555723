//! The frames that the bridge writes itself: errors, keep-alives, and responses without a model.

use http::{HeaderMap, StatusCode, header};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Map, Value, json};
use tower_agent::TerminalReason;

use super::client_event::{Create, Steer};

/// An event that only says that the response is alive: pings do not reset the timers of clients.
pub(super) const KEEP_ALIVE: &str = r#"{"type":"keepalive"}"#;

/// The header that tells a client whether to send the same again.
const SHOULD_RETRY: &str = "x-should-retry";

/// An `error` event in the shape that clients of the API map to a failed request.
///
/// Codex reads `status`, `error.code`, `error.message` and `headers`; the SDKs read `error` and, in it,
/// `headers`. Codex ignores the event if its status is not a failure or its code no text.
///
/// Codex repeats the request for each status but 400, and for 429 with a `retry-after`; it does not read
/// `x-should-retry`. So what must not be repeated is a 400 here, whatever it is over HTTP.
#[derive(Clone, Debug)]
pub(super) struct ErrorFrame {
    status: StatusCode,
    kind: String,
    code: String,
    message: String,
    param: Value,
    lane: Option<String>,
    headers: Map<String, Value>,
    sequence: Option<Value>,
}

impl ErrorFrame {
    pub(super) fn new(status: StatusCode, kind: &str, code: &str, message: &str) -> Self {
        Self {
            status,
            kind: kind.to_owned(),
            code: code.to_owned(),
            message: message.to_owned(),
            param: Value::Null,
            lane: None,
            headers: Map::new(),
            sequence: None,
        }
    }

    /// The error of an event that the caller must not send again as it is.
    pub(super) fn refusal(code: &str, message: &str) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "invalid_request_error",
            code,
            message,
        )
        .retry(false)
    }

    /// The error of a continuation of a response that nobody knows.
    pub(super) fn previous_not_found(id: &str) -> Self {
        let shown: String = id.chars().take(128).collect();
        let message = format!("Previous response with id '{shown}' not found.");
        let status = StatusCode::BAD_REQUEST;
        let code = "previous_response_not_found";
        let error = Self::new(status, "invalid_request_error", code, &message);
        error.param("previous_response_id")
    }

    /// The error of an answer with a status of failure.
    pub(super) fn of_answer(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let body = serde_json::from_slice::<Value>(body).unwrap_or_default();
        let error = match &body["error"] {
            Value::Null => &body,
            error => error,
        };
        let text = |name: &str| match &error[name] {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let kind = text("type").unwrap_or_else(|| kind_of(status).to_owned());
        let code = text("code").unwrap_or_else(|| kind.clone());
        let message = text("message").or_else(|| error.as_str().map(str::to_owned));
        let message = message.unwrap_or_else(|| format!("The answer was {status}."));
        let mut frame = Self::new(status, &kind, &code, &message);
        frame.param = error["param"].clone();
        let told = headers.iter().filter(|(name, _)| is_told(name.as_str()));
        for (name, value) in told {
            if let Ok(value) = value.to_str() {
                frame.headers.insert(name.to_string(), value.into());
            }
        }
        // The same would be too large again, and Codex repeats a 413.
        match status {
            StatusCode::PAYLOAD_TOO_LARGE => frame.retry(false),
            _ => frame,
        }
    }

    /// The error of an `error` event in a stream that had begun.
    pub(super) fn of_event(event: &Value) -> Self {
        // The event of the library and of some upstreams nests, the one of OpenAI does not.
        let nested = |name: &str| match &event["error"][name] {
            Value::Null => &event[name],
            value => value,
        };
        let text = |name: &str| nested(name).as_str().map(str::to_owned);
        let code = text("code").or_else(|| text("type"));
        let code = code.unwrap_or_else(|| "server_error".to_owned());
        let message = text("message").unwrap_or_else(|| "The response failed.".to_owned());
        let reason = code.parse::<TerminalReason>().ok();
        let given = event["status"]
            .as_u64()
            .and_then(|it| u16::try_from(it).ok());
        let given = given.and_then(|it| StatusCode::from_u16(it).ok());
        let given = given.filter(|it| it.is_client_error() || it.is_server_error());
        let status = match &reason {
            Some(reason) => reason.status(),
            None => given.unwrap_or(StatusCode::BAD_GATEWAY),
        };
        let kind = event["error"]["type"].as_str().unwrap_or("server_error");
        let mut frame = Self::new(status, kind, &code, &message);
        frame.param = nested("param").clone();
        frame.sequence = event.get("sequence_number").cloned();
        if let Some(run) = event["error"]["run_id"].as_str() {
            frame.headers.insert("x-run-id".to_owned(), run.into());
        }
        match reason {
            Some(reason) => {
                let name = reason.as_str().into();
                frame.headers.insert("x-terminal-reason".to_owned(), name);
                frame.retry(reason.is_retryable())
            }
            None => frame,
        }
    }

    pub(super) fn param(mut self, param: &str) -> Self {
        self.param = param.into();
        self
    }

    pub(super) fn lane(mut self, lane: Option<String>) -> Self {
        self.lane = lane;
        self
    }

    /// Tells the client whether to send the same again.
    pub(super) fn retry(mut self, retry: bool) -> Self {
        let told = if retry { "true" } else { "false" };
        self.headers
            .insert("x-should-retry".to_owned(), told.into());
        if retry {
            let after = self.headers.entry(header::RETRY_AFTER.as_str());
            after.or_insert_with(|| "1".into());
        }
        self
    }

    #[cfg(test)]
    pub(super) fn code(&self) -> &str {
        &self.code
    }

    pub(super) fn into_text(self) -> String {
        let mut error = json!({
            "type": self.kind,
            "code": self.code,
            "message": self.message,
            "param": self.param,
        });
        if !self.headers.is_empty() {
            error["headers"] = Value::Object(self.headers.clone());
        }
        let is_final = self
            .headers
            .get(SHOULD_RETRY)
            .is_some_and(|it| it == "false");
        let status = match is_final {
            true => StatusCode::BAD_REQUEST,
            false => self.status,
        };
        let mut frame = json!({
            "type": "error",
            "status": status.as_u16(),
            "error": error,
            "headers": self.headers,
        });
        if let Some(lane) = self.lane {
            frame["stream_id"] = lane.into();
        }
        if let Some(sequence) = self.sequence {
            frame["sequence_number"] = sequence;
        }
        frame.to_string()
    }
}

/// The type of an error of which the status alone is known.
fn kind_of(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "server_error",
    }
}

/// Whether a header of an answer tells the caller something about its request.
fn is_told(name: &str) -> bool {
    name.starts_with("x-") || name.starts_with("openai-") || name.starts_with("retry-after")
}

/// The frames of a response that needs no model, and its id: `response.created`, then
/// `response.completed` with a usage of zero.
pub(super) fn without_model(create: &Create) -> (String, [String; 2]) {
    let id = response_id();
    let model = create.model.as_deref();
    let model = model.and_then(|model| serde_json::from_str::<Value>(model).ok());
    let mut response = response(&id, model);
    let event = |kind: &str, sequence: u64, response: &Value| {
        let mut event = json!({
            "type": kind,
            "sequence_number": sequence,
            "response": response,
        });
        if let Some(lane) = &create.lane {
            event["stream_id"] = lane.as_str().into();
        }
        event.to_string()
    };
    let created = event("response.created", 0, &response);
    response["status"] = "completed".into();
    response["usage"] = json!({
        "input_tokens": 0,
        "input_tokens_details": { "cached_tokens": 0, "cache_write_tokens": 0 },
        "output_tokens": 0,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": 0,
    });
    let completed = event("response.completed", 1, &response);
    (id, [created, completed])
}

/// The last events of a response that its caller has interrupted; `sequence` is the number of the first.
pub(super) fn interrupted(id: &str, sequence: u64) -> [Value; 2] {
    let mut response = response(id, None);
    response["status"] = "incomplete".into();
    response["incomplete_details"] = json!({ "reason": "interrupted" });
    [
        json!({
            "type": "response.interrupt.accepted",
            "sequence_number": sequence,
            "response_id": id,
        }),
        json!({
            "type": "response.incomplete",
            "sequence_number": sequence.saturating_add(1),
            "response": response,
        }),
    ]
}

/// A response in progress, with all members that typed clients require.
fn response(id: &str, model: Option<Value>) -> Value {
    json!({
        "id": id,
        "object": "response",
        "created_at": seconds_since_1970(),
        "status": "in_progress",
        "error": null,
        "incomplete_details": null,
        "instructions": null,
        "metadata": {},
        "model": model.unwrap_or_else(|| "".into()),
        // The caller of a response that was interrupted has the items that were done.
        "output": [],
        "parallel_tool_calls": true,
        "temperature": null,
        "tool_choice": "auto",
        "tools": [],
        "top_p": null,
        "usage": null,
    })
}

/// The answer to input for a running response: it was not taken.
pub(super) fn steer_failed(steer: &Steer) -> String {
    let previous = Value::from(steer.previous.as_deref());
    let input = &steer.input;
    // A name of a lane has no character that JSON escapes.
    let lane = steer.lane.as_ref();
    let lane = lane.map_or_else(String::new, |lane| format!(r#""stream_id":"{lane}","#));
    format!(
        r#"{{{lane}"type":"response.steer.failed","sequence_number":0,"steer":{{"input":{input},"previous_response_id":{previous}}},"error":{{"type":"invalid_request_error","code":"steering_not_supported","message":"The gateway takes no input for a response that runs."}}}}"#
    )
}

/// Whether a response without a model was given this id, here or by another socket.
pub(super) fn is_without_model(id: &str) -> bool {
    id.starts_with(WITHOUT_MODEL)
}

/// What the ids of responses without a model begin with: no upstream knows them.
const WITHOUT_MODEL: &str = "resp_kept_";

/// An id that no other response has.
fn response_id() -> String {
    use std::fmt::Write;

    let mut random = [0; 16];
    // Without randomness ids could meet, and each lane keeps only its last one.
    let _ = SystemRandom::new().fill(&mut random);
    random
        .iter()
        .fold(WITHOUT_MODEL.to_owned(), |mut id, byte| {
            let _ = write!(id, "{byte:02x}");
            id
        })
}

#[allow(
    clippy::disallowed_methods,
    reason = "the API tells the wall clock's time"
)]
fn seconds_since_1970() -> u64 {
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
