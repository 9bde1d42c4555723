//! A response body that plays a script.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Sleep, sleep};

use super::behavior::Behavior;
use super::sse::EventSequence;
use super::stats::OpenRequest;

/// The delay between two deltas of a quick stream.
const GAP: Duration = Duration::from_millis(10);

/// The delay between two deltas of [`Behavior::Slow`].
const SLOW_GAP: Duration = Duration::from_secs(1);

/// The delay between two signs of life of [`Behavior::Ping`].
const PING_GAP: Duration = Duration::from_millis(500);

/// The number of deltas that a stream sends before it stalls or is cut.
const FIRST_DELTAS: usize = 3;

#[derive(Debug)]
enum ScriptStep {
    Wait(Duration),
    Send(Bytes),
}

#[derive(Debug)]
enum Ending {
    Clean,
    Reset,
    Silence,
    Repeat { every: Duration, frame: Bytes },
}

/// A response body that plays steps, and then its ending; dropped before the end, it counts as
/// released.
#[derive(Debug)]
pub(super) struct ScriptBody {
    steps: VecDeque<ScriptStep>,
    ending: Ending,
    sleep: Option<Pin<Box<Sleep>>>,
    open: OpenRequest,
}

impl ScriptBody {
    /// The stream of a model that behaves as `behavior`.
    pub(super) fn stream(behavior: Behavior, events: EventSequence, open: OpenRequest) -> Self {
        let gap = if behavior == Behavior::Slow {
            SLOW_GAP
        } else {
            GAP
        };
        let deltas = match behavior {
            Behavior::StallStream | Behavior::Cut => FIRST_DELTAS,
            Behavior::Ping => 0,
            _ => events.deltas.len(),
        };

        let mut steps: VecDeque<_> = events.prelude.into_iter().map(ScriptStep::Send).collect();
        if deltas > 0 {
            steps.extend(events.opening.into_iter().map(ScriptStep::Send));
        }
        for delta in events.deltas.into_iter().take(deltas) {
            steps.extend([ScriptStep::Wait(gap), ScriptStep::Send(delta)]);
        }
        let ending = match behavior {
            Behavior::StallStream => Ending::Silence,
            Behavior::Cut => Ending::Clean,
            Behavior::Ping => Ending::Repeat {
                every: PING_GAP,
                frame: events.ping,
            },
            _ => {
                steps.extend(events.closing.into_iter().map(ScriptStep::Send));
                Ending::Clean
            }
        };
        Self::new(steps, ending, open)
    }

    /// The unary answer of a model that behaves as `behavior`.
    pub(super) fn unary(behavior: Behavior, mut body: Bytes, open: OpenRequest) -> Self {
        let ending = match behavior {
            Behavior::Cut => Ending::Reset,
            Behavior::StallStream => Ending::Silence,
            // Some providers send blank lines before the JSON while the model works.
            Behavior::Ping => Ending::Repeat {
                every: PING_GAP,
                frame: Bytes::from_static(b"\n"),
            },
            _ => Ending::Clean,
        };
        let mut steps = VecDeque::new();
        match behavior {
            Behavior::Ping => {}
            _ if matches!(ending, Ending::Clean) => steps.push_back(ScriptStep::Send(body)),
            // The wait lets the server flush head and half before the end: an error in the same
            // write would swallow both.
            _ => steps.extend([
                ScriptStep::Send(body.split_to(body.len() / 2)),
                ScriptStep::Wait(GAP),
            ]),
        }
        Self::new(steps, ending, open)
    }

    /// The body marks `open` as complete at its end.
    fn new(steps: VecDeque<ScriptStep>, ending: Ending, open: OpenRequest) -> Self {
        Self {
            steps,
            ending,
            sleep: None,
            open,
        }
    }
}

impl Body for ScriptBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        loop {
            if let Some(timer) = &mut this.sleep {
                ready!(timer.as_mut().poll(cx));
                this.sleep = None;
            }
            match this.steps.pop_front() {
                Some(ScriptStep::Wait(delay)) => this.sleep = Some(Box::pin(sleep(delay))),
                Some(ScriptStep::Send(bytes)) => {
                    // The answer is marked as complete with the last frame, because a server need
                    // not poll again after it.
                    if this.is_end_stream() {
                        this.open.complete();
                    }
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                None => match &this.ending {
                    Ending::Clean => {
                        this.open.complete();
                        return Poll::Ready(None);
                    }
                    Ending::Reset => {
                        this.ending = Ending::Clean;
                        this.open.complete();
                        let cut = io::Error::new(
                            io::ErrorKind::ConnectionReset,
                            "the simulated model cut the answer",
                        );
                        return Poll::Ready(Some(Err(cut)));
                    }
                    // The task is never woken: only a drop ends a silent body.
                    Ending::Silence => return Poll::Pending,
                    Ending::Repeat { every, frame } => {
                        this.steps
                            .extend([ScriptStep::Wait(*every), ScriptStep::Send(frame.clone())]);
                    }
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.steps.is_empty() && matches!(self.ending, Ending::Clean)
    }
}
