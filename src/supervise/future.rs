use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;

use super::{
    body::SupervisedBody,
    claim::Claim,
    layer_hooks::{LayerHooks, LayerPart},
    layer_settings::LayerSettings,
    supervised_call::SupervisedCall,
};
use crate::{
    error::BoxError,
    run::{Role, TaskId},
};

pin_project! {
    /// The response future of a layer that acts on a node.
    ///
    /// # Errors
    ///
    /// The future returns a [`Terminated`](crate::Terminated) if the node ends before the
    /// response arrives; its source is the inner error, if there is one. While the node is live,
    /// the future returns the inner error, which a layer may wrap in its own. For a refused call
    /// the future returns the layer's own error.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct SupervisedFuture<F>
    {
        // `None` after the inner future was ready or was cut, and for a call that was not made.
        #[pin]
        inner: Option<F>,
        state: FutureState,
    }

    impl<F> PinnedDrop for SupervisedFuture<F>
    {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            if let FutureState::Node(supervised) = this.state {
                if this.inner.is_some() {
                    // Store the reason first, so that the inner future can read it when
                    // it drops.
                    supervised.settings.part.dropped(&supervised.run);
                    this.inner.set(None);
                }
                supervised.finish();
            }
        }
    }
}

#[derive(Debug)]
enum FutureState {
    Node(SupervisedCall),
    /// An inert layer: it returns the response unchanged.
    Nothing,
    /// The state of a call that the layer refuses. The future returns this error, and makes no
    /// call.
    Refused(BoxError),
    /// The future has returned `Ready`.
    Done,
}

impl<F> SupervisedFuture<F> {
    /// Supervises the call that `call` makes.
    ///
    /// If the node has already ended, the future makes no call, and its first poll returns a
    /// `Terminated` with the reason of that end.
    #[inline]
    pub(crate) fn new<B>(
        claim: Claim,
        settings: LayerSettings,
        request: Request<B>,
        call: impl FnOnce(Request<B>) -> F,
    ) -> Self {
        let mut future = Self {
            inner: None,
            state: FutureState::Node(SupervisedCall::new(claim, settings, &request)),
        };
        if matches!(&future.state, FutureState::Node(supervised) if !supervised.is_over()) {
            future.inner = Some(call(request));
        }
        future
    }

    /// Sets hooks for a call that was made; a call that was not made gets none.
    pub(crate) fn with_hooks(mut self, hooks: impl LayerHooks + 'static) -> Self {
        if let (Some(_), FutureState::Node(supervised)) = (&self.inner, &mut self.state) {
            supervised.settings.part = LayerPart::Hooks(Box::new(hooks));
        }
        self
    }

    /// Creates the future of an inert layer, which returns the response and its body unchanged.
    pub(crate) const fn inert(inner: F) -> Self {
        Self {
            inner: Some(inner),
            state: FutureState::Nothing,
        }
    }

    /// Creates the future of a refused call, which returns `error` without a node and
    /// without a call.
    pub(crate) const fn refused(error: BoxError) -> Self {
        Self {
            inner: None,
            state: FutureState::Refused(error),
        }
    }
}

impl<F, B, E> Future for SupervisedFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Output = Result<Response<SupervisedBody<B>>, BoxError>;

    /// # Panics
    ///
    /// The future panics if it is polled again after it was ready.
    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let (FutureState::Node(supervised), Some(inner)) =
            (&mut *this.state, this.inner.as_mut().as_pin_mut())
        {
            let role = Role::enter(cx.waker(), &supervised.run);
            if role.is_inner() || !supervised.is_over() {
                let mut polled = supervised.unwinding(|| inner.poll(cx));
                // By reference: an answer is large.
                if let Poll::Ready(Ok(answer)) = &mut polled {
                    if role.is_inner() || !supervised.is_cut() {
                        drop(role);
                        supervised.answered(answer);
                        this.inner.set(None);
                        return polled
                            .map_ok(|answer| this.state.hand_over(answer))
                            .map_err(Into::into);
                    }
                }
                match polled {
                    Poll::Ready(Ok(_)) => {}
                    Poll::Ready(Err(error)) => {
                        let task = TaskId::of(cx.waker());
                        drop(role);
                        this.inner.set(None);
                        return Poll::Ready(Err(this.state.failed(error.into(), task)));
                    }
                    Poll::Pending => {
                        ready!(supervised.pending(&role, cx));
                    }
                }
            }
            drop(role);
            this.inner.set(None);
            return Poll::Ready(Err(this.state.over()));
        }
        let Some(inner) = this.inner.as_mut().as_pin_mut() else {
            return Poll::Ready(Err(this.state.over()));
        };
        let answer = ready!(inner.poll(cx));
        this.inner.set(None);
        let answer = answer.map(|answer| answer.map(SupervisedBody::inert));
        Poll::Ready(answer.map_err(Into::into))
    }
}

impl FutureState {
    /// Moves the supervised call from the future into the body of the response.
    #[inline]
    fn hand_over<B: Body>(&mut self, answer: Response<B>) -> Response<SupervisedBody<B>> {
        let (parts, body) = answer.into_parts();
        let body = match std::mem::replace(self, Self::Done) {
            Self::Node(supervised) => SupervisedBody::new(body, supervised),
            _ => SupervisedBody::inert(body),
        };
        Response::from_parts(parts, body)
    }

    #[cold]
    fn failed(&mut self, error: BoxError, task: TaskId) -> BoxError {
        match std::mem::replace(self, Self::Done) {
            Self::Node(mut supervised) => supervised.failed(error, task),
            _ => error,
        }
    }

    #[cold]
    fn over(&mut self) -> BoxError {
        match std::mem::replace(self, Self::Done) {
            Self::Node(mut supervised) => supervised.over(),
            Self::Refused(error) => error,
            Self::Nothing | Self::Done => {
                panic!("polled after completion")
            }
        }
    }
}
