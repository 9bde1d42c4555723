//! A caller's WebSocket, and an upstream that answers the Responses API.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{
        Error, Message, client::IntoClientRequest, handshake::client::Response,
        protocol::frame::CloseFrame,
    },
};

use crate::{
    net::{Call, Play, SSE_HEAD, Step, Upstream, chunk, within},
    support::Gateway,
};

pub(super) const PATH: &str = "/v1/responses";

/// A WebSocket at a gateway.
pub(super) struct Caller {
    pub(super) socket: WebSocketStream<TcpStream>,
}

impl Caller {
    pub(super) async fn connect(gateway: &Gateway) -> Self {
        Self::connect_with(gateway, &[]).await
    }

    /// Connects with these headers.
    pub(super) async fn connect_with(gateway: &Gateway, headers: &[(&str, &str)]) -> Self {
        let (caller, answer) = Self::try_connect(gateway, headers).await.unwrap();
        assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
        caller
    }

    /// The status with which an upgrade is refused.
    pub(super) async fn refused(gateway: &Gateway, headers: &[(&str, &str)]) -> Refusal {
        match Self::try_connect(gateway, headers).await {
            Err(Error::Http(answer)) => *answer,
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("the upgrade was not refused"),
        }
    }

    async fn try_connect(
        gateway: &Gateway,
        headers: &[(&str, &str)],
    ) -> Result<(Self, Response), Error> {
        let url = format!("ws://{}{PATH}", gateway.addr);
        let mut request = url.into_client_request()?;
        for (name, value) in headers {
            let name: http::HeaderName = name.parse().unwrap();
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        let stream = TcpStream::connect(gateway.addr).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (socket, answer) = within(client_async(request, stream)).await?;
        Ok((Self { socket }, answer))
    }

    pub(super) async fn send(&mut self, event: &Value) {
        self.send_text(event.to_string()).await;
    }

    pub(super) async fn send_text(&mut self, text: impl Into<String>) {
        let text = text.into();
        within(self.socket.send(Message::text(text))).await.unwrap();
    }

    /// Asks for a response: `input` says to the upstream what to do.
    pub(super) async fn create(&mut self, input: &str) {
        self.send(&create(input)).await;
    }

    /// The next message.
    pub(super) async fn message(&mut self) -> Message {
        loop {
            match within(self.socket.next()).await.unwrap().unwrap() {
                Message::Ping(_) | Message::Pong(_) => {}
                message => return message,
            }
        }
    }

    /// The next event.
    pub(super) async fn event(&mut self) -> Value {
        match self.message().await {
            Message::Text(text) => serde_json::from_str(&text).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the begin of a response, and returns its id.
    pub(super) async fn begun(&mut self) -> String {
        let created = self.event().await;
        assert_eq!(created["type"], "response.created");
        assert_eq!(self.event().await["type"], "response.output_text.delta");
        created["response"]["id"].as_str().unwrap().to_owned()
    }

    /// The events up to the last one of a response.
    pub(super) async fn response(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.event().await;
            let is_last = is_last(&event);
            events.push(event);
            if is_last {
                return events;
            }
        }
    }

    /// The id of the response that comes now, which must be completed.
    pub(super) async fn completed(&mut self) -> String {
        let events = self.response().await;
        let last = events.last().unwrap();
        assert_eq!(last["type"], "response.completed", "{last}");
        last["response"]["id"].as_str().unwrap().to_owned()
    }

    /// The error that comes now.
    pub(super) async fn error(&mut self) -> Value {
        let events = self.response().await;
        let last = events.last().unwrap();
        assert_eq!(last["type"], "error", "{last}");
        last.clone()
    }

    /// The frame with which the gateway closes the socket.
    pub(super) async fn closed(&mut self) -> CloseFrame {
        match self.message().await {
            Message::Close(Some(frame)) => frame,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the socket is gone, whatever comes before.
    pub(super) async fn gone(&mut self) {
        while let Some(Ok(_)) = within(self.socket.next()).await {}
    }
}

type Refusal = http::Response<Option<Vec<u8>>>;

fn is_last(event: &Value) -> bool {
    let kind = event["type"].as_str().unwrap();
    let ends = [
        "response.completed",
        "response.failed",
        "response.incomplete",
        "error",
    ];
    ends.contains(&kind)
}

/// A `response.create` for one user message.
pub(super) fn create(input: &str) -> Value {
    json!({
        "type": "response.create",
        "model": "m",
        "store": false,
        "input": [{ "type": "message", "role": "user", "content": input }],
    })
}

/// The same, as a continuation of another response.
pub(super) fn continuing(id: &str, input: &str) -> Value {
    let mut event = create(input);
    event["previous_response_id"] = id.into();
    event
}

/// What the upstream was sent as input, item by item.
pub(super) fn input(call: &Call) -> Vec<Value> {
    call.json()["input"].as_array().unwrap().clone()
}

/// The last user message of a request.
fn word(call: &Call) -> String {
    let body = call.json();
    let last = body["input"]
        .as_array()
        .and_then(|items| items.last().cloned());
    let last = last.unwrap_or_default();
    last["content"].as_str().unwrap_or_default().to_owned()
}

/// An upstream of the Responses API: the last user message says what it does.
pub(super) async fn upstream() -> Upstream {
    Upstream::http1_of(|call| play(&word(call), call.connection)).await
}

fn play(word: &str, connection: usize) -> Play {
    let id = format!("resp_{word}_{connection}");
    let mut words = word.split(' ');
    let size = |words: &mut dyn Iterator<Item = &str>| words.next().and_then(|it| it.parse().ok());
    match words.next().unwrap_or_default() {
        "stall" => Play::Script(vec![begin(&begun(&id)), Step::Hang]),
        "held" => Play::Script(vec![begin(&begun(&id)), Step::Hold, end(&rest(&id, "ok"))]),
        "cut" => Play::Script(vec![begin(&begun(&id)), Step::Close]),
        "silent" => Play::Silent,
        "big" => {
            let text = "x".repeat(size(&mut words).unwrap_or(1));
            Play::keep(format!(
                "{SSE_HEAD}{}{}0\r\n\r\n",
                chunk(&created(&id)),
                chunk(&rest(&id, &text))
            ))
        }
        // Many small events.
        "deltas" => {
            let count: usize = size(&mut words).unwrap_or(1);
            let mut steps = vec![Step::write(format!("{SSE_HEAD}{}", chunk(&created(&id))))];
            let pieces = (0..count).step_by(1000).map(|from| 1000.min(count - from));
            steps.extend(pieces.map(|piece| Step::write(chunk(&delta().repeat(piece)))));
            steps.push(end(&rest(&id, "ok")));
            Play::Script(steps)
        }
        "slow" => Play::Script(vec![
            begin(&begun(&id)),
            Step::Pause(Duration::from_millis(700)),
            end(&rest(&id, "ok")),
        ]),
        // The transport ends some time after the last event.
        "late-end" => Play::Script(vec![
            Step::write(format!(
                "{SSE_HEAD}{}{}",
                chunk(&created(&id)),
                chunk(&rest(&id, "ok"))
            )),
            Step::Pause(Duration::from_millis(20)),
            Step::write(format!("{}0\r\n\r\n", chunk("data: [DONE]\n\n"))),
        ]),
        "laned" => {
            let events = created(&id) + &rest(&id, "ok");
            let events = events.replace("{\"", "{\"stream_id\":\"b\",\"");
            Play::keep(format!("{SSE_HEAD}{}0\r\n\r\n", chunk(&events)))
        }
        "late" => Play::Script(vec![
            Step::Pause(Duration::from_millis(700)),
            Step::write(refusal(429)),
        ]),
        "failed" => {
            let failed = event(
                &json!({"type": "response.failed", "response": {"id": id, "status": "failed",
                "error": {"code": "server_error", "message": "no"}}}),
            );
            Play::keep(format!(
                "{SSE_HEAD}{}{}0\r\n\r\n",
                chunk(&created(&id)),
                chunk(&failed)
            ))
        }
        "error" => {
            let error = event(
                &json!({"type": "error", "code": "server_error", "message": "no", "param": null, "sequence_number": 3}),
            );
            Play::keep(format!(
                "{SSE_HEAD}{}{}{}0\r\n\r\n",
                chunk(&created(&id)),
                chunk(&delta()),
                chunk(&error)
            ))
        }
        number if number.parse::<u16>().is_ok() => Play::keep(refusal(number.parse().unwrap())),
        _ => Play::keep(format!(
            "{SSE_HEAD}{}{}0\r\n\r\n",
            chunk(&created(&id)),
            chunk(&rest(&id, "ok"))
        )),
    }
}

fn refusal(status: u16) -> String {
    let error =
        json!({"message": "no", "type": "server_error", "code": "some_code", "param": null});
    let body = json!({ "error": error }).to_string();
    let length = body.len();
    format!(
        "HTTP/1.1 {status} Failure\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

fn begin(events: &str) -> Step {
    Step::write(format!("{SSE_HEAD}{}", chunk(events)))
}

fn end(events: &str) -> Step {
    Step::write(format!("{}0\r\n\r\n", chunk(events)))
}

fn event(event: &Value) -> String {
    format!(
        "event: {}\ndata: {event}\n\n",
        event["type"].as_str().unwrap()
    )
}

fn created(id: &str) -> String {
    let response = json!({"id": id, "object": "response", "status": "in_progress", "model": "m", "output": []});
    event(&json!({"type": "response.created", "sequence_number": 0, "response": response}))
}

/// The begin of an answer: content, because without it the gateway tells nothing.
fn begun(id: &str) -> String {
    created(id) + &delta()
}

fn delta() -> String {
    event(
        &json!({"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0,
        "delta": "t", "sequence_number": 1, "logprobs": []}),
    )
}

/// The one item of an answer, as the server writes it.
pub(super) fn item(text: &str) -> Value {
    json!({"id": "msg_1", "type": "message", "status": "completed", "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}]})
}

/// The same item as one of an input.
pub(super) fn kept_item(text: &str) -> Value {
    let mut item = item(text);
    let members = item.as_object_mut().unwrap();
    members.remove("id");
    members.remove("status");
    item
}

fn rest(id: &str, text: &str) -> String {
    let done = json!({"type": "response.output_item.done", "sequence_number": 2, "output_index": 0, "item": item(text)});
    let usage = json!({"input_tokens": 11, "input_tokens_details": {"cached_tokens": 3}, "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 16});
    let response = json!({"id": id, "object": "response", "status": "completed", "model": "m", "output": [item(text)], "usage": usage});
    let completed =
        json!({"type": "response.completed", "sequence_number": 3, "response": response});
    [delta(), event(&done), event(&completed)].concat()
}
