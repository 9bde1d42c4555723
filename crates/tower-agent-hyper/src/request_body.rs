//! The body of a request, as the client takes it: of one type for all callers.

use std::{
    any::Any,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use tower_agent::{BoxError, ReplayBody};

/// A request's body, which can be sent again if it is in memory.
pub(crate) enum OutgoingBody {
    Replayable(ReplayBody),
    Once(UnsyncBoxBody<Bytes, BoxError>),
}

impl OutgoingBody {
    pub(crate) fn new<B>(mut body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        if let Some(body) = (&mut body as &mut dyn Any).downcast_mut::<ReplayBody>() {
            return Self::Replayable(std::mem::take(body));
        }
        match body.is_end_stream() {
            true => Self::Replayable(ReplayBody::default()),
            false => Self::Once(body.map_err(Into::into).boxed_unsync()),
        }
    }
}

impl Body for OutgoingBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Replayable(body) => Pin::new(body)
                .poll_frame(cx)
                .map_err(|never| match never {}),
            Self::Once(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Replayable(body) => body.is_end_stream(),
            Self::Once(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Replayable(body) => body.size_hint(),
            Self::Once(body) => body.size_hint(),
        }
    }
}
