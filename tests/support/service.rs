//! A stack of layers as one type, whatever its layers.

use std::{
    fmt,
    future::Future,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use tower::{Service, ServiceExt, util::BoxCloneService};
use tower_agent::{BoxError, ReplayBody};

use super::{
    outcome::Outcome,
    request_body::{RequestBody, Upload},
};

/// The response body of a [`StackService`].
pub(crate) type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

/// A service with its types erased: what [`Stack::build`](super::Stack::build) gives.
///
/// It takes requests with each body that [`RequestBody`] is made from, and hands a
/// `ReplayBody` on as one. A layer around it names no types either:
/// `StackService::new(layer.layer(service))`.
#[derive(Clone)]
pub(crate) struct StackService(
    BoxCloneService<Request<RequestBody>, Response<ResponseBody>, BoxError>,
);

impl StackService {
    /// Erases the types of a service.
    pub(crate) fn new<S, B>(service: S) -> Self
    where
        S: Service<
                Request<ReplayBody>,
                Response = Response<B>,
                Error: Into<BoxError>,
                Future: Send + 'static,
            > + Service<
                Request<Upload>,
                Response = Response<B>,
                Error: Into<BoxError>,
                Future: Send + 'static,
            > + Clone
            + Send
            + 'static,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        Self(BoxCloneService::new(Erased(service)))
    }

    /// Makes one call, and reads its answer to the end.
    ///
    /// The call starts with the first poll. Dropping the future drops call and body.
    pub(crate) fn ask<B>(&self, request: Request<B>) -> BoxFuture<'static, Outcome>
    where
        RequestBody: From<B>,
        B: Send + 'static,
    {
        let service = self.clone();
        Box::pin(Outcome::of(service.oneshot(request)))
    }
}

impl<B> Service<Request<B>> for StackService
where
    RequestBody: From<B>,
{
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<ResponseBody>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.0.call(request.map(RequestBody::from))
    }
}

impl fmt::Debug for StackService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackService").finish_non_exhaustive()
    }
}

/// Calls a service with the body that there is.
#[derive(Clone)]
struct Erased<S>(S);

impl<S, B> Service<Request<RequestBody>> for Erased<S>
where
    S: Service<
            Request<ReplayBody>,
            Response = Response<B>,
            Error: Into<BoxError>,
            Future: Send + 'static,
        > + Service<
            Request<Upload>,
            Response = Response<B>,
            Error: Into<BoxError>,
            Future: Send + 'static,
        >,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<ResponseBody>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let ready = <S as Service<Request<ReplayBody>>>::poll_ready(&mut self.0, cx);
        ready.map_err(Into::into)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let (head, body) = request.into_parts();
        match body {
            RequestBody::Replay(body) => erased(self.0.call(Request::from_parts(head, body))),
            RequestBody::Upload(body) => erased(self.0.call(Request::from_parts(head, body))),
        }
    }
}

fn erased<F, B, E>(call: F) -> BoxFuture<'static, Result<Response<ResponseBody>, BoxError>>
where
    F: Future<Output = Result<Response<B>, E>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    E: Into<BoxError>,
{
    Box::pin(async move {
        let answer = call.await.map_err(Into::into)?;
        Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()))
    })
}
