//! The tokens of an answer that is no event stream, read at its end.

use bytes::Bytes;

use super::observer::Observer;
use crate::llm::{
    dialect::Usage,
    stream::{estimated_tokens, generated_bytes},
};

/// The most bytes of an answer that are kept: as many as a layer that retries holds.
const MAX_BYTES: usize = 256 * 1024;

/// The frames of an answer, kept so that its usage can be read at its end.
#[derive(Debug, Default)]
pub(crate) struct WholeAnswer {
    frames: Vec<Bytes>,
    bytes: usize,
    /// Whether a model wrote the answer, so that its length gives an estimate of its tokens.
    is_generated: bool,
}

impl WholeAnswer {
    /// Begins an answer, which a model writes if `is_generated`.
    pub(crate) fn new(is_generated: bool) -> Self {
        Self {
            is_generated,
            ..Self::default()
        }
    }

    /// Keeps a frame, unless the answer is a failure or is not to be counted.
    pub(crate) fn push(&mut self, frame: &Bytes, observer: Option<&Observer>) {
        let is_left_out = |it: &Observer| it.is_failed() || !it.counts();
        if observer.is_some_and(is_left_out) {
            return;
        }
        self.bytes += frame.len();
        if self.bytes <= MAX_BYTES {
            self.frames.push(frame.clone());
        } else {
            self.frames.clear();
        }
    }

    /// The usage that the answer states, and its estimated tokens if it states none. `None` for an
    /// answer without either.
    pub(crate) fn tokens(self) -> Option<(Option<Usage>, u64)> {
        let whole = self.frames.concat();
        let usage = Usage::of_answer(&whole);
        let text = match usage {
            Some(_) => 0,
            None if !self.is_generated => 0,
            None if self.bytes > MAX_BYTES => self.bytes as u64,
            None => generated_bytes(&whole),
        };
        let estimated = estimated_tokens(text);
        (usage.is_some() || estimated > 0).then_some((usage, estimated))
    }
}
