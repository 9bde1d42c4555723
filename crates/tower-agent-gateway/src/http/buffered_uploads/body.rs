use std::{
    mem,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use http_body_util::Limited;

use super::held_bytes::{BufferFull, Charge};
use crate::config::MAX_BODY;

/// The most bytes that are reserved at a time.
const MOST_RESERVED: usize = 1024 * 1024;

/// The least bytes that are reserved for a body without an announced length.
const LEAST_RESERVED: usize = 16 * 1024;

/// A body that counts its bytes, and yields them in one frame at its end.
///
/// Its readers need the whole, and a second copy of theirs would not be counted. A body beyond
/// [`MAX_BODY`] fails, and trailers are dropped.
pub(super) struct BufferedBody {
    body: Limited<Body>,
    read: Segments,
    charge: Charge,
    refused: Arc<OnceLock<BufferFull>>,
}

/// The bytes of a body so far.
///
/// They are reserved piece by piece: a body that announces much and sends little takes little, and
/// none is copied each time it grows.
#[derive(Debug, Default)]
struct Segments {
    /// The first frame, uncopied; empty once a second one has come.
    first: Bytes,
    following: Vec<Vec<u8>>,
    len: usize,
}

/// The bytes of a body, which count as long as a clone of them lives.
struct CountedBytes<T> {
    bytes: T,
    _charge: Charge,
}

impl BufferedBody {
    pub(super) fn new(body: Body, charge: Charge, refused: Arc<OnceLock<BufferFull>>) -> Self {
        Self {
            body: Limited::new(body, MAX_BODY),
            read: Segments::default(),
            charge,
            refused,
        }
    }

    fn push(&mut self, data: Bytes) -> Result<(), BufferFull> {
        if data.is_empty() {
            return Ok(());
        }
        if self.read.len == 0 {
            self.charge.grow(data.len())?;
            self.read.len = data.len();
            self.read.first = data;
            return Ok(());
        }
        let announced = http_body::Body::size_hint(&self.body).lower();
        let announced = usize::try_from(announced).unwrap_or_default();
        let first = mem::take(&mut self.read.first);
        if !first.is_empty() {
            self.read.len = 0;
            let following = match announced {
                0 => 0,
                announced => announced.saturating_add(data.len()),
            };
            self.read.append(&first, following, &mut self.charge)?;
            self.charge.shrink(first.len());
        }
        self.read.append(&data, announced, &mut self.charge)
    }

    /// The whole body, which takes its count along; empty for a body without bytes.
    fn finish(&mut self) -> Result<Bytes, BufferFull> {
        let read = mem::take(&mut self.read);
        if read.following.is_empty() {
            return Ok(counted(read.first, &mut self.charge));
        }
        let whole = read.joined();
        let whole = whole.ok_or_else(|| self.charge.out_of_memory())?;
        self.charge.shrink(self.charge.bytes() - whole.len());
        Ok(counted(whole, &mut self.charge))
    }

    /// Frees the bytes of a body that is refused.
    fn refuse(&mut self, full: BufferFull) -> axum::Error {
        self.read = Segments::default();
        drop(self.charge.take());
        // Only the first refusal has a meaning.
        let _ = self.refused.set(full);
        axum::Error::new(full)
    }
}

fn counted<T: AsRef<[u8]> + Send + 'static>(bytes: T, charge: &mut Charge) -> Bytes {
    Bytes::from_owner(CountedBytes {
        bytes,
        _charge: charge.take(),
    })
}

impl Segments {
    /// Copies `data`. At least `announced` more bytes will follow; with 0 that is unknown.
    fn append(
        &mut self,
        mut data: &[u8],
        announced: usize,
        charge: &mut Charge,
    ) -> Result<(), BufferFull> {
        while !data.is_empty() {
            let last = self.following.last_mut();
            let room = |segment: &Vec<u8>| segment.capacity() - segment.len();
            let Some(segment) = last.filter(|segment| room(segment) > 0) else {
                let needed = match announced {
                    0 => self.len.max(LEAST_RESERVED).max(data.len()),
                    announced => announced.saturating_add(data.len()),
                };
                let left = MAX_BODY.saturating_sub(self.len).max(1);
                let needed = needed.min(MOST_RESERVED).min(left);
                charge.grow(needed)?;
                let mut segment = Vec::new();
                let reserved = segment.try_reserve_exact(needed);
                reserved.map_err(|_| charge.out_of_memory())?;
                self.following.push(segment);
                continue;
            };
            let (fits, rest) = data.split_at(room(segment).min(data.len()));
            segment.extend_from_slice(fits);
            self.len += fits.len();
            data = rest;
        }
        Ok(())
    }

    /// The bytes in one piece. Each segment is freed once it is copied. `None` if the process has
    /// no memory left.
    fn joined(mut self) -> Option<Vec<u8>> {
        if self.following.len() == 1 {
            let mut only = self.following.swap_remove(0);
            only.shrink_to_fit();
            return Some(only);
        }
        let mut whole = Vec::new();
        whole.try_reserve_exact(self.len).ok()?;
        for segment in self.following {
            whole.extend_from_slice(&segment);
        }
        Some(whole)
    }
}

impl http_body::Body for BufferedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        while let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            let frame = frame.map_err(axum::Error::new)?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if let Err(full) = self.push(data) {
                return Poll::Ready(Some(Err(self.refuse(full))));
            }
            if http_body::Body::is_end_stream(&self.body) {
                break;
            }
        }
        if self.read.len == 0 {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(match self.finish() {
            Ok(whole) => Ok(Frame::data(whole)),
            Err(full) => Err(self.refuse(full)),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.read.len == 0 && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let read = self.read.len as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(read));
        }
        hint.set_lower(hint.lower().saturating_add(read));
        hint
    }
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for CountedBytes<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}
