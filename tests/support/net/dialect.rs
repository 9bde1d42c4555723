use serde_json::{Value, json};

/// Where chat completions are asked for.
pub(crate) const CHAT: &str = "/v1/chat/completions";

/// A chat request to which a model upstream does what its `user` says.
pub(crate) fn chat(user: &str) -> String {
    json!({"model": "m", "user": user, "messages": []}).to_string()
}

/// A chat request for a model.
pub(crate) fn asks(model: &str, stream: bool) -> String {
    json!({"model": model, "stream": stream, "messages": []}).to_string()
}

/// What a client of one API sends and expects.
#[derive(Debug)]
pub(crate) struct Dialect {
    pub(crate) path: &'static str,
    /// What is in every answer that does not stream.
    pub(crate) object: (&'static str, &'static str),
    /// What is in the last event of a whole stream.
    pub(crate) terminator: &'static str,
    anthropic: bool,
}

pub(crate) const DIALECTS: [Dialect; 3] = [
    Dialect {
        path: "/v1/chat/completions",
        object: ("object", "chat.completion"),
        terminator: "data: [DONE]\n\n",
        anthropic: false,
    },
    Dialect {
        path: "/v1/responses",
        object: ("object", "response"),
        terminator: "response.completed",
        anthropic: false,
    },
    Dialect {
        path: "/v1/messages",
        object: ("type", "message"),
        terminator: "message_stop",
        anthropic: true,
    },
];

impl Dialect {
    /// A request body.
    pub(crate) fn asks(&self, model: &str, stream: bool) -> String {
        let messages = json!([{"role": "user", "content": "hi"}]);
        let mut body = json!({"model": model, "stream": stream, "max_tokens": 16});
        match self.path {
            "/v1/responses" => body["input"] = json!("hi"),
            _ => body["messages"] = messages,
        }
        body.to_string()
    }

    /// The type and the message of an error in this dialect's shape.
    pub(crate) fn error(&self, body: &str) -> (String, String) {
        let body: Value = serde_json::from_str(body).unwrap();
        let error = &body["error"];
        let text = |name: &str| error[name].as_str().unwrap().to_owned();
        if self.anthropic {
            assert_eq!(body["type"], "error", "{body}");
        } else {
            assert_eq!(error["code"], error["type"], "{body}");
            assert!(error.get("param").unwrap().is_null(), "{body}");
        }
        (text("type"), text("message"))
    }
}

/// The error event that a stream ends with: what came before, and its data.
pub(crate) fn error_event(stream: &str) -> (&str, Value) {
    let (before, event) = stream.rsplit_once("event: error\ndata: ").unwrap();
    let data = event.strip_suffix("\n\n").unwrap();
    (before, serde_json::from_str(data).unwrap())
}
