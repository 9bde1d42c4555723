use bytes::Bytes;
use http::HeaderMap;

use crate::{
    llm::{AnswerReader, failure::names_json},
    run::Run,
    supervise::{FrameKind, Observer, Policy, is_plain, names_events},
};

/// Measures nothing; reads the tool calls of an answer.
#[derive(Debug)]
pub struct CallsPolicy {
    answer: Box<AnswerReader>,
}

impl CallsPolicy {
    pub(super) fn new() -> Self {
        let answer = Box::new(AnswerReader::nothing());
        Self { answer }
    }

    fn finish(&mut self, found: &Run) {
        found.expect(self.answer.finish());
    }
}

impl Policy for CallsPolicy {
    const READS: bool = true;

    fn head(&mut self, _: &Run, headers: &mut HeaderMap) {
        if !is_plain(headers) {
            return;
        }
        if names_events(headers) {
            *self.answer = AnswerReader::events();
        } else if names_json(headers) {
            *self.answer = AnswerReader::document();
        }
    }

    #[inline]
    fn data(&mut self, _: &Run, data: &Bytes) {
        self.answer.push(data);
    }

    #[inline]
    fn frame(&mut self, found: &Run, _: Option<FrameKind>, tap: Option<&Observer>) {
        // Who gets the last bytes may ask again before this body is dropped.
        if tap.is_some_and(Observer::is_complete) {
            self.finish(found);
        }
    }

    fn release(&mut self, found: &Run) {
        self.finish(found);
    }
}
