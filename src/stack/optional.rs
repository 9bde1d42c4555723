//! A layer that a stack may leave out.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use http_body_util::Either;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::error::BoxError;

/// What remains of a layer that is left out: a change of the answer's headers.
type Rest = fn(&mut HeaderMap);

/// A layer that [`AgentStack`](super::AgentStack) leaves out if its setting turns it off.
///
/// A call then passes to the inner service, and no frame of its answer passes a wrapper.
#[derive(Clone, Debug)]
pub struct Optional<L> {
    layer: Option<L>,
    rest: Rest,
}

impl<L> Optional<L> {
    pub(super) const fn new(layer: Option<L>, rest: Rest) -> Self {
        Self { layer, rest }
    }
}

impl<L, S> Layer<S> for Optional<L>
where
    L: Layer<S>,
{
    type Service = OptionalService<L::Service, S>;

    fn layer(&self, inner: S) -> Self::Service {
        let place = match &self.layer {
            Some(layer) => WrappedOrBare::Wrapped(layer.layer(inner)),
            None => WrappedOrBare::Bare(inner, self.rest),
        };
        OptionalService { place }
    }
}

/// The service of an [`Optional`] layer.
#[derive(Clone, Debug)]
pub struct OptionalService<W, S> {
    place: WrappedOrBare<W, S>,
}

/// The layer's service, or the inner one.
#[derive(Clone, Debug)]
enum WrappedOrBare<W, S> {
    Wrapped(W),
    Bare(S, Rest),
}

impl<W, S, Q, A, B> Service<Request<Q>> for OptionalService<W, S>
where
    W: Service<Request<Q>, Response = Response<A>, Error = BoxError>,
    S: Service<Request<Q>, Response = Response<B>, Error = BoxError>,
    A: Body<Data = Bytes>,
    B: Body<Data = Bytes>,
{
    type Response = Response<Either<A, B>>;
    type Error = BoxError;
    type Future = OptionalFuture<W::Future, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match &mut self.place {
            WrappedOrBare::Wrapped(service) => service.poll_ready(cx),
            WrappedOrBare::Bare(service, _) => service.poll_ready(cx),
        }
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let call = match &mut self.place {
            WrappedOrBare::Wrapped(service) => OptionalCall::Wrapped {
                future: service.call(request),
            },
            WrappedOrBare::Bare(service, rest) => OptionalCall::Bare {
                future: service.call(request),
                rest: *rest,
            },
        };
        OptionalFuture { call }
    }
}

pin_project! {
    /// The response future of [`OptionalService`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct OptionalFuture<W, F> {
        #[pin]
        call: OptionalCall<W, F>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = OptionalCallProj]
    enum OptionalCall<W, F> {
        Wrapped {
            #[pin]
            future: W,
        },
        Bare {
            #[pin]
            future: F,
            rest: Rest,
        },
    }
}

impl<W, F, A, B> Future for OptionalFuture<W, F>
where
    W: Future<Output = Result<Response<A>, BoxError>>,
    F: Future<Output = Result<Response<B>, BoxError>>,
{
    type Output = Result<Response<Either<A, B>>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match self.project().call.project() {
            OptionalCallProj::Wrapped { future } => {
                ready!(future.poll(cx)).map(|answer| answer.map(Either::Left))
            }
            OptionalCallProj::Bare { future, rest } => {
                let mut answer = ready!(future.poll(cx));
                if let Ok(answer) = &mut answer {
                    rest(answer.headers_mut());
                }
                answer.map(|answer| answer.map(Either::Right))
            }
        })
    }
}
