//! Calls that a layer makes at once, or holds before it makes them.

use std::{
    fmt::{self, Debug},
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Extensions, Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower_service::Service;

use super::{body::SupervisedBody, future::SupervisedFuture};
use crate::{
    error::BoxError,
    lazy_sleep::LazySleep,
    run::{CallSlot, HeldBy, Run, RunPaused, TurnRefused},
};

/// The service of a layer that may hold a call.
///
/// `L` is the layer, or its shared settings. A held call is made by a clone of the inner service `S`,
/// so that it keeps no place of the service that was polled ready.
#[derive(Clone, Copy, Debug)]
pub struct HoldingService<S, L> {
    inner: S,
    layer: L,
}

/// A layer that decides for each request how its call is supervised, and may hold it.
pub trait HoldsCalls {
    /// Makes the inner call with `service`, and supervises it; or refuses or holds the call.
    fn supervise<S, B>(
        &self,
        request: Request<B>,
        service: &mut S,
    ) -> SupervisedFuture<HeldFuture<S, B>>
    where
        S: Service<Request<B>> + Clone;
}

impl<S, L> HoldingService<S, L> {
    pub(crate) const fn new(inner: S, layer: L) -> Self {
        Self { inner, layer }
    }
}

impl<S, L, ReqBody, ResBody> Service<Request<ReqBody>> for HoldingService<S, L>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>, Error: Into<BoxError>> + Clone,
    L: HoldsCalls,
    ResBody: Body<Data = Bytes, Error: Into<BoxError>>,
{
    type Response = Response<SupervisedBody<ResBody>>;
    type Error = BoxError;
    type Future = SupervisedFuture<HeldFuture<S, ReqBody>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        self.layer.supervise(request, &mut self.inner)
    }
}

/// What admits a held call.
pub(crate) trait AdmitsHeld: Debug + Send + Sync {
    /// Admits the call of the node `found`, if nothing holds it any more. `ticket` is its place. Pending
    /// while a store is asked.
    fn poll_admit(
        &mut self,
        found: &Run,
        extensions: &mut Extensions,
        ticket: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TurnRefused>>;

    /// Gives back what the call has taken, because it is refused or dropped.
    fn give_up(&mut self, _found: &Run, _extensions: &Extensions) {}
}

/// A request's extension: when the wait of the request for a paused run is over, in any layer.
#[derive(Clone, Copy)]
struct HeldUntil(Option<Instant>);

/// The part of a held call that does not depend on its service.
#[derive(Debug)]
struct HeldPlace {
    found: Run,
    held_by: HeldBy,
    ticket: u64,
    admits: Box<dyn AdmitsHeld>,
    waiter: Option<usize>,
    until: Option<Instant>,
    timer: LazySleep,
}

impl HeldPlace {
    fn poll_admitted(
        &mut self,
        extensions: &mut Extensions,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), BoxError>> {
        // The waker is registered before the check: else what lifts the pause between the two would not
        // wake the task.
        let run = self.found.nearest();
        run.register_waker(&mut self.waiter, cx.waker(), false);
        let admits = &mut self.admits;
        let hold = match ready!(admits.poll_admit(&self.found, extensions, self.ticket, cx)) {
            Ok(()) => return Poll::Ready(Ok(())),
            Err(TurnRefused::Ended(end)) => return Poll::Ready(Err(end.into())),
            Err(TurnRefused::Held(hold)) => hold,
        };
        self.found.stand_with_paused();
        if let Some(until) = self.until {
            ready!(self.timer.poll_at(until, cx));
            return Poll::Ready(Err(RunPaused::new(hold).into()));
        }
        Poll::Pending
    }

    fn leave(&mut self, extensions: &Extensions) {
        CallSlot::set_held(extensions, false);
        if let Some(key) = self.waiter.take() {
            self.found.nearest().deregister_waker(key);
        }
        self.found.leave_queue(self.held_by, self.ticket);
    }
}

/// A call that waits for its run to go on.
struct HeldCall<S, B> {
    service: S,
    /// The request, until the call is made.
    request: Option<Request<B>>,
    /// The place among the held calls; `None` once the call is admitted, and waits for the service.
    place: Option<HeldPlace>,
}

impl<S, B> HeldCall<S, B>
where
    S: Service<Request<B>, Error: Into<BoxError>>,
{
    fn poll_call(&mut self, cx: &mut Context<'_>) -> Poll<Result<S::Future, BoxError>> {
        if let (Some(place), Some(request)) = (&mut self.place, &mut self.request) {
            let extensions = request.extensions_mut();
            ready!(place.poll_admitted(extensions, cx))?;
            extensions.insert(HeldUntil(place.until));
            place.leave(extensions);
            self.place = None;
        }
        if let Err(error) = ready!(self.service.poll_ready(cx)) {
            return Poll::Ready(Err(error.into()));
        }
        let Some(request) = self.request.take() else {
            panic!("polled after completion")
        };
        Poll::Ready(Ok(self.service.call(request)))
    }
}

impl<S, B> Drop for HeldCall<S, B> {
    fn drop(&mut self) {
        if let (Some(mut place), Some(request)) = (self.place.take(), &self.request) {
            place.admits.give_up(&place.found, request.extensions());
            place.found.give_owners_turn_back();
            place.leave(request.extensions());
        }
    }
}

pin_project! {
    /// The inner future of a layer that may hold a call: the call, or the wait before it.
    ///
    /// # Cancel safety
    ///
    /// A held call that is dropped gives back its place, and what it had taken.
    #[must_use = "futures do nothing unless polled"]
    pub struct HeldFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        stage: Stage<S, B, S::Future>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<S, B, F> {
        Called { #[pin] future: F },
        Held { call: Box<HeldCall<S, B>> },
    }
}

impl<S, B> HeldFuture<S, B>
where
    S: Service<Request<B>>,
{
    /// The future of a call that was made at once.
    #[inline]
    pub(crate) const fn called(future: S::Future) -> Self {
        let stage = Stage::Called { future };
        Self { stage }
    }

    /// Holds the call of this request, for `wait` at most. `found` is its node.
    pub(crate) fn held(
        service: &S,
        request: Request<B>,
        found: Run,
        held_by: HeldBy,
        admits: impl AdmitsHeld + 'static,
        wait: Duration,
    ) -> Self
    where
        S: Clone,
    {
        let known = request.extensions().get::<HeldUntil>();
        let until = match known {
            Some(known) => known.0,
            None => Instant::now().checked_add(wait),
        };
        let ticket = found.queue_turn(held_by);
        CallSlot::set_held(request.extensions(), true);
        let place = HeldPlace {
            found,
            held_by,
            ticket,
            admits: Box::new(admits),
            waiter: None,
            until,
            timer: LazySleep::new(),
        };
        let call = Box::new(HeldCall {
            service: service.clone(),
            request: Some(request),
            place: Some(place),
        });
        Self {
            stage: Stage::Held { call },
        }
    }
}

impl<S, B, A> Future for HeldFuture<S, B>
where
    S: Service<Request<B>, Response = Response<A>, Error: Into<BoxError>>,
{
    type Output = Result<Response<A>, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            match stage.as_mut().project() {
                StageProj::Called { future } => return future.poll(cx).map_err(Into::into),
                StageProj::Held { call } => {
                    let future = ready!(call.poll_call(cx))?;
                    stage.set(Stage::Called { future });
                }
            }
        }
    }
}

impl<S, B> Debug for HeldFuture<S, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_held = matches!(self.stage, Stage::Held { .. });
        f.debug_struct("HeldFuture")
            .field("is_held", &is_held)
            .finish_non_exhaustive()
    }
}
