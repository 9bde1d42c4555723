//! The script of an upstream.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tower_agent::BoxError;

use super::{
    playback::{Playback, UpstreamBody},
    record::Record,
    wire::{DONE, ERROR, PRELUDE, TOKEN},
};

/// What an upstream does with one call, step by step.
///
/// The steps before the head are the response future, those after it the body. A script
/// that runs out ends the body.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(super) steps: VecDeque<Step>,
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) size: Option<u64>,
    pub(super) knows_its_end: bool,
}

/// One step of a [`Script`].
#[derive(Clone, Debug)]
pub(super) enum Step {
    Wait(Duration),
    Head,
    Data(Bytes),
    Trailers,
    Fail(&'static str),
    FailWith(fn() -> BoxError),
    Panic,
    Never,
    /// Data at every poll, without an end.
    Flood(Bytes),
}

impl Script {
    /// A head at once, with this content type.
    pub(crate) fn of(content_type: &'static str) -> Self {
        Self::before_head().head(content_type)
    }

    /// A head at once: a stream of events.
    pub(crate) fn sse() -> Self {
        Self::of("text/event-stream")
    }

    /// A head at once: a JSON body.
    pub(crate) fn json() -> Self {
        Self::of("application/json")
    }

    /// A head at once, without a content type.
    pub(crate) fn untyped() -> Self {
        Self::before_head().step(Step::Head)
    }

    /// No head yet: the steps that follow are those of the response future.
    pub(crate) fn before_head() -> Self {
        Self {
            steps: VecDeque::new(),
            status: StatusCode::OK,
            headers: HeaderMap::new(),
            size: None,
            knows_its_end: false,
        }
    }

    /// The head, with this content type.
    pub(crate) fn head(self, content_type: &'static str) -> Self {
        self.header("content-type", content_type).step(Step::Head)
    }

    /// The status of the head, 200 by default.
    pub(crate) fn status(mut self, status: u16) -> Self {
        self.status = StatusCode::from_u16(status).unwrap();
        self
    }

    /// A header of the head.
    pub(crate) fn header(mut self, name: &'static str, value: &'static str) -> Self {
        let name = HeaderName::from_static(name);
        self.headers.insert(name, HeaderValue::from_static(value));
        self
    }

    /// The exact `size_hint` of the body.
    pub(crate) fn size(mut self, bytes: u64) -> Self {
        self.size = Some(bytes);
        self
    }

    /// `is_end_stream` is true as soon as no step is left.
    pub(crate) fn knows_its_end(mut self) -> Self {
        self.knows_its_end = true;
        self
    }

    fn step(mut self, step: Step) -> Self {
        self.steps.push_back(step);
        self
    }

    /// Silence for so many seconds.
    pub(crate) fn wait(self, seconds: f64) -> Self {
        self.step(Step::Wait(Duration::from_secs_f64(seconds)))
    }

    /// One data frame.
    pub(crate) fn data(self, text: impl AsRef<[u8]>) -> Self {
        self.step(Step::Data(Bytes::copy_from_slice(text.as_ref())))
    }

    /// All steps so many seconds later.
    pub(crate) fn delayed(mut self, seconds: u64) -> Self {
        let wait = Step::Wait(Duration::from_secs(seconds));
        self.steps.push_front(wait);
        self
    }

    /// The same frame over and over, `gap` before each.
    pub(crate) fn repeat(self, times: usize, gap: f64, text: impl AsRef<[u8]>) -> Self {
        (0..times).fold(self, |script, _| script.wait(gap).data(text.as_ref()))
    }

    /// A trailers frame, `x-sum: 42`.
    pub(crate) fn trailers(self) -> Self {
        self.step(Step::Trailers)
    }

    /// `io::ErrorKind::ConnectionReset` with this message.
    pub(crate) fn fail(self, message: &'static str) -> Self {
        self.step(Step::Fail(message))
    }

    /// This error.
    pub(crate) fn fail_with(self, error: fn() -> BoxError) -> Self {
        self.step(Step::FailWith(error))
    }

    /// Panics when polled.
    pub(crate) fn panic(self) -> Self {
        self.step(Step::Panic)
    }

    /// Silence without an end.
    pub(crate) fn never(self) -> Self {
        self.step(Step::Never)
    }

    /// The same frame at every poll, without an end.
    pub(crate) fn flood(self, text: impl AsRef<[u8]>) -> Self {
        self.step(Step::Flood(Bytes::copy_from_slice(text.as_ref())))
    }

    /// The body alone, without a call.
    pub(crate) fn body(self) -> UpstreamBody {
        Playback::new(self, Record::default(), None).into_body()
    }
}

/// Answers of a shape that many tests use.
impl Script {
    /// A JSON answer of this status with this body.
    pub(crate) fn answer(status: u16, body: impl AsRef<[u8]>) -> Self {
        Self::json().status(status).data(body)
    }

    /// A JSON error that names its cause in `code`.
    pub(crate) fn error_code(status: u16, code: &str) -> Self {
        let body = format!(r#"{{"error":{{"message":"no","type":"x","code":"{code}"}}}}"#);
        Self::answer(status, body)
    }

    /// The 504 of another supervisor: its reason, for the run of this id.
    pub(crate) fn terminated(reason: &'static str, id: &str) -> Self {
        let id: &'static str = id.to_owned().leak();
        let answer = failure(504).header("x-terminal-reason", reason);
        answer.header("x-run-id", id)
    }
}

/// A JSON error that says no more than its status: the body is [`ERROR`].
pub(crate) fn failure(status: u16) -> Script {
    Script::answer(status, ERROR)
}

/// A chat stream that ends well: its bytes are [`healthy_text`].
pub(crate) fn healthy() -> Script {
    Script::sse().data(PRELUDE).data(TOKEN).data(DONE)
}

/// The bytes of [`healthy`].
pub(crate) fn healthy_text() -> String {
    [PRELUDE, TOKEN, DONE].concat()
}
