//! The body of a request, as the client takes it: of one type for all callers.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use tower_agent::{BoxError, ReplayBody};

/// A request's body, which can be sent again if it is in memory.
pub(crate) enum OutgoingBody {
    Replayable(ReplayBody),
    Once {
        inner: UnsyncBoxBody<Bytes, BoxError>,
        failure: BodyFailure,
    },
}

/// The place of the error by which a body failed.
///
/// HTTP/2 resets the stream for it, and keeps no more than the reset.
#[derive(Clone, Default)]
pub(crate) struct BodyFailure(Arc<Mutex<Option<BoxError>>>);

/// The error of a request whose body failed.
#[derive(Debug)]
pub(crate) struct RequestBodyError {
    /// `None` for the client, which drops the error.
    source: Option<BoxError>,
}

impl OutgoingBody {
    pub(crate) fn new<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        match ReplayBody::try_from_body(body) {
            Ok(body) => Self::Replayable(body),
            Err(body) if body.is_end_stream() => Self::Replayable(ReplayBody::default()),
            Err(body) => Self::Once {
                inner: body.map_err(Into::into).boxed_unsync(),
                failure: BodyFailure::default(),
            },
        }
    }

    /// The place of the body's error; `None` if the body cannot fail.
    pub(crate) fn failure(&self) -> Option<BodyFailure> {
        match self {
            Self::Replayable(_) => None,
            Self::Once { failure, .. } => Some(failure.clone()),
        }
    }
}

impl BodyFailure {
    /// Keeps the body's error, and returns one for the client.
    fn keep(&self, error: BoxError) -> BoxError {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        RequestBodyError { source: None }.into()
    }

    /// The call's error, if the body has failed.
    pub(crate) fn take(&self) -> Option<RequestBodyError> {
        let source = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        source.is_some().then_some(RequestBodyError { source })
    }
}

impl fmt::Display for RequestBodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request's body failed")
    }
}

impl Error for RequestBodyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
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
            Self::Once { inner, failure } => Pin::new(inner)
                .poll_frame(cx)
                .map_err(|error| failure.keep(error)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Replayable(body) => body.is_end_stream(),
            Self::Once { inner, .. } => inner.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Replayable(body) => body.size_hint(),
            Self::Once { inner, .. } => inner.size_hint(),
        }
    }
}
