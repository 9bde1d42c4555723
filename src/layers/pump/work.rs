//! The work of a pumped call, with boxed body and error.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::Response;
use http_body::Body;
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use pin_project_lite::pin_project;

use crate::error::BoxError;

/// The call before its head, and the body from then on.
pub(super) enum PumpedWork {
    Call(Pin<Box<dyn Future<Output = Result<Response<BoxedBody>, BoxError>> + Send>>),
    Body(BoxedBody),
}

type BoxedBody = UnsyncBoxBody<Bytes, BoxError>;

impl PumpedWork {
    pub(super) fn new<F, B, E>(call: F) -> Self
    where
        F: Future<Output = Result<Response<B>, E>> + Send + 'static,
        E: Into<BoxError>,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        Self::Call(Box::pin(BoxedAnswer { call }))
    }
}

pin_project! {
    /// A call with a boxed body and a boxed error.
    struct BoxedAnswer<F> {
        #[pin]
        call: F,
    }
}

impl<F, B, E> Future for BoxedAnswer<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Output = Result<Response<BoxedBody>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let boxed = |body: B| body.map_err(Into::into).boxed_unsync();
        let answer = self.project().call.poll(cx);
        answer.map(|answer| Ok(answer.map_err(Into::into)?.map(boxed)))
    }
}
