//! The tokens of an answer that is no event stream.

use bytes::Bytes;
use http::{Extensions, Response};

use super::stream_marks::ResponseMarks;
use crate::{
    llm::{GeneratedText, estimated_tokens, is_plain},
    run::{Run, TokenMeter},
};

/// The count of an answer's tokens, from the frames that the layer returns.
///
/// Of several layers that count the tokens of answers, only the innermost has such a count.
#[derive(Debug)]
pub(super) struct UnaryTokens {
    read: GeneratedText,
    meter: TokenMeter,
}

/// The mark of a response with tokens that a layer counts; layers further out do not count them.
#[derive(Clone, Copy, Debug)]
struct CountedAnswer;

impl UnaryTokens {
    /// Begins to count the tokens of an answer, unless a layer further in counts them.
    ///
    /// The outer result is `None` if no run counts tokens, or if the answer is compressed. The
    /// inner result is `None` if a layer further in counts the tokens.
    pub(super) fn of<B>(answer: &mut Response<B>, run: &Run) -> Option<Option<Box<Self>>> {
        let meter = run.tokens().meter()?;
        is_plain(answer.headers()).then(|| Self::begin(answer.extensions_mut(), meter))
    }

    #[cold]
    fn begin(extensions: &mut Extensions, meter: TokenMeter) -> Option<Box<Self>> {
        let is_counted = extensions.insert(CountedAnswer).is_some();
        // A layer further in has made this answer from a stream with tokens that were counted.
        let is_counted = is_counted || extensions.get::<ResponseMarks>().is_some();
        let read = GeneratedText::default();
        (!is_counted).then(|| Box::new(Self { read, meter }))
    }

    #[cold]
    pub(super) fn push(&mut self, frame: &Bytes) {
        self.read.push(frame);
    }

    /// Counts the usage that the answer states, or the estimated tokens of its text if it states
    /// none for it.
    #[cold]
    pub(super) fn report(&mut self, run: &Run) {
        let usage = self.read.usage();
        let states = usage.is_some_and(|usage| usage.output_tokens > 0);
        let unstated = if states { 0 } else { self.read.bytes() };
        run.node().report(usage, None);
        self.meter.set(usage, estimated_tokens(unstated));
    }
}
