//! The frames that wait for the caller's next poll: mostly one.

use std::collections::VecDeque;

use bytes::Bytes;
use http_body::Frame;

/// A queue of frames, which allocates nothing while it has at most one frame of data.
#[derive(Debug)]
pub(super) struct FrameQueue {
    /// The first frame, unless that is in `rest`, too.
    first: Option<Bytes>,
    /// The frames behind the first; never empty.
    #[allow(
        clippy::box_collection,
        reason = "few streams have it, and each has the room for it"
    )]
    rest: Option<Box<VecDeque<Frame<Bytes>>>>,
}

impl FrameQueue {
    pub(super) const fn new() -> Self {
        Self {
            first: None,
            rest: None,
        }
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.first.is_none() && self.rest.is_none()
    }

    #[inline]
    pub(super) fn push(&mut self, data: Bytes) {
        if self.is_empty() {
            self.first = Some(data);
        } else {
            self.push_behind(Frame::data(data));
        }
    }

    pub(super) fn push_trailers(&mut self, trailers: Option<Frame<Bytes>>) {
        if let Some(trailers) = trailers {
            self.push_behind(trailers);
        }
    }

    #[cold]
    fn push_behind(&mut self, frame: Frame<Bytes>) {
        self.rest.get_or_insert_default().push_back(frame);
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Frame<Bytes>> {
        // Most polls find nothing, as there is one before each frame and one behind it.
        if self.is_empty() {
            return None;
        }
        match self.first.take() {
            Some(data) => Some(Frame::data(data)),
            None => self.pop_rest(),
        }
    }

    #[cold]
    fn pop_rest(&mut self) -> Option<Frame<Bytes>> {
        let rest = self.rest.as_mut()?;
        let frame = rest.pop_front();
        if rest.is_empty() {
            self.rest = None;
        }
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_in_the_order_in_which_they_went_in() {
        let mut queue = FrameQueue::new();
        for round in 0..3 {
            assert!(queue.is_empty() && queue.pop().is_none());
            for frame in ["a", "b", "c"].iter().take(round + 1) {
                queue.push(Bytes::from_static(frame.as_bytes()));
            }
            queue.push_trailers(Some(Frame::trailers(http::HeaderMap::new())));
            for frame in ["a", "b", "c"].iter().take(round + 1) {
                let next = queue.pop().and_then(|it| it.into_data().ok());
                assert_eq!(next.as_deref(), Some(frame.as_bytes()));
            }
            assert!(!queue.is_empty());
            assert!(queue.pop().is_some_and(|it| it.is_trailers()));
        }
        queue.push_trailers(None);
        assert!(queue.is_empty());
    }
}
