//! A script as the future and the body of one call.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tower_agent::{BoxError, Run};

use super::{
    record::Record,
    script::{Script, Step},
};

/// The script of one call, as far as it was played.
#[derive(Debug)]
pub(super) struct Playback {
    script: Script,
    record: Record,
    run: Option<Run>,
    timer: Option<Pin<Box<Sleep>>>,
    over: bool,
}

impl Playback {
    pub(super) const fn new(script: Script, record: Record, run: Option<Run>) -> Self {
        Self {
            script,
            record,
            run,
            timer: None,
            over: false,
        }
    }

    pub(super) fn into_body(self) -> UpstreamBody {
        UpstreamBody { playback: self }
    }

    fn stop(&mut self) {
        self.script.steps.clear();
        self.over = true;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Step, BoxError>>> {
        self.record.count_poll();
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

impl Drop for Playback {
    fn drop(&mut self) {
        if !self.over {
            self.record.push_drop(self.run.as_ref());
        }
    }
}

/// The response future of an [`Upstream`](super::Upstream).
#[derive(Debug)]
pub(crate) struct UpstreamFuture {
    playback: Option<Playback>,
}

impl UpstreamFuture {
    pub(super) const fn new(playback: Playback) -> Self {
        Self {
            playback: Some(playback),
        }
    }
}

impl Future for UpstreamFuture {
    type Output = Result<Response<UpstreamBody>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let step = ready!(self.playback.as_mut().unwrap().poll(cx));
        let playback = self.playback.take().unwrap();
        Poll::Ready(match step {
            Some(Err(error)) => Err(error),
            None => Err("the script has no head".into()),
            Some(Ok(_)) => {
                let mut answer = Response::builder().status(playback.script.status);
                answer
                    .headers_mut()
                    .unwrap()
                    .extend(playback.script.headers.clone());
                Ok(answer.body(playback.into_body()).unwrap())
            }
        })
    }
}

/// The response body of an [`Upstream`](super::Upstream).
#[derive(Debug)]
pub(crate) struct UpstreamBody {
    playback: Playback,
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let step = ready!(self.playback.poll(cx));
        self.playback.record.count_frame();
        Poll::Ready(step.map(|step| {
            Ok(match step? {
                Step::Data(data) | Step::Flood(data) => {
                    let size = &mut self.playback.script.size;
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
        self.playback.script.knows_its_end && self.playback.script.steps.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        self.playback
            .script
            .size
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        // A script whose steps are done had nothing more to say.
        self.playback.over |= self.playback.script.steps.is_empty();
    }
}
