//! The spans of a test.

use std::{cell::RefCell, collections::BTreeMap, fmt::Debug};

use tracing::{
    Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer,
    layer::Context,
    registry::{LookupSpan, SpanRef},
};

use super::LogCapture;

/// A span of the library, as far as it was recorded.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpanRecord {
    /// The name in the source, which is the same for all spans of a kind.
    pub(crate) kind: &'static str,
    /// The index of the span above it among the captured ones.
    pub(crate) parent: Option<usize>,
    /// The fields, as text.
    pub(crate) fields: BTreeMap<&'static str, String>,
    /// The fields that were recorded more than once.
    pub(crate) twice: Vec<&'static str>,
    /// How often the span was closed.
    pub(crate) closed: u32,
}

thread_local! {
    static CAPTURED: RefCell<Option<Vec<SpanRecord>>> = const { RefCell::new(None) };
}

/// Captures the spans that this thread makes, until it is dropped; and its events.
pub(crate) struct SpanCapture(LogCapture);

impl SpanCapture {
    /// Starts to capture; spans before are not kept.
    pub(crate) fn start() -> Self {
        let events = LogCapture::start();
        CAPTURED.set(Some(Vec::new()));
        Self(events)
    }

    /// All spans in the order in which they were made.
    pub(crate) fn all(&self) -> Vec<SpanRecord> {
        CAPTURED.with_borrow(|captured| captured.clone().unwrap_or_default())
    }

    /// The spans of this kind, each with its index.
    pub(crate) fn of(&self, kind: &str) -> Vec<(usize, SpanRecord)> {
        let all = self.all().into_iter().enumerate();
        all.filter(|(_, span)| span.kind == kind).collect()
    }

    /// The one span of this kind, with its index.
    pub(crate) fn one(&self, kind: &str) -> (usize, SpanRecord) {
        let [span] = &self.of(kind)[..] else {
            panic!("{:?}", self.all());
        };
        span.clone()
    }

    /// All spans, each of which has closed once and has each of its fields once.
    pub(crate) fn closed(&self) -> Vec<SpanRecord> {
        let all = self.all();
        for span in &all {
            assert_eq!((span.closed, &*span.twice), (1, &[][..]), "{span:?}");
        }
        all
    }
}

impl Drop for SpanCapture {
    fn drop(&mut self) {
        CAPTURED.set(None);
    }
}

impl SpanRecord {
    /// A field, as text.
    pub(crate) fn get(&self, field: &str) -> Option<&str> {
        self.fields.get(field).map(|value| &**value)
    }

    /// The kind of the failure or cut.
    pub(crate) fn error(&self) -> Option<&str> {
        let error = self.get("error.type");
        let status = error.map(|_| "ERROR");
        assert_eq!(self.get("otel.status_code"), status, "{self:?}");
        error
    }
}

/// The part of the subscriber that records spans.
pub(super) struct CaptureSpans;

/// The place of a span among the captured ones.
struct Index(usize);

fn index<'a, S: LookupSpan<'a>>(span: Option<SpanRef<'a, S>>) -> Option<usize> {
    let span = span?;
    let extensions = span.extensions();
    extensions.get().map(|Index(index)| *index)
}

fn change(index: Option<usize>, act: impl FnOnce(&mut SpanRecord)) {
    CAPTURED.with_borrow_mut(|captured| {
        if let (Some(captured), Some(index)) = (captured, index) {
            act(&mut captured[index]);
        }
    });
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for CaptureSpans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let parent = index(span.parent());
        CAPTURED.with_borrow_mut(|captured| {
            let Some(captured) = captured else { return };
            span.extensions_mut().insert(Index(captured.len()));
            let mut record = SpanRecord {
                kind: attributes.metadata().name(),
                parent,
                ..SpanRecord::default()
            };
            attributes.record(&mut Fields(&mut record));
            captured.push(record);
        });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        change(index(context.span(id)), |span| {
            values.record(&mut Fields(span))
        });
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        change(index(context.span(&id)), |span| span.closed += 1);
    }
}

struct Fields<'a>(&'a mut SpanRecord);

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let before = self.0.fields.insert(field.name(), format!("{value:?}"));
        // A name may be completed, once the model is known.
        if before.is_some() && field.name() != "otel.name" {
            self.0.twice.push(field.name());
        }
    }
}
