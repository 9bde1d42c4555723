//! The tokens of an answer that is no event stream, read at its end.

use bytes::Bytes;
use http::Response;

use super::marks::ResponseMarks;
use crate::{
    llm::{
        dialect::Usage,
        is_plain,
        stream::{estimated_tokens, generated_bytes},
    },
    run::{Run, TokenMeter},
};

/// The most bytes of an answer that are kept: as many as a layer that retries holds.
const MAX_BYTES: usize = 256 * 1024;

/// The count of an answer's tokens in its innermost layer.
#[derive(Debug)]
pub(super) struct WholeAnswer {
    frames: Vec<Bytes>,
    bytes: usize,
    meter: TokenMeter,
}

/// The mark of a response whose tokens a layer counts; layers further out do not count them.
#[derive(Clone, Copy, Debug)]
struct CountedAnswer;

impl WholeAnswer {
    /// Begins to count the tokens of an answer, or finds that a layer further in counts them.
    ///
    /// The outer result is `None` if no run counts its tokens, or if the answer is compressed.
    pub(super) fn of<B>(answer: &mut Response<B>, run: &Run) -> Option<Option<Box<Self>>> {
        let meter = run.token_meter()?;
        if !is_plain(answer.headers()) {
            return None;
        }
        let extensions = answer.extensions_mut();
        let is_counted = extensions.insert(CountedAnswer).is_some();
        // A layer further in has made this answer of a stream that was counted.
        let is_counted = is_counted || extensions.get::<ResponseMarks>().is_some();
        Some((!is_counted).then(|| {
            Box::new(Self {
                frames: Vec::new(),
                bytes: 0,
                meter,
            })
        }))
    }

    pub(super) fn push(&mut self, frame: &Bytes) {
        self.bytes += frame.len();
        if self.bytes <= MAX_BYTES {
            self.frames.push(frame.clone());
        } else {
            self.frames.clear();
        }
    }

    /// Counts the usage that the answer states, or its estimated tokens if it states none.
    pub(super) fn report(mut self, run: &Run) {
        let whole = self.frames.concat();
        let usage = Usage::of_answer(&whole);
        let text = usage.map_or_else(|| generated_bytes(&whole), |_| 0);
        run.report(usage, None);
        self.meter.set(usage, estimated_tokens(text));
    }
}
