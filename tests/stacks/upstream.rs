//! The upstream of a plan.

use std::{
    collections::VecDeque,
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use tokio::time::Sleep;
use tower::Service;
use tower_agent::{BoxError, NodeKind, ReplayBody, Run};

use crate::tests::stacks::{
    plan::{Head, Plan},
    script::{self, Step, steps},
    trace::{Asked, Event, Given, Trace},
    visits::VISIT,
};

/// Where all calls of a plan arrive.
pub(crate) struct PlannedUpstream {
    plan: Plan,
    trace: Trace,
    timer: Option<Pin<Box<Sleep>>>,
}

impl PlannedUpstream {
    pub(crate) fn new(plan: &Plan, trace: &Trace) -> Self {
        Self {
            plan: plan.clone(),
            trace: trace.clone(),
            timer: None,
        }
    }
}

/// Whoever clones it has to ask anew whether it is ready.
impl Clone for PlannedUpstream {
    fn clone(&self) -> Self {
        Self::new(&self.plan, &self.trace)
    }
}

impl Service<Request<ReplayBody>> for PlannedUpstream {
    type Response = Response<Answer>;
    type Error = BoxError;
    type Future = Call;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let call = self.trace.calls();
        let busy = self.plan.behaviour(call).busy;
        if call > 0 && busy > 0 {
            let busy = Duration::from_secs(busy);
            let timer = self
                .timer
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(busy)));
            if timer.as_mut().poll(cx).is_pending() {
                self.trace.push(Event::Busy);
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReplayBody>) -> Call {
        self.timer = None;
        if self.trace.now() < Duration::from_secs(self.plan.heals) {
            let run = request.extensions().get::<Run>();
            let over = run.and_then(Run::terminal_reason);
            self.trace.push(Event::Refused(over));
            let (play, head) = (None, Response::builder());
            return Call { play, head };
        }
        let call = self.trace.calls();
        let mut play = Play {
            call: 0,
            steps: steps(&self.plan, call),
            timer: None,
            trace: self.trace.clone(),
            knows_its_end: self.plan.knows_its_end,
            has_ended: false,
        };
        if let Some(run) = request.extensions().get::<Run>() {
            let asked = asked(&self.plan, &self.trace, &request, run);
            play.call = self.trace.start(asked, run.clone());
            if let Some(visit) = request.headers().get(VISIT) {
                let visit = visit.to_str().unwrap().parse().unwrap();
                self.trace.push(Event::Visited(visit));
            }
        }
        let (status, again) = match self.plan.behaviour(call).head_is {
            Head::Status(status, again) => (status, again),
            Head::Broken => (200, None),
        };
        let content_type = if self.plan.sse && status == 200 {
            "text/event-stream"
        } else if self.plan.json {
            "application/json"
        } else {
            "text/plain"
        };
        let mut head = Response::builder()
            .status(status)
            .header("content-type", content_type);
        if let Some(again) = again {
            head = head.header("retry-after", again);
        }
        let play = Some(play);
        Call { play, head }
    }
}

fn asked(plan: &Plan, trace: &Trace, request: &Request<ReplayBody>, run: &Run) -> Asked {
    let mut body = request.body().clone();
    let mut sent = Vec::new();
    while !body.is_end_stream() {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut cx) else {
            break;
        };
        sent.extend(frame.into_data().unwrap());
    }
    let sent = String::from_utf8(sent).unwrap();
    let model = sent.split('"').nth(3).unwrap_or_default();
    let attempt = request.headers().get("x-attempt");
    let attempted = run.kind() == NodeKind::Attempt;
    Asked {
        model: model.to_owned(),
        intact: sent == script::ask(plan, model),
        attempt: attempt.map(|number| number.to_str().unwrap().parse().unwrap()),
        opened: trace.now()
            - if attempted {
                run.elapsed()
            } else {
                trace.now()
            },
        over: run.terminal_reason(),
    }
}

struct Play {
    call: usize,
    steps: VecDeque<Step>,
    timer: Option<Pin<Box<Sleep>>>,
    trace: Trace,
    knows_its_end: bool,
    has_ended: bool,
}

impl Play {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        loop {
            let ticks = match self.steps.front() {
                Some(Step::Wait(ticks)) => *ticks,
                Some(Step::Gives(given)) => {
                    self.trace.push(Event::Gave(self.call, *given));
                    self.steps.pop_front();
                    continue;
                }
                _ => break,
            };
            let timer = self
                .timer
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(Duration::from_secs(ticks))));
            if ticks > 0 && timer.as_mut().poll(cx).is_pending() {
                self.trace.push(Event::Pending(self.call));
                return Poll::Pending;
            }
            self.timer = None;
            self.steps.pop_front();
        }
        match self.steps.pop_front() {
            Some(Step::Never) => {
                self.steps.push_front(Step::Never);
                self.trace.push(Event::Pending(self.call));
                Poll::Pending
            }
            Some(step) => Poll::Ready(step),
            None => Poll::Ready(Step::End),
        }
    }

    /// Notes the end, at the first call of a body that knows it.
    fn ended(&mut self) {
        if !(self.knows_its_end && std::mem::replace(&mut self.has_ended, true)) {
            self.trace.push(Event::Ended(self.call, true));
        }
    }

    /// Whether nothing comes any more, and the body knows it.
    fn is_over(&self) -> bool {
        let over = |step: &Step| matches!(step, Step::Wait(0) | Step::End);
        self.knows_its_end && self.steps.iter().all(over)
    }
}

impl Drop for Play {
    fn drop(&mut self) {
        self.trace.push(Event::Dropped(self.call));
    }
}

pub(crate) struct Call {
    play: Option<Play>,
    head: http::response::Builder,
}

impl Future for Call {
    type Output = Result<Response<Answer>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(play) = &mut self.play else {
            return Poll::Ready(Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()));
        };
        let step = ready!(play.poll(cx));
        let mut play = self.play.take().unwrap();
        if let Step::Fail = step {
            play.trace.push(Event::Ended(play.call, false));
            return Poll::Ready(Err(reset()));
        }
        play.trace.push(Event::Gave(play.call, Given::Head));
        if play.is_over() {
            play.ended();
        }
        let head = std::mem::take(&mut self.head);
        Poll::Ready(Ok(head.body(Answer { play }).unwrap()))
    }
}

fn reset() -> BoxError {
    io::Error::new(io::ErrorKind::ConnectionReset, "reset").into()
}

pub(crate) struct Answer {
    play: Play,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let step = ready!(self.play.poll(cx));
        let play = &mut self.play;
        Poll::Ready(match step {
            Step::Data(text, given) => {
                play.trace.push(Event::Gave(play.call, given));
                play.trace.said(play.call, &text);
                if play.is_over() {
                    play.ended();
                }
                Some(Ok(Frame::data(Bytes::from(text))))
            }
            Step::Fail => {
                play.trace.push(Event::Ended(play.call, false));
                Some(Err(reset()))
            }
            _ => {
                play.ended();
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.play.is_over()
    }
}
