//! The log lines of a test.

use std::{cell::RefCell, collections::BTreeMap, fmt::Debug, sync::OnceLock};

use super::span_capture::CaptureSpans;
use tracing::{
    Dispatch,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer, Registry,
    layer::{Context, SubscriberExt},
};

/// The fields of an event, as text.
pub(crate) type LogEvent = BTreeMap<&'static str, String>;

thread_local! {
    static CAPTURED: RefCell<Option<Vec<LogEvent>>> = const { RefCell::new(None) };
}

/// Captures the events of this thread until it is dropped.
///
/// There is one subscriber for all threads, and a second that does nothing. With
/// one alone, or one for each test, `tracing` would take an event for unwanted
/// that another test's thread is the first to emit.
#[derive(Debug)]
pub(crate) struct LogCapture(());

impl LogCapture {
    /// Starts to capture; events before are not kept.
    pub(crate) fn start() -> Self {
        static SECOND: OnceLock<Dispatch> = OnceLock::new();
        SECOND.get_or_init(|| {
            let first = tracing_subscriber::registry().with(Capture);
            let first = Dispatch::new(first.with(CaptureSpans));
            tracing::dispatcher::set_global_default(first).unwrap();
            Dispatch::new(Registry::default().with(Capture))
        });
        tracing::callsite::rebuild_interest_cache();
        CAPTURED.set(Some(Vec::new()));
        Self(())
    }

    /// All events of a name, in order.
    pub(crate) fn events(&self, name: &str) -> Vec<LogEvent> {
        let named = |event: &&LogEvent| event["message"] == name;
        CAPTURED.with_borrow(|captured| captured.iter().flatten().filter(named).cloned().collect())
    }
}

impl Drop for LogCapture {
    fn drop(&mut self) {
        CAPTURED.set(None);
    }
}

/// The subscriber layer.
struct Capture;

impl<S: tracing::Subscriber> Layer<S> for Capture {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        CAPTURED.with_borrow_mut(|captured| {
            if let Some(captured) = captured {
                let level = event.metadata().level().to_string();
                let mut fields = Fields(LogEvent::from([("message", String::new())]));
                event.record(&mut fields);
                fields.0.insert("level", level);
                let target = event.metadata().target().to_owned();
                fields.0.insert("target", target);
                captured.push(fields.0);
            }
        });
    }
}

struct Fields(LogEvent);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}
