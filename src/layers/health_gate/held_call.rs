use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower_service::Service;

use super::{
    body::ProbedBody,
    gate::{Gate, Probing},
    silence::Silence,
};
use crate::{
    attempt::{ERROR_TIME, HeldBody, PeekedAnswer},
    body::ReplayBody,
    error::BoxError,
    lazy_sleep::LazySleep,
    llm::failure::{FailureClass, TransportError},
    run::{PauseGuard, Role, Run, TaskId, Terminated},
    supervise::Upload,
};

/// The number of waits ended by a healthy probe after which a failed call gives up.
///
/// A probe that succeeds each time does not detect the failure: the upstream is not restarting.
const MAX_HEALTHY_WAITS: u32 = 3;

pin_project! {
    /// The future of a call: buffers the request, sends it, and may wait and send it again.
    #[must_use = "futures do nothing unless polled"]
    pub struct HeldCall<S, Q, B>
    where
        S: Service<Request<ReplayBody>>,
    {
        #[pin]
        stage: HeldStage<S::Future, Q, B>,
        state: HeldState<S, B>,
    }
}

pin_project! {
    #[project = HeldStageProj]
    enum HeldStage<F, Q, B> {
        // The request body is being buffered.
        Upload {
            #[pin]
            upload: Upload<Q>,
        },
        Readying,
        Calling {
            #[pin]
            call: F,
        },
        // The body of a failed answer is being read, to classify the answer.
        Reading {
            answer: Option<Peeked<B>>,
            timer: LazySleep,
            since: Instant,
        },
        // The call waits for a healthy probe.
        Waiting {
            healthy: Probing<bool>,
            since: Instant,
            pause: PauseGuard,
        },
        Over,
    }
}

type Peeked<B> = Box<PeekedAnswer<ProbedBody<B>>>;

/// The state of a call that survives from one sending of its request to the next.
struct HeldState<S, B> {
    service: S,
    /// Whether `service` was polled ready, and was neither called nor replaced since.
    is_ready: bool,
    gate: Arc<Gate>,
    run: Run,
    /// The caller's request, kept while it may be sent again; `None` until its body is buffered.
    request: Option<Request<ReplayBody>>,
    /// Whether the request goes to the upstream that the gate watches.
    applies: bool,
    /// The total time waited so far, excluding the current wait.
    waited: Duration,
    /// The number of waits that a healthy probe ended.
    healthy_waits: u32,
    /// The failure for which the call waits, and which it returns if it gives up; `None` before the
    /// first failure, and once the request is sent again.
    last: Option<Result<Peeked<B>, BoxError>>,
    silence: Option<Silence>,
}

/// The next step of a call.
#[allow(
    clippy::large_enum_variant,
    reason = "made and taken apart at once, on the hot path"
)]
enum GateStep<B> {
    /// Send the request, once the service is ready.
    Call,
    /// Read the body of the answer to classify it.
    Read(Peeked<B>),
    /// Wait until a probe finds the upstream healthy.
    Wait,
    Done(Result<Response<ProbedBody<B>>, BoxError>),
}

impl<S, Q, B> HeldCall<S, Q, B>
where
    S: Service<Request<ReplayBody>>,
    Q: Body + 'static,
{
    /// Makes the future of one call; `service` has been polled ready.
    pub(super) fn new(service: S, gate: Arc<Gate>, run: Run, request: Request<Q>) -> Self {
        let applies = gate.settings.applies(&request);
        let after = gate.settings.watch_silence.filter(|_| applies);
        let silence = after.map(|after| Silence::new(Arc::clone(&gate), run.clone(), after));
        Self {
            stage: HeldStage::Upload {
                upload: Upload::new(request, gate.settings.max_body),
            },
            state: HeldState {
                service,
                is_ready: true,
                gate,
                run,
                request: None,
                applies,
                waited: Duration::ZERO,
                healthy_waits: 0,
                last: None,
                silence,
            },
        }
    }
}

impl<S, Q, B> Future for HeldCall<S, Q, B>
where
    S: Service<Request<ReplayBody>, Response = Response<B>, Error: Into<BoxError>> + Clone,
    Q: Body<Data = Bytes, Error: Into<BoxError>>,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Output = Result<Response<ProbedBody<B>>, BoxError>;

    /// # Panics
    ///
    /// Panics if it is polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let state = this.state;
        let task = TaskId::of(cx.waker());
        loop {
            let step = match this.stage.as_mut().project() {
                HeldStageProj::Upload { upload } => match upload.poll(&state.run, cx) {
                    Poll::Pending => {
                        state.yield_service();
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(request)) => {
                        state.request = Some(request);
                        if state.applies && state.gate.shared.is_closed() {
                            state.yield_service();
                            GateStep::Wait
                        } else {
                            GateStep::Call
                        }
                    }
                    Poll::Ready(Err(error)) => GateStep::Done(Err(error)),
                },
                HeldStageProj::Readying => {
                    let readiness = state.service.poll_ready(cx);
                    // Check the deadlines: the service may become ready in the instant of one.
                    match state.stopped(task) {
                        Some(done) => done,
                        None => match ready!(readiness) {
                            Ok(()) => {
                                state.is_ready = true;
                                GateStep::Call
                            }
                            Err(error) => state.broken(error.into(), task),
                        },
                    }
                }
                HeldStageProj::Calling { call } => match Role::isolated(|| call.poll(cx)) {
                    Poll::Pending => {
                        if let Some(silence) = &mut state.silence {
                            silence.poll(cx);
                        }
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(answer)) => {
                        let answer = answer.map(ProbedBody::new);
                        match state.applies && PeekedAnswer::is_failure(&answer) {
                            true => GateStep::Read(Box::new(PeekedAnswer::new(answer, false))),
                            false => state.pass_to_caller(answer),
                        }
                    }
                    Poll::Ready(Err(error)) => state.broken(error.into(), task),
                },
                HeldStageProj::Reading {
                    answer: slot,
                    timer,
                    since,
                } => {
                    let mut answer = slot.take().expect("an answer is read once");
                    if answer.poll(cx).is_pending() {
                        // If a deadline passes now, the layer that checks it would drop the held
                        // head, which tells a retry how long to wait.
                        let passed = state.run.node().has_passed(state.run.now(), task);
                        if !passed && timer.poll_at(*since + ERROR_TIME, cx).is_pending() {
                            *slot = Some(answer);
                            return Poll::Pending;
                        }
                    }
                    match answer.classify(&state.gate.settings.classifier) {
                        Some(failure) if failure.class == FailureClass::NotReady => {
                            state.failed(Ok(answer), task)
                        }
                        _ => state.pass_read_to_caller(*answer),
                    }
                }
                HeldStageProj::Waiting { healthy, since, .. } => {
                    let ended = healthy.as_mut().poll(cx);
                    match state.stopped(task) {
                        Some(done) => done,
                        None => state.waited(ready!(ended), since.elapsed()),
                    }
                }
                HeldStageProj::Over => panic!("polled after completion"),
            };
            match step {
                GateStep::Call => match state.call() {
                    Some(call) => this.stage.set(HeldStage::Calling { call }),
                    None => this.stage.set(HeldStage::Readying),
                },
                GateStep::Read(answer) => this.stage.set(HeldStage::Reading {
                    answer: Some(answer),
                    timer: LazySleep::new(),
                    since: Instant::now(),
                }),
                GateStep::Wait => {
                    // Drop the inner future before the wait: it may hold a permit that
                    // the next call needs.
                    this.stage.set(HeldStage::Over);
                    state.run.attempts().hold_request(true);
                    tracing::debug!(
                        target: "tower_agent",
                        run = %state.run.id(),
                        "waiting for the upstream"
                    );
                    this.stage.set(HeldStage::Waiting {
                        pause: state.run.pause(),
                        healthy: state.gate.wait(state.patience()),
                        since: Instant::now(),
                    });
                }
                GateStep::Done(answer) => {
                    this.stage.set(HeldStage::Over);
                    return Poll::Ready(answer);
                }
            }
        }
    }
}

impl<S, B> HeldState<S, B> {
    /// The rest of the time that the call may wait.
    fn patience(&self) -> Duration {
        let patience = self.gate.settings.patience.unwrap_or(Duration::MAX);
        patience.saturating_sub(self.waited)
    }

    /// Replaces a ready service by a clone that is not ready, to release reserved capacity.
    fn yield_service(&mut self)
    where
        S: Clone,
    {
        if mem::take(&mut self.is_ready) {
            self.service = self.service.clone();
        }
    }

    /// Sends the request; `None` if the service must be polled ready first.
    fn call(&mut self) -> Option<S::Future>
    where
        S: Service<Request<ReplayBody>>,
    {
        if !mem::take(&mut self.is_ready) {
            return None;
        }
        self.last = None;
        if let Some(silence) = &mut self.silence {
            // A wait at the gate is not silence of the upstream, so silence starts anew.
            silence.reset();
        }
        let request = match self.applies {
            true => self.request.clone(),
            // Such a call is never sent again.
            false => self.request.take(),
        };
        let request = request.expect("the request is there before it is sent");
        self.run.attempts().hold_request(false);
        Some(self.service.call(request))
    }

    /// The next step after an error.
    ///
    /// Only a refused connection to the watched upstream may lead to a wait; any other error fails
    /// the call.
    fn broken(&mut self, error: BoxError, task: TaskId) -> GateStep<B> {
        // A `Terminated` reports the end of a node, even if a refused connection is its source.
        let refused = TransportError::is_refused(&*error) && Terminated::find(&*error).is_none();
        if self.applies && refused {
            return self.failed(Err(error), task);
        }
        GateStep::Done(Err(error))
    }

    /// The next step after a failure that shows that the upstream is down: wait, or give up.
    fn failed(&mut self, failed: Result<Peeked<B>, BoxError>, task: TaskId) -> GateStep<B> {
        self.last = Some(failed);
        if let Some(done) = self.stopped(task) {
            return done;
        }
        if self.patience().is_zero() || self.healthy_waits >= MAX_HEALTHY_WAITS {
            return self.give_up();
        }
        GateStep::Wait
    }

    /// The next step after a wait of `time` at the gate: send the request, or give up.
    fn waited(&mut self, is_healthy: bool, time: Duration) -> GateStep<B> {
        self.waited += time;
        self.healthy_waits += u32::from(is_healthy);
        // Without a failure to return, the request was never sent: send it once.
        match is_healthy || self.last.is_none() {
            true => GateStep::Call,
            false => self.give_up(),
        }
    }

    /// The final step, if the node has ended or is closing; `None` otherwise.
    ///
    /// The deadlines are checked first. A closing node starts no new work: this call is not sent.
    fn stopped(&mut self, task: TaskId) -> Option<GateStep<B>> {
        let node = self.run.node();
        if node.check(self.run.now(), task).is_err() {
            let error = match self.last.take() {
                Some(Err(error)) => error,
                _ => self.run.to_terminated().into(),
            };
            return Some(GateStep::Done(Err(error)));
        }
        node.refuses_work().then(|| self.give_up())
    }

    /// The final step: returns the last failure; without one, a [`Terminated`].
    fn give_up(&mut self) -> GateStep<B> {
        match self.last.take() {
            Some(Ok(answer)) => self.pass_read_to_caller(*answer),
            Some(Err(error)) => GateStep::Done(Err(error)),
            None => GateStep::Done(Err(self.run.to_terminated().into())),
        }
    }

    fn pass_read_to_caller(&mut self, answer: PeekedAnswer<ProbedBody<B>>) -> GateStep<B> {
        let HeldBody { held, mut body, .. } = *answer.content;
        body.held = held;
        self.pass_to_caller(Response::from_parts(answer.parts, body))
    }

    fn pass_to_caller(&mut self, mut answer: Response<ProbedBody<B>>) -> GateStep<B> {
        // Drop the prompt: it is not needed while the answer streams.
        self.request = None;
        if let Some(silence) = &mut self.silence {
            silence.reset();
        }
        answer.body_mut().silence = self.silence.take();
        GateStep::Done(Ok(answer))
    }
}

impl<S, Q, B> fmt::Debug for HeldCall<S, Q, B>
where
    S: Service<Request<ReplayBody>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldCall")
            .field("run", &self.state.run)
            .finish_non_exhaustive()
    }
}
