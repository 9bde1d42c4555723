use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::Body;
use http_body_util::{LengthLimitError, Limited};
use pin_project_lite::pin_project;

use super::replay::ReplayBody;
use crate::error::{BoxError, RequestCut, chain};

/// As much as an announced length is trusted with memory before it arrives.
const ANNOUNCED: usize = 1024 * 1024;

pin_project! {
    /// Reads a body to its end, up to a limit; a [`ReplayBody`] is taken as it is.
    #[project = BufferingProj]
    #[derive(Debug)]
    pub(crate) enum Buffering<B> {
        Taken { body: ReplayBody },
        Reading {
            #[pin]
            body: Limited<B>,
            read: Collected,
        },
    }
}

/// What has been read.
#[derive(Default)]
pub(crate) struct Collected {
    /// Alone, it is the body: nothing is copied.
    first: Bytes,
    /// All of it, since a second frame came. Not a list of the frames: those
    /// of a byte each would take thirty times the limit.
    whole: Vec<u8>,
}

impl<B: Body + 'static> Buffering<B> {
    /// Holds at most `limit` bytes.
    pub(crate) fn new(body: B, limit: usize) -> Self {
        match ReplayBody::try_from_body(body) {
            Ok(body) => Self::Taken { body },
            Err(body) => {
                // Announced as too long, it fails with its first byte.
                let fits = body.size_hint().lower() <= limit as u64;
                Self::Reading {
                    body: Limited::new(body, if fits { limit } else { 0 }),
                    read: Collected::default(),
                }
            }
        }
    }
}

impl<B> Buffering<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    /// The body, without its trailers. A body over the limit is a
    /// [`LengthLimitError`]; another error is a [`RequestCut`].
    pub(crate) fn poll(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ReplayBody, BoxError>> {
        let (mut body, read) = match self.project() {
            BufferingProj::Taken { body } => return Poll::Ready(Ok(std::mem::take(body))),
            BufferingProj::Reading { body, read } => (body, read),
        };
        while let Some(frame) = ready!(body.as_mut().poll_frame(cx)) {
            if let Ok(data) = frame.map_err(unread)?.into_data() {
                read.push(data, body.size_hint().lower());
            }
        }
        Poll::Ready(Ok(std::mem::take(read).finish()))
    }
}

impl Collected {
    fn push(&mut self, data: Bytes, announced: u64) {
        // An empty one often ends a body, and is no second frame.
        if data.is_empty() {
            return;
        }
        if self.first.is_empty() && self.whole.is_empty() {
            self.first = data;
            return;
        }
        if self.whole.is_empty() {
            let first = std::mem::take(&mut self.first);
            let announced = usize::try_from(announced).unwrap_or(ANNOUNCED);
            let following = data.len() + announced.min(ANNOUNCED);
            self.whole.reserve_exact(first.len() + following);
            self.whole.extend_from_slice(&first);
        }
        self.whole.extend_from_slice(&data);
    }

    fn finish(mut self) -> ReplayBody {
        if self.whole.is_empty() {
            return self.first.into();
        }
        self.whole.shrink_to_fit();
        self.whole.into()
    }
}

/// The length only, as of [`ReplayBody`].
impl fmt::Debug for Collected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collected")
            .field("len", &(self.first.len() + self.whole.len()))
            .finish()
    }
}

/// Too large is the caller's fault; anything else means that it has left.
fn unread(error: BoxError) -> BoxError {
    if chain(&*error).any(|cause| cause.is::<LengthLimitError>()) {
        return error;
    }
    RequestCut::new(error).into()
}
