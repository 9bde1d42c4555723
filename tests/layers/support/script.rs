//! An upstream that does what it is told.

use std::{
    collections::VecDeque,
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tower::Service;
use tower_agent::{BoxError, Run};

use super::Probe;

/// What an upstream does, in order. What comes before the head is the response
/// future, what comes after it the body. A script that runs out ends the body.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    steps: VecDeque<Step>,
    status: StatusCode,
    headers: HeaderMap,
    size: Option<u64>,
    knows_its_end: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Wait(Duration),
    Head,
    Data(Bytes),
    Trailers,
    Fail(&'static str),
    FailWith(fn() -> BoxError),
    Panic,
    Never,
    /// Data at every poll, for ever.
    Flood(Bytes),
}

impl Script {
    /// A head at once, with this content type.
    pub(crate) fn of(content_type: &'static str) -> Self {
        Self::before_head().head(content_type)
    }

    /// A stream of events.
    pub(crate) fn sse() -> Self {
        Self::of("text/event-stream")
    }

    /// An answer that is no stream of events.
    pub(crate) fn json() -> Self {
        Self::of("application/json")
    }

    /// Nothing yet.
    pub(crate) fn before_head() -> Self {
        Self {
            steps: VecDeque::new(),
            status: StatusCode::OK,
            headers: HeaderMap::new(),
            size: None,
            knows_its_end: false,
        }
    }

    pub(crate) fn head(self, content_type: &'static str) -> Self {
        self.header("content-type", content_type).step(Step::Head)
    }

    pub(crate) fn status(mut self, status: u16) -> Self {
        self.status = StatusCode::from_u16(status).unwrap();
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: &'static str) -> Self {
        let name = HeaderName::from_static(name);
        self.headers.insert(name, HeaderValue::from_static(value));
        self
    }

    /// The body says how long it is.
    pub(crate) fn size(mut self, bytes: u64) -> Self {
        self.size = Some(bytes);
        self
    }

    /// The body says that it has ended as soon as it has.
    pub(crate) fn knows_its_end(mut self) -> Self {
        self.knows_its_end = true;
        self
    }

    fn step(mut self, step: Step) -> Self {
        self.steps.push_back(step);
        self
    }

    pub(crate) fn wait(self, seconds: f64) -> Self {
        self.step(Step::Wait(Duration::from_secs_f64(seconds)))
    }

    pub(crate) fn data(self, text: impl AsRef<[u8]>) -> Self {
        self.step(Step::Data(Bytes::copy_from_slice(text.as_ref())))
    }

    /// The whole of it comes later.
    pub(crate) fn delayed(mut self, seconds: u64) -> Self {
        let wait = Step::Wait(Duration::from_secs(seconds));
        self.steps.push_front(wait);
        self
    }

    /// The same frame over and over, `gap` before each.
    pub(crate) fn repeat(self, times: usize, gap: f64, text: impl AsRef<[u8]>) -> Self {
        (0..times).fold(self, |script, _| script.wait(gap).data(text.as_ref()))
    }

    pub(crate) fn trailers(self) -> Self {
        self.step(Step::Trailers)
    }

    pub(crate) fn fail(self, message: &'static str) -> Self {
        self.step(Step::Fail(message))
    }

    pub(crate) fn fail_with(self, error: fn() -> BoxError) -> Self {
        self.step(Step::FailWith(error))
    }

    pub(crate) fn panic(self) -> Self {
        self.step(Step::Panic)
    }

    pub(crate) fn never(self) -> Self {
        self.step(Step::Never)
    }

    pub(crate) fn flood(self, text: impl AsRef<[u8]>) -> Self {
        self.step(Step::Flood(Bytes::copy_from_slice(text.as_ref())))
    }

    /// An upstream that does this for every call, and what watches it.
    pub(crate) fn upstream(self) -> (Upstream, Probe) {
        let probe = Probe::default();
        let upstream = Upstream {
            script: self,
            probe: probe.clone(),
        };
        (upstream, probe)
    }

    /// The same, watched by `probe` as others are.
    pub(crate) fn of_probe(self, probe: Probe) -> Upstream {
        Upstream {
            script: self,
            probe,
        }
    }

    /// The body alone.
    pub(crate) fn body(self) -> UpstreamBody {
        let (upstream, _) = self.upstream();
        upstream.play(None).into_body()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    script: Script,
    probe: Probe,
}

impl Upstream {
    fn play(&self, run: Option<Run>) -> Play {
        Play {
            script: self.script.clone(),
            probe: self.probe.clone(),
            run,
            timer: None,
            over: false,
        }
    }

    /// The same with a `poll_ready` that answers `ready`.
    pub(crate) fn readiness(self, ready: fn() -> Result<(), BoxError>) -> Unready {
        Unready { inner: self, ready }
    }
}

impl<B> Service<Request<B>> for Upstream {
    type Response = Response<UpstreamBody>;
    type Error = BoxError;
    type Future = UpstreamFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> UpstreamFuture {
        let run = request.extensions().get::<Run>().cloned();
        self.probe.called(run.as_ref());
        UpstreamFuture {
            play: Some(self.play(run)),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Unready {
    inner: Upstream,
    ready: fn() -> Result<(), BoxError>,
}

impl<B> Service<Request<B>> for Unready {
    type Response = Response<UpstreamBody>;
    type Error = BoxError;
    type Future = UpstreamFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready((self.ready)())
    }

    fn call(&mut self, request: Request<B>) -> UpstreamFuture {
        self.inner.call(request)
    }
}

/// A script that is being played.
#[derive(Debug)]
struct Play {
    script: Script,
    probe: Probe,
    run: Option<Run>,
    timer: Option<Pin<Box<Sleep>>>,
    over: bool,
}

impl Play {
    fn into_body(self) -> UpstreamBody {
        UpstreamBody { play: self }
    }

    fn stop(&mut self) {
        self.script.steps.clear();
        self.over = true;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Step, BoxError>>> {
        self.probe.polled();
        loop {
            let Some(step) = self.script.steps.front().cloned() else {
                self.over = true;
                return Poll::Ready(None);
            };
            match step {
                Step::Wait(span) => {
                    let until = Instant::now() + span;
                    let timer = self
                        .timer
                        .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
                    ready!(timer.as_mut().poll(cx));
                    self.timer = None;
                }
                Step::Never => return Poll::Pending,
                Step::Panic => panic!("as the script says"),
                Step::Flood(_) => return Poll::Ready(Some(Ok(step))),
                Step::Fail(message) => {
                    self.stop();
                    let error = io::Error::new(io::ErrorKind::ConnectionReset, message);
                    return Poll::Ready(Some(Err(error.into())));
                }
                Step::FailWith(error) => {
                    self.stop();
                    return Poll::Ready(Some(Err(error())));
                }
                Step::Head | Step::Data(_) | Step::Trailers => {
                    self.script.steps.pop_front();
                    return Poll::Ready(Some(Ok(step)));
                }
            }
            self.script.steps.pop_front();
        }
    }
}

impl Drop for Play {
    fn drop(&mut self) {
        if !self.over {
            self.probe.drop_of(self.run.as_ref());
        }
    }
}

#[derive(Debug)]
pub(crate) struct UpstreamFuture {
    play: Option<Play>,
}

impl Future for UpstreamFuture {
    type Output = Result<Response<UpstreamBody>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let step = ready!(self.play.as_mut().unwrap().poll(cx));
        let play = self.play.take().unwrap();
        Poll::Ready(match step {
            Some(Err(error)) => Err(error),
            None => Err("the script has no head".into()),
            Some(Ok(_)) => {
                let mut answer = Response::builder().status(play.script.status);
                answer
                    .headers_mut()
                    .unwrap()
                    .extend(play.script.headers.clone());
                Ok(answer.body(play.into_body()).unwrap())
            }
        })
    }
}

#[derive(Debug)]
pub(crate) struct UpstreamBody {
    play: Play,
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let step = ready!(self.play.poll(cx));
        self.play.probe.took();
        Poll::Ready(step.map(|step| {
            Ok(match step? {
                Step::Data(data) | Step::Flood(data) => {
                    let size = &mut self.play.script.size;
                    *size = size.map(|size| size - data.len() as u64);
                    Frame::data(data)
                }
                _ => {
                    let mut trailers = HeaderMap::new();
                    trailers.insert("x-sum", HeaderValue::from_static("42"));
                    Frame::trailers(trailers)
                }
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.play.script.knows_its_end && self.play.script.steps.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        self.play
            .script
            .size
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        // A script whose steps are done had nothing more to say.
        self.play.over |= self.play.script.steps.is_empty();
    }
}
