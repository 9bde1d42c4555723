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
use tower_agent::{BoxError, Run};

use crate::{
    plan::{Ending, Plan, What},
    trace::{Event, Trace},
};

pub(crate) const DONE: &str = "data: [DONE]\n\n";
const TOKEN: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
const PRELUDE: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
const FINISH: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Head,
    Data(&'static str),
    End,
    Fail,
    Never,
}

fn steps(plan: &Plan) -> VecDeque<Step> {
    let mut steps = VecDeque::from([Step::Wait(plan.head), Step::Head]);
    for piece in &plan.frames {
        steps.push_back(Step::Wait(piece.after));
        steps.push_back(Step::Data(text(piece.what)));
    }
    steps.push_back(Step::Wait(plan.last));
    steps.extend(match plan.ending {
        Ending::Done => vec![Step::Data(DONE), Step::End],
        Ending::DoneAndSilence => vec![Step::Data(DONE), Step::Never],
        Ending::Finish => vec![Step::Data(FINISH), Step::End],
        Ending::Cut => vec![Step::End],
        Ending::Fail => vec![Step::Fail],
        Ending::Never => vec![Step::Never],
    });
    steps
}

const fn text(what: What) -> &'static str {
    match what {
        What::Token => TOKEN,
        What::Ping => ": ping\n\n",
        What::Prelude => PRELUDE,
        What::Half => "data: {\"choices\":[{",
    }
}

/// Everything that the upstream would give if nobody stopped it.
pub(crate) fn all(plan: &Plan) -> String {
    let texts = steps(plan).into_iter().filter_map(|step| match step {
        Step::Data(text) => Some(text),
        _ => None,
    });
    texts.collect()
}

pub(crate) fn call(plan: &Plan, trace: &Trace, request: &Request<()>) -> Call {
    if let Some(run) = request.extensions().get::<Run>() {
        trace.know(run.clone());
    }
    trace.push(Event::Called);
    let content_type = if plan.sse {
        "text/event-stream"
    } else {
        "application/json"
    };
    Call {
        play: Some(Play {
            steps: steps(plan),
            timer: None,
            trace: trace.clone(),
        }),
        content_type,
    }
}

struct Play {
    steps: VecDeque<Step>,
    timer: Option<Pin<Box<Sleep>>>,
    trace: Trace,
}

impl Play {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        while let Some(&Step::Wait(ticks)) = self.steps.front() {
            let timer = self
                .timer
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(Duration::from_secs(ticks))));
            if ticks > 0 && timer.as_mut().poll(cx).is_pending() {
                self.trace.push(Event::Pending);
                return Poll::Pending;
            }
            self.timer = None;
            self.steps.pop_front();
        }
        match self.steps.pop_front() {
            Some(Step::Never) => {
                self.steps.push_front(Step::Never);
                self.trace.push(Event::Pending);
                Poll::Pending
            }
            Some(step) => Poll::Ready(step),
            None => Poll::Ready(Step::End),
        }
    }
}

impl Drop for Play {
    fn drop(&mut self) {
        self.trace.push(Event::Dropped);
    }
}

pub(crate) struct Call {
    play: Option<Play>,
    content_type: &'static str,
}

impl Future for Call {
    type Output = Result<Response<Answer>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let _ = ready!(self.play.as_mut().unwrap().poll(cx));
        let play = self.play.take().unwrap();
        play.trace.push(Event::Gave(0));
        let answer = Response::builder().header("content-type", self.content_type);
        Poll::Ready(Ok(answer.body(Answer { play }).unwrap()))
    }
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
        let trace = &self.play.trace;
        Poll::Ready(match step {
            Step::Data(text) => {
                trace.push(Event::Gave(text.len()));
                Some(Ok(Frame::data(Bytes::from_static(text.as_bytes()))))
            }
            Step::Fail => {
                trace.push(Event::Ended(false));
                let error = io::Error::new(io::ErrorKind::ConnectionReset, "reset");
                Some(Err(error.into()))
            }
            _ => {
                trace.push(Event::Ended(true));
                None
            }
        })
    }
}
