use std::{
    any::Any,
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// The default limit for buffered request bodies, in bytes.
pub(crate) const MAX_BODY: usize = 32 * 1024 * 1024;

/// A whole request body in memory, which can be sent again.
///
/// A clone shares the bytes, and starts at the current read position of the original. So take
/// the clone for a later attempt before the body is read. A layer that must send a body again
/// buffers it into a `ReplayBody` once, and does not buffer a `ReplayBody` again.
///
/// Reading a `ReplayBody` never waits and never fails, and its length is exact.
///
/// ```
/// use tower_agent::ReplayBody;
///
/// let body = ReplayBody::from(r#"{"model":"small"}"#);
/// let again = body.clone();
/// assert_eq!(again.len(), 17);
/// ```
#[derive(Clone, Default)]
pub struct ReplayBody {
    // `first` is empty only if `rest` is `None`.
    first: Bytes,
    rest: Option<Arc<Segment>>,
}

/// A further part of the body, never empty, which the body's clones share.
struct Segment {
    data: Bytes,
    rest: Option<Arc<Self>>,
}

impl ReplayBody {
    /// The number of bytes of the body that are still to be read.
    #[must_use]
    pub fn len(&self) -> usize {
        self.segments().map(Bytes::len).sum()
    }

    /// Whether no byte of the body is left to read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// Downcasts a body that is a `ReplayBody` already, for the adapter of a client.
    ///
    /// # Errors
    ///
    /// Any other body is returned as it is.
    pub fn try_from_body<B: 'static>(mut body: B) -> Result<Self, B> {
        if let Some(body) = (&mut body as &mut dyn Any).downcast_mut::<Self>() {
            return Ok(std::mem::take(body));
        }
        Err(body)
    }

    /// Makes one body of three parts, some of which may be empty, without a copy.
    pub(crate) fn spliced(parts: [Bytes; 3]) -> Self {
        let mut body = Self::default();
        for data in parts.into_iter().rev().filter(|data| !data.is_empty()) {
            let next = std::mem::replace(&mut body.first, data);
            if !next.is_empty() {
                let rest = body.rest.take();
                body.rest = Some(Arc::new(Segment { data: next, rest }));
            }
        }
        body
    }

    /// Returns the unread bytes of the body, if they are one piece.
    pub(crate) const fn contiguous(&self) -> Option<&Bytes> {
        match self.rest {
            None => Some(&self.first),
            Some(_) => None,
        }
    }

    /// Returns the unread bytes of the body; copies them only to join several pieces.
    pub(crate) fn gathered(&self) -> Bytes {
        if let Some(whole) = self.contiguous() {
            return whole.clone();
        }
        let mut whole = Vec::with_capacity(self.len());
        self.segments()
            .for_each(|data| whole.extend_from_slice(data));
        whole.into()
    }

    /// Returns the unread bytes of the body; copies them only to join several pieces.
    pub(crate) fn into_gathered(self) -> Bytes {
        match self.rest {
            None => self.first,
            Some(_) => self.gathered(),
        }
    }

    /// The unread bytes of the body, in order.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Bytes> {
        let following =
            std::iter::successors(self.rest.as_deref(), |segment| segment.rest.as_deref());
        std::iter::once(&self.first).chain(following.map(|segment| &segment.data))
    }
}

impl Body for ReplayBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_empty() {
            return Poll::Ready(None);
        }
        let (next, rest) = match self.rest.take() {
            Some(segment) => (segment.data.clone(), segment.rest.clone()),
            None => (Bytes::new(), None),
        };
        self.rest = rest;
        let data = std::mem::replace(&mut self.first, next);
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len() as u64)
    }
}

impl From<Bytes> for ReplayBody {
    fn from(first: Bytes) -> Self {
        Self { first, rest: None }
    }
}

impl From<&'static str> for ReplayBody {
    fn from(text: &'static str) -> Self {
        Bytes::from(text).into()
    }
}

impl From<String> for ReplayBody {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<Vec<u8>> for ReplayBody {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

/// `Debug` shows the length of the body only: prompts must not appear in logs.
impl fmt::Debug for ReplayBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayBody")
            .field("len", &self.len())
            .finish()
    }
}
