use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::policy::DropPolicy;
use crate::{
    error::BoxError,
    run::Scope,
    supervise::{Claim, SupervisedBody, SupervisedFuture},
};

/// The service of a [`ClientDisconnectLayer`](crate::layers::client_disconnect::ClientDisconnectLayer).
#[derive(Clone, Copy, Debug)]
pub struct ClientDisconnect<S> {
    inner: S,
    scope: Scope,
}

impl<S> ClientDisconnect<S> {
    pub(super) const fn new(inner: S, scope: Scope) -> Self {
        Self { inner, scope }
    }
}

/// The response future of [`ClientDisconnect`].
pub type ClientDisconnectFuture<F> = SupervisedFuture<F, DropPolicy>;

/// The response body of [`ClientDisconnect`].
pub type ClientDisconnectBody<B> = SupervisedBody<B, DropPolicy>;

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for ClientDisconnect<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    S::Error: Into<BoxError>,
    ResBody: Body<Data = Bytes>,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<ClientDisconnectBody<ResBody>>;
    type Error = BoxError;
    type Future = ClientDisconnectFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        let entry = Claim::of(&mut request);
        let policy = DropPolicy::new(self.scope);
        SupervisedFuture::new(entry, policy, request, |request| self.inner.call(request))
    }
}
