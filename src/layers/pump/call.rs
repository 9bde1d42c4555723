//! The future and the body of a pumped call, which a caller and a waker share.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, MutexGuard},
    task::{Context, Poll, Wake, Waker, ready},
};

use bytes::Bytes;
use http::{Response, response::Parts};
use http_body::{Body, Frame, SizeHint};
use tokio::{runtime::Handle, task::yield_now};
use tracing::{Instrument, Span};

use super::{drain::Drain, work::PumpedWork};
use crate::{
    error::BoxError,
    lock::Lock,
    run::{PollScope, Run, TaskGuard, TaskId},
    supervise::TaskTimer,
};

/// The state that the reader of a call shares with a waker at the call's node.
///
/// The node calls the waker at its end, and a timer calls the waker at the node's earliest
/// deadline. The waker spawns a task, which drops the work if the node has ended: so the work is
/// dropped even if no reader polls. A call needs no task until the waker is called.
struct PumpSlot {
    run: Run,
    /// Whether a task may drain the work after the reader was dropped.
    drains: bool,
    runtime: Handle,
    span: Span,
    state: Lock<PumpState>,
}

/// The work, and the registrations of the waker.
#[derive(Default)]
struct PumpState {
    /// `None` after the work has ended or was dropped.
    work: Option<PumpedWork>,
    /// Whether the call was polled.
    begun: bool,
    /// Whether the waker is registered at the node, and at changes of its deadlines.
    watched: bool,
    timer: TaskTimer,
}

impl Wake for PumpSlot {
    fn wake(self: Arc<Self>) {
        let span = self.span.clone();
        let runtime = self.runtime.clone();
        drop(runtime.spawn(self.drop_if_ended().instrument(span)));
    }
}

impl PumpSlot {
    /// Drops the work if the node has ended, or if a deadline of it or of a node above has passed.
    ///
    /// Otherwise sets the timer to the next deadline, while the waker is registered.
    async fn drop_if_ended(self: Arc<Self>) {
        if !self.run.node().is_over() {
            // A frame that becomes ready at the instant of the deadline goes to a waiting reader
            // first.
            yield_now().await;
        }
        let ended = self.run.node().check(self.run.now(), TaskId::NONE).is_err();
        let mut state = self.state.lock();
        if !ended {
            if state.watched {
                self.arm(&mut state.timer);
            }
            return;
        }
        // Count this task under the lock: once the lock is released, the node may stop counting the
        // call, and must not settle before this task has dropped the work.
        let counted = state
            .work
            .is_some()
            .then(|| TaskGuard::new(self.run.clone()));
        drop(self.take(state).work);
        drop(counted);
    }

    /// Registers the waker for the end of the node, for its earliest deadline, and for changes that
    /// make this deadline earlier. Further uses of this method have no effect.
    fn watch(self: &Arc<Self>, watched: &mut bool, timer: &mut TaskTimer) {
        if !std::mem::replace(watched, true) {
            self.run.node().watch();
            self.arm(timer);
        }
    }

    fn arm(self: &Arc<Self>, timer: &mut TaskTimer) {
        let node = self.run.node();
        let waker = Waker::from(Arc::clone(self));
        let scope = PollScope::enter(&waker, &self.run);
        let deadline = node.next_deadline();
        let mut cx = Context::from_waker(&waker);
        timer.wait(&scope, &self.run, deadline, &mut cx);
        if node.next_deadline() != deadline {
            // The deadline may have changed before the waker was registered.
            waker.wake_by_ref();
        }
    }

    /// Takes the whole state out, and unregisters the waker.
    fn take(&self, mut state: MutexGuard<'_, PumpState>) -> PumpState {
        let mut taken = std::mem::take(&mut *state);
        drop(state);
        taken.timer.release(&self.run);
        if taken.watched {
            self.run.node().unwatch();
        }
        taken
    }
}

/// The future of a pumped call, which the caller polls for the head.
#[derive(Debug)]
pub struct PumpedCall(Option<PumpedBody>);

/// The body of a pumped call, which the caller polls.
pub struct PumpedBody(Arc<PumpSlot>);

impl PumpedCall {
    pub(super) fn new(work: PumpedWork, run: Run, drains: bool) -> Self {
        let state = PumpState {
            work: Some(work),
            ..PumpState::default()
        };
        Self(Some(PumpedBody(Arc::new(PumpSlot {
            run,
            drains,
            runtime: Handle::current(),
            span: Span::current(),
            state: Lock::new(state),
        }))))
    }
}

impl Future for PumpedCall {
    type Output = Result<Response<PumpedBody>, BoxError>;

    /// # Panics
    ///
    /// Panics if the future is polled again after it returned a response.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(reader) = &self.0 else {
            panic!("polled after completion")
        };
        let parts = ready!(reader.poll_head(cx))?;
        let body = self.0.take().map(|body| Response::from_parts(parts, body));
        Poll::Ready(body.ok_or_else(|| unreachable!("the reader was polled")))
    }
}

impl PumpedBody {
    /// Polls the call for its head, and stores the body instead of the call.
    fn poll_head(&self, cx: &mut Context<'_>) -> Poll<Result<Parts, BoxError>> {
        let shared = &self.0;
        let mut state = shared.state.lock();
        let PumpState {
            work,
            begun,
            watched,
            timer,
        } = &mut *state;
        let Some(PumpedWork::Call(call)) = work else {
            return Poll::Ready(Err(shared.run.to_terminated().into()));
        };
        *begun = true;
        let (head, body) = match call.as_mut().poll(cx) {
            Poll::Pending => {
                shared.watch(watched, timer);
                return Poll::Pending;
            }
            Poll::Ready(Ok(answer)) => {
                let (parts, body) = answer.into_parts();
                if !body.is_end_stream() {
                    shared.watch(watched, timer);
                }
                (Ok(parts), Some(PumpedWork::Body(body)))
            }
            Poll::Ready(Err(error)) => (Err(error), None),
        };
        let call = std::mem::replace(work, body);
        drop(state);
        drop(call);
        Poll::Ready(head)
    }
}

impl Body for PumpedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut state = self.0.state.lock();
        let Some(PumpedWork::Body(body)) = &mut state.work else {
            // The node ended after this poll had checked it, and the task of the waker has dropped
            // the work.
            return Poll::Ready(Some(Err(self.0.run.to_terminated().into())));
        };
        let polled = Pin::new(body).poll_frame(cx);
        if let Poll::Ready(None | Some(Err(_))) = polled {
            let ended = state.work.take();
            drop(state);
            drop(ended);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.0.state.lock().work {
            Some(PumpedWork::Body(body)) => body.is_end_stream(),
            _ => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0.state.lock().work {
            Some(PumpedWork::Body(body)) => body.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

impl Drop for PumpedBody {
    fn drop(&mut self) {
        let shared = &self.0;
        let PumpState { work, begun, .. } = shared.take(shared.state.lock());
        let node = shared.run.node();
        let reads_on = shared.drains && begun && node.is_draining() && !node.is_over();
        if let (true, Some(work)) = (reads_on, work) {
            let drain = Drain::new(work, shared.run.clone());
            let drain = drain.instrument(shared.span.clone());
            drop(shared.runtime.spawn(drain));
        }
    }
}

impl fmt::Debug for PumpedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PumpedBody")
            .field("run", &self.0.run)
            .finish_non_exhaustive()
    }
}
