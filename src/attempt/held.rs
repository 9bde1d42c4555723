use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use http_body::Frame;

use crate::{BoxError, upstream::JsonEnds};

/// The beginning of an answer, which is handed on only once its attempt is
/// committed, or is the last.
#[derive(Debug, Default)]
pub(crate) struct Held {
    // Most answers are held for one frame, which needs no allocation.
    first: Option<Bytes>,
    rest: VecDeque<Bytes>,
    trailers: Option<Box<Frame<Bytes>>>,
    error: Option<BoxError>,
    /// What came before the error had its time to be sent.
    flushed: bool,
    bytes: usize,
}

impl Held {
    pub(crate) fn push(&mut self, frame: Frame<Bytes>) {
        match frame.into_data() {
            // Of nothing any number could be held.
            Ok(data) if data.is_empty() => {}
            Ok(data) => {
                self.bytes += data.len();
                if self.first.is_none() && self.rest.is_empty() {
                    self.first = Some(data);
                } else {
                    self.rest.push_back(data);
                }
            }
            Err(trailers) => self.trailers = Some(Box::new(trailers)),
        }
    }

    /// The body broke after what is held.
    pub(crate) fn broke(&mut self, error: BoxError) {
        self.error = Some(error);
    }

    pub(crate) const fn breaks(&self) -> bool {
        self.error.is_some()
    }

    /// Whether nothing is held that a reader could miss.
    pub(crate) const fn is_delivered(&self) -> bool {
        self.bytes == 0 && self.error.is_none()
    }

    pub(crate) const fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
            && self.rest.is_empty()
            && self.trailers.is_none()
            && self.error.is_none()
    }

    /// All that is held, in one piece, which it then stays.
    pub(crate) fn whole(&mut self) -> Bytes {
        if !self.rest.is_empty() {
            let mut whole = BytesMut::with_capacity(self.bytes);
            for data in self.first.iter().chain(&self.rest) {
                whole.extend_from_slice(data);
            }
            self.rest.clear();
            self.first = Some(whole.freeze());
        }
        self.first.clone().unwrap_or_default()
    }

    /// The ends of what is held.
    pub(crate) fn ends(&self) -> JsonEnds {
        let mut ends = JsonEnds::default();
        for data in self.first.iter().chain(&self.rest) {
            ends.push(data);
        }
        ends
    }

    /// Whether only the error is left, for the first time: a server sends what
    /// it has when a body has nothing to give, and an error before that loses
    /// even the head.
    pub(crate) fn wants_flush(&mut self) -> bool {
        let alone = self.bytes == 0 && self.trailers.is_none() && self.error.is_some();
        alone && !std::mem::replace(&mut self.flushed, true)
    }

    /// What comes next, as long as anything is held.
    pub(crate) fn next(&mut self) -> Option<Result<Frame<Bytes>, BoxError>> {
        if let Some(data) = self.first.take().or_else(|| self.rest.pop_front()) {
            self.bytes -= data.len();
            return Some(Ok(Frame::data(data)));
        }
        let trailers = self.trailers.take().map(|trailers| Ok(*trailers));
        trailers.or_else(|| self.error.take().map(Err))
    }
}
