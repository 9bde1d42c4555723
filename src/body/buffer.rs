//! Buffers a body up to a limit.

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

/// The most bytes reserved for the rest that a body announces after its second non-empty frame.
const MAX_RESERVE: usize = 1024 * 1024;

pin_project! {
    /// A body that is being buffered up to a limit, unless it is a [`ReplayBody`].
    ///
    /// A body over the limit is an error. A [`ReplayBody`] is returned unread, whatever its length.
    #[project = BufferingProj]
    #[derive(Debug)]
    pub(crate) enum Buffering<B> {
        Replay { body: ReplayBody },
        Reading {
            #[pin]
            body: Limited<B>,
            read: Collected,
        },
    }
}

/// The data of a body, as far as it has been read.
#[derive(Default)]
pub(crate) struct Collected {
    /// The first non-empty frame, uncopied; empty once a second non-empty frame has come.
    first: Bytes,
    /// The joined data of all frames; empty until the second non-empty frame. Unjoined, frames
    /// of one byte each would take thirty times the limit.
    whole: Vec<u8>,
}

impl<B: Body + 'static> Buffering<B> {
    /// Starts to buffer `body`. A [`ReplayBody`] has no limit, any other at most `limit` bytes.
    pub(crate) fn new(body: B, limit: usize) -> Self {
        match ReplayBody::try_from_body(body) {
            Ok(body) => Self::Replay { body },
            Err(body) => {
                // If a body announces more than the limit, it fails at its first byte instead
                // of after `limit` bytes.
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
    /// Polls for the buffered body, without its trailers.
    ///
    /// The error for a body over the limit is a [`LengthLimitError`]; any other read
    /// error becomes a [`RequestCut`].
    pub(crate) fn poll(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ReplayBody, BoxError>> {
        let (mut body, read) = match self.project() {
            BufferingProj::Replay { body } => return Poll::Ready(Ok(std::mem::take(body))),
            BufferingProj::Reading { body, read } => (body, read),
        };
        while let Some(frame) = ready!(body.as_mut().poll_frame(cx)) {
            if let Ok(data) = frame.map_err(read_error)?.into_data() {
                read.push(data, body.size_hint().lower());
            }
        }
        Poll::Ready(Ok(std::mem::take(read).finish()))
    }
}

impl Collected {
    fn push(&mut self, data: Bytes, announced: u64) {
        // An empty frame often ends a body, and must not cause a copy.
        if data.is_empty() {
            return;
        }
        if self.first.is_empty() && self.whole.is_empty() {
            self.first = data;
            return;
        }
        if self.whole.is_empty() {
            let first = std::mem::take(&mut self.first);
            let announced = usize::try_from(announced).unwrap_or(MAX_RESERVE);
            let following = data.len() + announced.min(MAX_RESERVE);
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

/// `Debug` shows the length of the data only: prompts must not appear in logs.
impl fmt::Debug for Collected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collected")
            .field("len", &(self.first.len() + self.whole.len()))
            .finish()
    }
}

/// Wraps a read error in [`RequestCut`], because the caller has aborted the upload.
///
/// An error that contains a [`LengthLimitError`] is returned unchanged.
fn read_error(error: BoxError) -> BoxError {
    if chain(&*error).any(|cause| cause.is::<LengthLimitError>()) {
        return error;
    }
    RequestCut::new(error).into()
}
