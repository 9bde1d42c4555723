//! The tokens of an answer that is not an event stream.

use bytes::Bytes;
use http::{Extensions, Response};

use super::stream_marks::ResponseMarks;
use crate::{
    llm::{GeneratedText, WholeAnswer, dialect::Usage, estimated_tokens, is_plain},
    run::{Run, TokenMeter},
};

/// The longest first frame that is kept until it is known whether another one follows, in bytes.
const MAX_SOLE: usize = 64 * 1024;

/// The count of an answer's tokens, from the frames that the layer returns.
///
/// Of several layers that count the tokens of answers, only the innermost has such a count.
#[derive(Debug)]
pub(super) struct UnaryTokens {
    /// The only frame so far. Most answers have one frame, which states their usage: then their text
    /// is not counted.
    sole: Bytes,
    /// Whether `text` has read frames.
    reads: bool,
    text: GeneratedText,
    /// The usage of the whole answer, if a walk has found it.
    stated: Option<Usage>,
    meter: TokenMeter,
}

/// The mark of a response with tokens that a layer counts; outer layers do not count them.
#[derive(Clone, Copy, Debug)]
struct CountedAnswer;

impl UnaryTokens {
    /// Begins to count the tokens of an answer, unless an inner layer counts them.
    ///
    /// The outer result is `None` if no run counts tokens, or if the answer is compressed. The
    /// inner result is `None` if an inner layer counts the tokens.
    pub(super) fn of<B>(answer: &mut Response<B>, run: &Run) -> Option<Option<Box<Self>>> {
        let meter = run.tokens().meter()?;
        is_plain(answer.headers()).then(|| Self::begin(answer.extensions_mut(), meter))
    }

    #[cold]
    fn begin(extensions: &mut Extensions, meter: TokenMeter) -> Option<Box<Self>> {
        let is_counted = extensions.insert(CountedAnswer).is_some();
        // An inner layer has made this answer from a stream with tokens that were counted.
        let is_counted = is_counted || extensions.get::<ResponseMarks>().is_some();
        (!is_counted).then(|| {
            Box::new(Self {
                sole: Bytes::new(),
                reads: false,
                text: GeneratedText::default(),
                stated: None,
                meter,
            })
        })
    }

    #[cold]
    pub(super) fn push(&mut self, frame: &Bytes) {
        if !self.reads && self.sole.is_empty() && frame.len() <= MAX_SOLE {
            self.sole = frame.clone();
            return;
        }
        self.read_sole();
        self.text.push(frame);
    }

    /// Takes the usage that the whole answer states from a walk of it.
    pub(super) fn take_stated(&mut self, answer: &WholeAnswer) {
        self.stated = answer.stated();
    }

    fn read_sole(&mut self) {
        self.reads = true;
        self.text.push(&std::mem::take(&mut self.sole));
    }

    /// Counts the usage that the answer states, or the estimated tokens of its text if it states
    /// none for it.
    #[cold]
    pub(super) fn report(&mut self, run: &Run) {
        let (usage, unstated) = self.finish();
        run.node().report(usage, None);
        self.meter.set(usage, estimated_tokens(unstated));
    }

    /// The usage that the answer states, and the bytes of its text if it states no tokens for it.
    fn finish(&mut self) -> (Option<Usage>, u64) {
        let walk = || WholeAnswer::read(&self.sole)?.stated();
        if let Some(usage) = self.stated.or_else(|| walk().filter(|_| !self.reads)) {
            return (Some(usage), 0);
        }
        self.read_sole();
        let usage = self.text.usage();
        let states = usage.is_some_and(|usage| usage.output_tokens > 0);
        (usage, if states { 0 } else { self.text.bytes() })
    }
}
