//! The beginning of a response body, held until a layer decides to deliver it.

use std::{
    collections::VecDeque,
    mem,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};

use crate::error::BoxError;

/// The number of frames after the first that a held prefix keeps uncopied, whatever their size.
///
/// Most held prefixes have fewer frames.
const FEW: usize = 8;

/// The size in bytes below which a further frame, beyond the [`FEW`], is copied and joined.
///
/// An uncopied frame of one byte costs fifty bytes, and keeps its whole read buffer alive.
const SMALL: usize = 1024;

/// The size in bytes at which the buffer of joined small frames becomes one frame.
///
/// Without a limit the buffer would grow, and be copied, again and again.
const JOINED: usize = 16 * 1024;

/// The first frames of a response body, held until a layer decides to deliver them.
#[derive(Debug, Default)]
pub(crate) struct HeldPrefix {
    // The first held frame. Most prefixes have no other frame, and so allocate nothing.
    first: Option<Bytes>,
    // The next frames. The queue frees its memory with its last frame, because a body lives much
    // longer than its prefix.
    rest: VecDeque<Bytes>,
    tail: Option<Box<Tail>>,
    bytes: usize,
}

/// The end of a held prefix, behind its uncopied frames. Few responses need a tail.
#[derive(Debug, Default)]
struct Tail {
    // The small frames that came after `rest`, joined into one buffer.
    small: BytesMut,
    trailers: Option<Frame<Bytes>>,
    error: Option<BoxError>,
    /// Whether the body has returned the one `Pending` that lets the server flush before
    /// the error.
    flushed: bool,
}

impl HeldPrefix {
    pub(crate) fn push(&mut self, frame: Frame<Bytes>) {
        match frame.into_data() {
            // Drop empty frames: their number has no limit.
            Ok(data) if data.is_empty() => {}
            Ok(data) => {
                self.bytes += data.len();
                if self.first.is_none() && self.rest.is_empty() {
                    self.first = Some(data);
                } else if data.len() < SMALL && self.rest.len() >= FEW {
                    let small = &mut self.tail.get_or_insert_default().small;
                    small.extend_from_slice(&data);
                    if small.len() >= JOINED {
                        self.join();
                    }
                } else {
                    self.join();
                    self.rest.push_back(data);
                }
            }
            Err(trailers) => self.tail.get_or_insert_default().trailers = Some(trailers),
        }
    }

    /// Moves the joined small frames into `rest` as one frame.
    fn join(&mut self) {
        if let Some(tail) = self.tail.as_mut().filter(|tail| !tail.small.is_empty()) {
            self.rest.push_back(mem::take(&mut tail.small).freeze());
        }
    }

    /// Stores the error of the body, which [`next`](Self::next) returns after all held frames.
    pub(crate) fn broke(&mut self, error: BoxError) {
        self.tail.get_or_insert_default().error = Some(error);
    }

    /// Whether the error of the body is held.
    pub(crate) fn has_error(&self) -> bool {
        self.tail.as_ref().is_some_and(|tail| tail.error.is_some())
    }

    /// Whether the caller has received all held data, and no held error is left.
    pub(crate) fn is_delivered(&self) -> bool {
        self.bytes == 0 && !self.has_error()
    }

    pub(crate) const fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        let is_nothing = |tail: &Tail| tail.trailers.is_none() && tail.error.is_none();
        self.bytes == 0 && self.tail.as_deref().is_none_or(is_nothing)
    }

    /// Joins all held data into one piece, which stays held, and returns a clone of it.
    pub(crate) fn whole(&mut self) -> Bytes {
        self.join();
        if !self.rest.is_empty() {
            let mut whole = BytesMut::with_capacity(self.bytes);
            for data in self.first.iter().chain(&self.rest) {
                whole.extend_from_slice(data);
            }
            self.rest = VecDeque::new();
            self.first = Some(whole.freeze());
        }
        self.first.clone().unwrap_or_default()
    }

    /// Iterates over the held bytes, in pieces.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        let frames = self.first.iter().chain(&self.rest).map(|data| &**data);
        frames.chain(self.tail.iter().map(|tail| &*tail.small))
    }

    /// Polls for the next held frame, or the error of the body; `Pending` once before that error.
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.wants_flush() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.next())
    }

    /// The size of the held data and of the `rest` of the body.
    ///
    /// With a held error there is no upper bound: with an exact length a server would stop polling
    /// before the error, and send the held bytes as a complete body.
    pub(crate) fn size_hint(&self, rest: &SizeHint) -> SizeHint {
        let held = self.bytes as u64;
        let mut hint = SizeHint::new();
        if self.has_error() {
            hint.set_lower(held);
            return hint;
        }
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(held));
        }
        hint.set_lower(rest.lower().saturating_add(held));
        hint
    }

    /// Returns `true` once, as soon as only the error of the body is left.
    ///
    /// On `true` the body returns `Pending` once: a server flushes its output on
    /// `Pending`, and an error before that would lose even the head.
    fn wants_flush(&mut self) -> bool {
        let Some(tail) = &mut self.tail else {
            return false;
        };
        let alone = self.bytes == 0 && tail.trailers.is_none() && tail.error.is_some();
        alone && !mem::replace(&mut tail.flushed, true)
    }

    /// Takes the next held frame; after all frames, takes the error of the body, if there is
    /// one.
    fn next(&mut self) -> Option<Result<Frame<Bytes>, BoxError>> {
        if self.first.is_none() && self.rest.is_empty() {
            self.join();
        }
        if let Some(data) = self.first.take().or_else(|| self.rest.pop_front()) {
            self.bytes -= data.len();
            if self.rest.is_empty() {
                self.rest = VecDeque::new();
            }
            return Some(Ok(Frame::data(data)));
        }
        let tail = self.tail.as_mut()?;
        let trailers = tail.trailers.take().map(Ok);
        trailers.or_else(|| tail.error.take().map(Err))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body::Frame;

    use super::{FEW, HeldPrefix, JOINED, SMALL};

    fn of(byte: u8, length: usize) -> Bytes {
        vec![byte; length].into()
    }

    /// Returns a prefix with `frames` behind as many frames as a prefix keeps uncopied.
    ///
    /// So the prefix joins each small frame in `frames`.
    fn held(frames: &[Bytes]) -> HeldPrefix {
        let mut held = HeldPrefix::default();
        let few = vec![of(b'{', 1); FEW + 1];
        for frame in few.iter().chain(frames) {
            held.push(Frame::data(frame.clone()));
        }
        held
    }

    fn read(held: &mut HeldPrefix) -> Vec<Bytes> {
        for _ in 0..=FEW {
            let frame = held.next().unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), "{");
        }
        let mut all = Vec::new();
        while let Some(frame) = held.next() {
            all.push(frame.unwrap().into_data().unwrap());
        }
        all
    }

    #[test]
    fn small_frames_are_joined_and_others_are_not_copied() {
        let large = of(b'l', SMALL);
        let frames = [
            of(b'a', 1),
            of(b'b', 1),
            of(b'c', SMALL - 1),
            large.clone(),
            large.clone(),
            of(b'd', 2),
            of(b'e', 3),
        ];
        let mut held = held(&frames);
        assert_eq!(held.len(), FEW + 1 + 3 * SMALL + 6);

        let read = read(&mut held);

        let lengths: Vec<_> = read.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [SMALL + 1, SMALL, SMALL, 5]);
        assert_eq!(read.concat(), frames.concat());
        for same in [&read[1], &read[2]] {
            assert_eq!(same.as_ptr(), large.as_ptr());
        }
        assert!(held.is_empty() && held.is_delivered());
    }

    #[test]
    fn what_is_joined_does_not_grow_without_end() {
        let frames = vec![of(b'a', 1); 3 * JOINED];
        let lengths = read(&mut held(&frames))
            .iter()
            .map(Bytes::len)
            .collect::<Vec<_>>();
        assert_eq!(lengths, [JOINED; 3]);
    }

    #[test]
    fn whole_and_chunks_are_those_of_all_frames() {
        for length in [1, SMALL, 2 * SMALL] {
            let frames = [of(b' ', length), of(b'}', FEW + 1)];
            let mut held = held(&frames);
            let chunks = held.chunks().collect::<Vec<_>>().concat();
            let whole = held.whole();
            assert_eq!(chunks, whole);
            assert_eq!(whole.len(), 2 * (FEW + 1) + length);
            assert!(whole.ends_with(&frames.concat()));
            held.push(Frame::data(of(b',', 1)));
            let chunks = held.chunks().collect::<Vec<_>>().concat();
            assert_eq!(chunks, [&*whole, b","].concat());
            assert_eq!(held.next().unwrap().unwrap().into_data().unwrap(), whole);
            assert_eq!(held.next().unwrap().unwrap().into_data().unwrap(), ",");
            assert!(held.is_empty() && held.is_delivered());
        }
    }

    #[test]
    fn what_is_joined_goes_before_trailers_and_the_error() {
        let mut held = held(&[of(b'a', 1), of(b'b', 1)]);
        held.push(Frame::trailers(http::HeaderMap::new()));
        held.broke("reset".into());
        for _ in 0..=FEW {
            assert!(held.next().unwrap().unwrap().is_data());
        }
        assert!(!held.is_empty());
        assert_eq!(held.next().unwrap().unwrap().into_data().unwrap(), "ab");
        assert!(held.next().unwrap().unwrap().is_trailers());
        assert!(held.wants_flush());
        assert!(held.next().unwrap().is_err());
        assert!(held.is_empty());
    }
}
