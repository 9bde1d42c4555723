//! A body of which only the first bytes will say whether it is an event stream.

use bytes::Bytes;
use http::{Extensions, HeaderMap, Response, header};

use super::stream_marks::{BodyForm, MarkingReader, PossibleStream, ResponseMarks};
use crate::{
    llm::{StreamSniffer, dialect::Dialect, is_plain},
    run::Run,
};

/// The innermost layer's reader of a body that may be an event stream.
#[derive(Debug)]
pub(super) struct UndecidedBody {
    sniffer: StreamSniffer,
    reader: Box<MarkingReader>,
    run: Run,
}

impl UndecidedBody {
    /// Begins to read the body of an answer to `run`, which asks for a stream. `None` if the answer
    /// is not a success, or its body cannot be read.
    ///
    /// Some proxies send an event stream as plain text, as JSON, or without a content type.
    pub(super) fn of<B>(
        answer: &mut Response<B>,
        dialect: Dialect,
        run: &Run,
    ) -> Option<Box<Self>> {
        if !answer.status().is_success() || !is_plain(answer.headers()) {
            return None;
        }
        let extensions = answer.extensions_mut();
        if extensions.get::<ResponseMarks>().is_some() {
            // A layer of the program has made something else of a stream.
            return None;
        }
        let reader = Box::new(MarkingReader::new(dialect));
        reader.marks().set_form(BodyForm::Unknown);
        extensions.insert(PossibleStream(reader.marks().clone()));
        Some(Box::new(Self {
            sniffer: StreamSniffer::default(),
            reader,
            run: run.clone(),
        }))
    }

    /// The reader of the stream that the body is; `counts` if its tokens count.
    pub(super) fn into_reader(mut self, counts: bool) -> Box<MarkingReader> {
        self.reader.begin(&self.run, counts);
        self.reader
    }

    /// Reads the next bytes. The stream's reader has then read all but those that decided.
    pub(super) fn push(&mut self, data: &Bytes) -> BodyForm {
        let form = match self.sniffer.push(data) {
            None => {
                self.reader.push(data);
                BodyForm::Unknown
            }
            Some(true) => BodyForm::Events,
            Some(false) => BodyForm::Other,
        };
        self.reader.marks().set_form(form);
        form
    }
}

/// Gives the head of an answer the content type of the event stream that its body is, and the
/// stream's marks.
#[cold]
pub(crate) fn name_stream(
    headers: &mut HeaderMap,
    extensions: &mut Extensions,
    marks: &ResponseMarks,
) {
    let kind = http::HeaderValue::from_static("text/event-stream");
    headers.insert(header::CONTENT_TYPE, kind);
    // An event may have to follow.
    headers.remove(header::CONTENT_LENGTH);
    extensions.remove::<PossibleStream>();
    extensions.insert(marks.clone());
}
