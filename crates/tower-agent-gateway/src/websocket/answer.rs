//! From the answer of a call to the frames of a lane.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use bytes::BytesMut;
use futures_util::stream::{self, Stream};
use http::{StatusCode, header};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json, value::RawValue};
use tokio::{sync::oneshot, time::timeout};
use tower_agent::llm::sse::Splitter;

use super::{
    client_event::{Members, push_member},
    frames::{ErrorFrame, KEEP_ALIVE, interrupted},
    kept::Kept,
};
use crate::config::MAX_BODY;

/// The most bytes of an answer of failure that are read.
const MOST_OF_FAILURE: usize = 1024 * 1024;

/// One step of an answer.
pub(super) enum AnswerStep {
    /// The response has this id.
    Begun(String),
    /// A text frame for the caller.
    Frame(String),
    /// The last step: the caller has got the last frame.
    End(AnswerEnd),
}

/// What an answer leaves behind.
pub(super) struct AnswerEnd {
    /// What the next response of the lane may continue; `None` for a response that failed.
    pub(super) kept: Option<Kept>,
    /// What is left of the answer behind its last frame.
    pub(super) rest: Option<Body>,
}

/// An answer on its way to the caller.
struct FramedAnswer {
    phase: AnswerPhase,
    steps: VecDeque<AnswerStep>,
    lane: Option<String>,
    /// The conversation with the items of the output so far; `None` once it was handed on.
    kept: Option<Kept>,
    has_output: bool,
    /// Resolves if the caller wants no more of the response.
    interrupt: Option<oneshot::Receiver<()>>,
    /// The id of the response, once it is known.
    id: Option<String>,
    /// The number of the next event.
    sequence: u64,
    /// After so long without a head the caller gets a sign of life.
    keep_alive: Option<Duration>,
}

/// What comes next of a stream.
enum NextFrame {
    Frame(Frame<Bytes>),
    Interrupt,
    /// The body has ended without its last event, or in an error.
    Cut,
}

enum AnswerPhase {
    Calling(Pin<Box<dyn Future<Output = Response> + Send>>),
    Streaming(Box<Events>),
    Done,
}

/// The events of a body.
struct Events {
    body: Body,
    splitter: Splitter,
    /// The bytes behind the last event.
    rest: BytesMut,
    /// Where these begin in the stream.
    at: u64,
}

/// The steps of the answer of `call`: frames, and [`AnswerStep::End`] as the last one.
///
/// `input` is the conversation that the call continues. Once `interrupt` resolves, the response ends as
/// incomplete, with the items that are done. Behind the head the call itself keeps its stream alive, before it
/// the steps do so by `keep_alive`.
///
/// # Cancel safety
///
/// Dropping the stream drops the call or its body: the caller is gone.
pub(super) fn steps(
    call: impl Future<Output = Response> + Send + 'static,
    lane: Option<String>,
    input: Kept,
    interrupt: oneshot::Receiver<()>,
    keep_alive: Option<Duration>,
) -> impl Stream<Item = AnswerStep> + Send {
    let answer = FramedAnswer {
        phase: AnswerPhase::Calling(Box::pin(call)),
        steps: VecDeque::new(),
        lane,
        kept: Some(input),
        has_output: false,
        interrupt: Some(interrupt),
        id: None,
        sequence: 0,
        keep_alive,
    };
    stream::unfold(answer, |mut answer| async {
        let step = answer.next().await?;
        Some((step, answer))
    })
}

impl FramedAnswer {
    async fn next(&mut self) -> Option<AnswerStep> {
        loop {
            if let Some(step) = self.steps.pop_front() {
                return Some(step);
            }
            match &mut self.phase {
                AnswerPhase::Calling(call) => match self.keep_alive {
                    None => {
                        let answer = call.await;
                        self.begin(answer).await;
                    }
                    Some(every) => match timeout(every, call).await {
                        Ok(answer) => self.begin(answer).await,
                        Err(_elapsed) => self.push(KEEP_ALIVE),
                    },
                },
                AnswerPhase::Streaming(events) => {
                    let interrupt = &mut self.interrupt;
                    match poll_fn(|cx| events.poll_next(interrupt, cx)).await {
                        NextFrame::Frame(frame) => {
                            if let Ok(data) = frame.into_data() {
                                self.take(&data);
                            }
                        }
                        NextFrame::Interrupt => self.end_interrupted(),
                        NextFrame::Cut => self.cut(),
                    }
                }
                AnswerPhase::Done => return None,
            }
        }
    }

    async fn begin(&mut self, answer: Response) {
        let (parts, body) = answer.into_parts();
        let kind = parts.headers.get(header::CONTENT_TYPE);
        let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        if parts.status.is_success() && is_stream {
            self.phase = AnswerPhase::Streaming(Box::new(Events {
                body,
                splitter: Splitter::new(),
                rest: BytesMut::new(),
                at: 0,
            }));
            return;
        }
        let most = match parts.status.is_success() {
            true => MAX_BODY,
            false => MOST_OF_FAILURE,
        };
        let read = Limited::new(body, most).collect().await;
        let read = read.map(http_body_util::Collected::to_bytes);
        match read {
            Ok(body) if parts.status.is_success() => self.whole(&body),
            read => {
                let body = read.unwrap_or_default();
                let error = ErrorFrame::of_answer(parts.status, &parts.headers, &body);
                self.fail(error, None);
            }
        }
    }

    /// Takes an answer that is one response and no stream.
    fn whole(&mut self, body: &Bytes) {
        let response = std::str::from_utf8(body).ok();
        let response = response.and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
        let members = response.and_then(|it| serde_json::from_str::<Members<'_>>(it.get()).ok());
        let (Some(response), Some(members)) = (response, members) else {
            return self.cut();
        };
        let status = members.text("status");
        let is = |name| status.as_deref() == Some(name);
        let kind = match (is("failed"), is("incomplete")) {
            (true, _) => "failed",
            (_, true) => "incomplete",
            _ => "completed",
        };
        let mut begun = serde_json::from_str::<Value>(response.get()).unwrap_or_default();
        begun["status"] = "in_progress".into();
        begun["output"] = Value::Array(Vec::new());
        begun["usage"] = Value::Null;
        let created = json!({
            "type": "response.created",
            "sequence_number": 0,
            "response": begun,
        });
        let items = items(&members).into_iter().enumerate();
        let done = items.map(|(index, item)| {
            let number = index + 1;
            format!(
                r#"{{"type":"response.output_item.done","sequence_number":{number},"output_index":{index},"item":{item}}}"#
            )
        });
        let mut events = vec![created.to_string()];
        events.extend(done);
        let number = events.len();
        events.push(format!(
            r#"{{"type":"response.{kind}","sequence_number":{number},"response":{response}}}"#
        ));
        for event in events {
            if let Some(failed) = self.event(&event) {
                self.end_failed(&failed);
            }
        }
    }

    /// Takes bytes of a stream.
    fn take(&mut self, data: &Bytes) {
        let AnswerPhase::Streaming(mut events) = mem::replace(&mut self.phase, AnswerPhase::Done)
        else {
            return;
        };
        let texts = events.push(data);
        let is_alive = texts.is_empty() && events.has_new_comment(data);
        let is_too_long = events.rest.len() > MAX_BODY;
        self.phase = AnswerPhase::Streaming(events);
        let mut failed = None;
        for text in texts {
            if matches!(self.phase, AnswerPhase::Done) {
                break;
            }
            // The library writes `response.failed` and `error` for one end: the caller gets one.
            failed = self.event(&text).or(failed);
        }
        if matches!(self.phase, AnswerPhase::Done) {
            return;
        }
        if let Some(failed) = failed {
            self.end_failed(&failed);
        } else if is_too_long {
            self.cut();
        } else if is_alive {
            self.push(KEEP_ALIVE);
        }
    }

    /// Takes an event; returns it if it is a `response.failed`.
    fn event(&mut self, text: &str) -> Option<String> {
        let Ok(members) = serde_json::from_str::<Members<'_>>(text) else {
            // `[DONE]`, or what no client of this transport could read.
            return None;
        };
        let number = members.get("sequence_number");
        if let Some(Ok(number)) = number.map(|number| number.get().parse::<u64>()) {
            self.sequence = number.saturating_add(1);
        }
        let kind = members.text("type").unwrap_or_default();
        match &*kind {
            "error" => {
                let event = serde_json::from_str::<Value>(text).unwrap_or_default();
                let rest = self.take_rest();
                self.fail(ErrorFrame::of_event(&event), rest);
                return None;
            }
            "response.failed" => return Some(text.to_owned()),
            "response.created" => self.begun(&members),
            "response.output_item.done" => {
                if let Some(item) = members.get("item") {
                    self.push_output(item.get());
                }
            }
            "response.completed" | "response.incomplete" => {
                let response = members.get("response").map_or("{}", RawValue::get);
                self.push(text);
                self.complete(response);
                return None;
            }
            _ => {}
        }
        self.push(text);
        None
    }

    fn begun(&mut self, event: &Members<'_>) {
        let response = event.get("response").map_or("{}", RawValue::get);
        let response = serde_json::from_str::<Members<'_>>(response).unwrap_or_default();
        if let Some(id) = response.text("id") {
            self.id = Some(id.clone().into_owned());
            self.steps.push_back(AnswerStep::Begun(id.into_owned()));
        }
    }

    /// Ends the response, as its caller asked: the upstream is dropped.
    fn end_interrupted(&mut self) {
        drop(self.take_rest());
        let id = self.id.take().unwrap_or_default();
        for event in interrupted(&id, self.sequence) {
            self.push(&event.to_string());
        }
        let kept = self.kept.take().map(|kept| Kept { id, ..kept });
        let rest = None;
        self.steps
            .push_back(AnswerStep::End(AnswerEnd { kept, rest }));
    }

    fn push_output(&mut self, item: &str) {
        self.has_output = true;
        if let Some(kept) = &mut self.kept {
            kept.push_output(item);
        }
    }

    fn complete(&mut self, response: &str) {
        let members = serde_json::from_str::<Members<'_>>(response).unwrap_or_default();
        if !self.has_output {
            for item in items(&members) {
                self.push_output(item.get());
            }
        }
        let id = members.text("id").filter(|id| !id.is_empty());
        let kept = self.kept.take().zip(id).map(|(kept, id)| Kept {
            id: id.into_owned(),
            ..kept
        });
        let rest = self.take_rest();
        self.steps
            .push_back(AnswerStep::End(AnswerEnd { kept, rest }));
    }

    fn end_failed(&mut self, event: &str) {
        self.push(event);
        let rest = self.take_rest();
        self.steps
            .push_back(AnswerStep::End(AnswerEnd { kept: None, rest }));
    }

    /// Ends an answer that broke off, or that cannot be read.
    fn cut(&mut self) {
        let message = "The upstream's answer was cut before its end (upstream_failed).";
        let status = StatusCode::BAD_GATEWAY;
        self.fail(
            ErrorFrame::new(status, "server_error", "upstream_failed", message),
            None,
        );
    }

    fn fail(&mut self, error: ErrorFrame, rest: Option<Body>) {
        self.phase = AnswerPhase::Done;
        let error = error.lane(self.lane.clone());
        self.steps.push_back(AnswerStep::Frame(error.into_text()));
        self.steps
            .push_back(AnswerStep::End(AnswerEnd { kept: None, rest }));
    }

    /// Ends the stream, and returns what is left of it.
    fn take_rest(&mut self) -> Option<Body> {
        match mem::replace(&mut self.phase, AnswerPhase::Done) {
            AnswerPhase::Streaming(events) => Some(events.body),
            _ => None,
        }
    }

    /// Sends an event, with the name of its lane.
    fn push(&mut self, event: &str) {
        let own = without_lane(event);
        let event = own.as_deref().unwrap_or(event).trim();
        let named = self.lane.as_deref().and_then(|lane| {
            let members = event.strip_prefix('{')?.trim_start();
            let comma = if members.starts_with('}') { "" } else { "," };
            // A name of a lane has no character that JSON escapes.
            Some(format!(r#"{{"stream_id":"{lane}"{comma}{members}"#))
        });
        let frame = named.unwrap_or_else(|| event.to_owned());
        self.steps.push_back(AnswerStep::Frame(frame));
    }
}

impl Events {
    fn poll_next(
        &mut self,
        interrupt: &mut Option<oneshot::Receiver<()>>,
        cx: &mut Context<'_>,
    ) -> Poll<NextFrame> {
        let interrupted = interrupt
            .as_mut()
            .map(|interrupt| Pin::new(interrupt).poll(cx));
        if let Some(Poll::Ready(interrupted)) = interrupted {
            *interrupt = None;
            if interrupted.is_ok() {
                return Poll::Ready(NextFrame::Interrupt);
            }
        }
        Pin::new(&mut self.body)
            .poll_frame(cx)
            .map(|frame| match frame {
                Some(Ok(frame)) => NextFrame::Frame(frame),
                Some(Err(_)) | None => NextFrame::Cut,
            })
    }

    /// Takes bytes of the stream, and returns the data of the events that they complete.
    fn push(&mut self, data: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(data);
        let mut ends = Vec::new();
        self.splitter.push(data, |event| ends.push(event.end));
        let texts = ends.into_iter().filter_map(|end| {
            let len = usize::try_from(end - self.at).unwrap_or(usize::MAX);
            let event = self.rest.split_to(len.min(self.rest.len()));
            self.at = end;
            data_of(&event)
        });
        texts.collect()
    }

    /// Whether these bytes, which complete no event, have a comment.
    fn has_new_comment(&self, data: &[u8]) -> bool {
        let mut lines = data.split(|byte| matches!(byte, b'\n' | b'\r'));
        self.splitter.comments() > 0 && lines.any(|line| line.starts_with(b":"))
    }
}

/// An event without a name of a lane, if its upstream gave it one: the caller has lanes of its own.
fn without_lane(event: &str) -> Option<String> {
    let members = event.contains("stream_id").then_some(event)?;
    let members = serde_json::from_str::<Members<'_>>(members).ok()?;
    members.get("stream_id")?;
    let mut rest = String::with_capacity(event.len());
    for (name, value) in &members.0 {
        if name != "stream_id" {
            push_member(&mut rest, name, value.get());
        }
    }
    Some(format!("{{{rest}}}"))
}

/// The data of an event: its `data` lines, joined by line feeds.
fn data_of(event: &[u8]) -> Option<String> {
    let lines = event.split(|byte| matches!(byte, b'\n' | b'\r'));
    let mut data = lines.filter_map(|line| {
        let value = line.strip_prefix(b"data:")?;
        Some(value.strip_prefix(b" ").unwrap_or(value))
    });
    let first = data.next()?;
    let mut text = String::from_utf8_lossy(first).into_owned();
    for line in data {
        text.push('\n');
        text.push_str(&String::from_utf8_lossy(line));
    }
    Some(text)
}

/// The items of a response's output.
fn items<'a>(response: &Members<'a>) -> Vec<&'a RawValue> {
    let output = response.get("output");
    let output = output.and_then(|output| serde_json::from_str(output.get()).ok());
    output.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt, future::ready};
    use http::HeaderValue;

    use super::*;

    async fn run(answer: Response, lane: Option<&str>) -> (Vec<Value>, Option<Kept>) {
        let input = Kept {
            items: r#"{"role":"user"}"#.to_owned(),
            ..Kept::default()
        };
        let (_never, interrupt) = oneshot::channel();
        let steps = steps(
            ready(answer),
            lane.map(str::to_owned),
            input,
            interrupt,
            None,
        );
        let steps: Vec<_> = steps.collect().await;
        let mut frames = Vec::new();
        let mut kept = None;
        for (index, step) in steps.iter().enumerate() {
            match step {
                AnswerStep::Begun(id) => assert_eq!(id, "resp_1"),
                AnswerStep::Frame(text) => frames.push(serde_json::from_str(text).unwrap()),
                AnswerStep::End(outcome) => {
                    assert_eq!(index, steps.len() - 1, "nothing follows the end");
                    kept.clone_from(&outcome.kept);
                }
            }
        }
        assert!(matches!(steps.last(), Some(AnswerStep::End(_))));
        (frames, kept)
    }

    fn stream_of(parts: &[&str]) -> Response {
        let parts: Vec<_> = parts
            .iter()
            .map(|part| Ok::<_, axum::Error>(Bytes::copy_from_slice(part.as_bytes())))
            .collect();
        let mut answer = Response::new(Body::from_stream(stream::iter(parts)));
        let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
        answer.headers_mut().insert(header::CONTENT_TYPE, kind);
        answer
    }

    fn kinds(frames: &[Value]) -> Vec<&str> {
        frames
            .iter()
            .map(|frame| frame["type"].as_str().unwrap())
            .collect()
    }

    #[tokio::test]
    async fn events_become_frames_wherever_the_bytes_are_cut() {
        let text = "event: response.created\r\ndata: {\"type\":\"response.created\"}\r\n\r\n\
                    : a comment\n\
                    data: {\"type\":\"response.output_item.done\",\ndata: \"item\":{\"id\":\"x\",\"type\":\"message\"}}\n\n\
                    data: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\"},\"stream_id\":\"theirs\"}\n\ndata: [DONE]\n\n";
        for size in [1, 2, 3, 7, 64, text.len()] {
            let parts: Vec<_> = text
                .as_bytes()
                .chunks(size)
                .map(|part| std::str::from_utf8(part).unwrap())
                .collect();
            let (frames, kept) = run(stream_of(&parts), Some("a")).await;
            let frames: Vec<_> = frames
                .into_iter()
                .filter(|it| it["type"] != "keepalive")
                .collect();
            let expected = [
                "response.created",
                "response.output_item.done",
                "response.completed",
            ];
            assert_eq!(kinds(&frames), expected, "{size}");
            assert!(frames.iter().all(|frame| frame["stream_id"] == "a"));
            let kept = kept.unwrap();
            assert_eq!(kept.id, "resp_1");
            assert_eq!(kept.items, r#"{"role":"user"},{"type":"message"}"#);
        }
    }

    #[tokio::test]
    async fn an_end_of_the_library_is_one_error_with_its_reason() {
        let end = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"id\":\"resp_1\",\"error\":{\"code\":\"step_timeout\"}}}\n\n\
                   event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"step_timeout\",\"code\":\"step_timeout\",\"message\":\"late\",\"param\":null,\"run_id\":\"r\"},\"code\":\"step_timeout\",\"message\":\"late\",\"param\":null,\"sequence_number\":7}\n\n";
        let (frames, kept) = run(stream_of(&[end]), None).await;
        assert_eq!(kinds(&frames), ["error"]);
        let error = &frames[0];
        // Codex repeats a 504, whatever its headers say.
        assert_eq!(error["status"], 400);
        assert_eq!(error["error"]["code"], "step_timeout");
        assert_eq!(error["sequence_number"], 7);
        for headers in [&error["headers"], &error["error"]["headers"]] {
            assert_eq!(headers["x-terminal-reason"], "step_timeout");
            assert_eq!(headers["x-should-retry"], "false");
            assert_eq!(headers["x-run-id"], "r");
        }
        assert_eq!(kept, None);
    }

    #[tokio::test]
    async fn an_upstreams_own_failure_passes() {
        let failed = "data: {\"type\":\"response.failed\",\"response\":{\"id\":\"resp_1\",\"error\":{\"code\":\"context_length_exceeded\"}}}\n\n";
        let (frames, kept) = run(stream_of(&[failed]), None).await;
        assert_eq!(kinds(&frames), ["response.failed"]);
        assert_eq!(kept, None);
    }

    #[tokio::test]
    async fn a_stream_without_its_end_is_an_error() {
        let (frames, kept) = run(
            stream_of(&["data: {\"type\":\"response.created\"}\n\n"]),
            None,
        )
        .await;
        assert_eq!(kinds(&frames), ["response.created", "error"]);
        assert_eq!(frames[1]["status"], 502);
        assert_eq!(kept, None);
    }

    #[tokio::test]
    async fn an_answer_of_failure_keeps_its_status_and_headers() {
        let body = r#"{"error":{"message":"slow down","type":"rate_limit_error","code":429,"param":null}}"#;
        let mut answer = Response::new(Body::from(body));
        *answer.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        for (name, value) in [
            ("retry-after", "7"),
            ("x-run-id", "r"),
            ("set-cookie", "no"),
        ] {
            answer
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
        let (frames, _) = run(answer, Some("b")).await;
        let error = &frames[0];
        assert_eq!(
            (&error["status"], &error["stream_id"]),
            (&429.into(), &"b".into())
        );
        assert_eq!(
            error["error"]["code"], "429",
            "a code that is no text would hide the error"
        );
        assert_eq!(error["error"]["message"], "slow down");
        let headers = serde_json::json!({ "retry-after": "7", "x-run-id": "r" });
        assert_eq!(error["headers"], headers);
    }

    #[tokio::test]
    async fn an_error_without_a_type_is_named_by_its_status() {
        for (status, kind) in [
            (400, "invalid_request_error"),
            (401, "authentication_error"),
            (500, "server_error"),
        ] {
            let mut answer = Response::new(Body::from(r#"{"error":{"message":"no"}}"#));
            *answer.status_mut() = StatusCode::from_u16(status).unwrap();
            let (frames, _) = run(answer, None).await;
            assert_eq!(frames[0]["error"]["type"], kind);
            assert_eq!(frames[0]["error"]["code"], kind);
        }
    }

    #[tokio::test]
    async fn an_answer_that_does_not_stream_is_told_in_events() {
        let body = r#"{"id":"resp_1","object":"response","status":"completed","output":[{"id":"m","type":"message","content":[]}]}"#;
        let (frames, kept) = run(Response::new(Body::from(body)), None).await;
        let expected = [
            "response.created",
            "response.output_item.done",
            "response.completed",
        ];
        assert_eq!(kinds(&frames), expected);
        let numbers: Vec<_> = frames.iter().map(|it| &it["sequence_number"]).collect();
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(frames[0]["response"]["status"], "in_progress");
        let kept = kept.unwrap();
        assert_eq!(
            kept.items,
            r#"{"role":"user"},{"type":"message","content":[]}"#
        );
    }

    #[tokio::test]
    async fn an_event_beyond_a_mebibyte_is_whole() {
        let long = "x".repeat(3 * 1024 * 1024);
        let event = format!(
            "data: {{\"type\":\"response.completed\",\"response\":{{\"id\":\"r\",\"output\":[{{\"type\":\"message\",\"text\":\"{long}\"}}]}}}}\n\n"
        );
        let (frames, kept) =
            run(stream_of(&[&event[..1_500_000], &event[1_500_000..]]), None).await;
        assert_eq!(
            frames[0]["response"]["output"][0]["text"]
                .as_str()
                .unwrap()
                .len(),
            long.len()
        );
        assert!(kept.unwrap().items.len() > long.len());
    }

    #[tokio::test]
    async fn an_interrupt_keeps_what_is_done() {
        let begun = "data: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\"}}\n\n\
                     data: {\"type\":\"response.output_item.done\",\"item\":{\"type\":\"message\"}}\n\n";
        let hangs = stream::pending::<Result<Bytes, axum::Error>>();
        let body = stream::iter([Ok(Bytes::from_static(begun.as_bytes()))]).chain(hangs);
        let mut answer = stream_of(&[]);
        *answer.body_mut() = Body::from_stream(body);
        let (interrupt, receiver) = oneshot::channel();
        let mut steps = Box::pin(steps(ready(answer), None, Kept::default(), receiver, None));
        let mut interrupt = Some(interrupt);
        let mut frames = Vec::new();
        let mut kept = None;
        while let Some(step) = steps.next().await {
            match step {
                AnswerStep::Begun(_) => {}
                AnswerStep::Frame(text) => {
                    frames.push(serde_json::from_str::<Value>(&text).unwrap());
                    if frames.len() == 2 {
                        interrupt.take().unwrap().send(()).unwrap();
                    }
                }
                AnswerStep::End(outcome) => kept = outcome.kept,
            }
        }
        let expected = [
            "response.created",
            "response.output_item.done",
            "response.interrupt.accepted",
            "response.incomplete",
        ];
        assert_eq!(kinds(&frames), expected);
        assert_eq!(
            frames[3]["response"]["incomplete_details"]["reason"],
            "interrupted"
        );
        let kept = kept.unwrap();
        assert_eq!(
            (&*kept.id, &*kept.items),
            ("resp_1", r#"{"type":"message"}"#)
        );
    }

    #[tokio::test]
    async fn a_comment_becomes_a_keep_alive() {
        let parts = [
            ": keep-alive\n",
            "data: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\"}}\n\n",
        ];
        let (frames, _) = run(stream_of(&parts), None).await;
        assert_eq!(kinds(&frames), ["keepalive", "response.completed"]);
    }
}
