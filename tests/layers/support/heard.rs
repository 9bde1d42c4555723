//! What is logged while a test runs.

use std::{cell::RefCell, collections::BTreeMap, fmt::Debug, sync::OnceLock};

use tracing::{
    Dispatch,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer, Registry,
    layer::{Context, SubscriberExt},
};

/// The fields of an event, as text.
pub(crate) type Event = BTreeMap<&'static str, String>;

thread_local! {
    static HEARD: RefCell<Option<Vec<Event>>> = const { RefCell::new(None) };
}

/// Listens to the events of this thread until it is dropped.
///
/// There is one subscriber for all threads, and a second that does nothing. With
/// one alone, or one for each test, `tracing` would take an event for unwanted
/// that another test's thread is the first to emit.
#[derive(Debug)]
pub(crate) struct Heard(());

impl Heard {
    pub(crate) fn listen() -> Self {
        static OTHER: OnceLock<Dispatch> = OnceLock::new();
        OTHER.get_or_init(|| {
            let ears = Dispatch::new(tracing_subscriber::registry().with(Ear));
            tracing::dispatcher::set_global_default(ears).unwrap();
            Dispatch::new(Registry::default().with(Ear))
        });
        tracing::callsite::rebuild_interest_cache();
        HEARD.set(Some(Vec::new()));
        Self(())
    }

    /// All events of a name, in order.
    pub(crate) fn events(&self, name: &str) -> Vec<Event> {
        let named = |event: &&Event| event["message"] == name;
        HEARD.with_borrow(|heard| heard.iter().flatten().filter(named).cloned().collect())
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        HEARD.set(None);
    }
}

struct Ear;

impl<S: tracing::Subscriber> Layer<S> for Ear {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        HEARD.with_borrow_mut(|heard| {
            if let Some(heard) = heard {
                let level = event.metadata().level().to_string();
                let mut fields = Fields(Event::from([("message", String::new())]));
                event.record(&mut fields);
                fields.0.insert("level", level);
                let target = event.metadata().target().to_owned();
                fields.0.insert("target", target);
                heard.push(fields.0);
            }
        });
    }
}

struct Fields(Event);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}
