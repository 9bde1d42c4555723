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

/// The largest request body that is kept by default, in bytes.
pub(crate) const MAX_BODY: usize = 32 * 1024 * 1024;

/// A whole request body in memory, which can be sent again.
///
/// A clone shares the bytes and stands where the original stands, so a copy
/// for a later attempt is taken before the body is read. A layer that needs
/// the body again buffers any other body once, and takes this one as it is.
///
/// Reading it never waits and never fails. The length is known.
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
    // Empty only if nothing follows.
    first: Bytes,
    rest: Option<Arc<Segment>>,
}

/// What follows; shared by the clones, and never empty.
struct Segment {
    data: Bytes,
    rest: Option<Arc<Self>>,
}

impl ReplayBody {
    /// How many bytes are left.
    #[must_use]
    pub fn len(&self) -> usize {
        self.segments().map(Bytes::len).sum()
    }

    /// Whether no byte is left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// Takes a body that is one already; any other is given back.
    pub(crate) fn try_from_body<B: 'static>(mut body: B) -> Result<Self, B> {
        if let Some(body) = (&mut body as &mut dyn Any).downcast_mut::<Self>() {
            return Ok(std::mem::take(body));
        }
        Err(body)
    }

    /// The parts as one body, without a copy.
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

    /// All of it, if it is in one piece.
    pub(crate) const fn contiguous(&self) -> Option<&Bytes> {
        match self.rest {
            None => Some(&self.first),
            Some(_) => None,
        }
    }

    /// All of it; a copy unless it is in one piece.
    pub(crate) fn gathered(&self) -> Bytes {
        if let Some(whole) = self.contiguous() {
            return whole.clone();
        }
        let mut whole = Vec::with_capacity(self.len());
        self.segments()
            .for_each(|data| whole.extend_from_slice(data));
        whole.into()
    }

    fn segments(&self) -> impl Iterator<Item = &Bytes> {
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

/// The length only: a prompt is nobody's business in a log.
impl fmt::Debug for ReplayBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayBody")
            .field("len", &self.len())
            .finish()
    }
}
