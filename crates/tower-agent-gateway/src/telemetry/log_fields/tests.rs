use std::{
    io,
    sync::{Arc, Mutex},
};

use tracing::{Subscriber, subscriber::with_default};
use tracing_subscriber::{
    Layer,
    fmt::{format::DefaultFields, layer},
    layer::SubscriberExt,
    registry::{LookupSpan, Registry},
};

use super::*;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn layer<S, N>(&self, fields: N) -> impl Layer<S> + use<S, N>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
        N: for<'writer> FormatFields<'writer> + Send + Sync + 'static,
    {
        let lines = self.clone();
        let layer = layer().without_time().fmt_fields(fields).with_ansi(false);
        layer.with_writer(move || lines.clone())
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

fn log_all_kinds_of_fields() {
    let texts = [
        "",
        "plain text, it's 100 %",
        "a \"quote\"",
        "back\\slash",
        "two\nlines\tand a tab",
        "\u{1b}[31mred\u{7f}",
        "é 漢 \u{200b}\u{9b}",
    ];
    for text in texts {
        tracing::info!(text, shown = %text, debug = ?text, "a message: {text}");
        tracing::info!(message = text, text);
        tracing::info!(text);
    }
    for number in [0, 1, 9, 10, 1_234_567_890, u64::MAX] {
        tracing::info!(number, small = 7_u8, negative = -1, "numbers");
    }
    let cause = io::Error::other("the \"cause\"");
    let error: &(dyn std::error::Error + 'static) = &cause;
    let outer = io::Error::other(fmt::Error);
    let nested: &(dyn std::error::Error + 'static) = &outer;
    let nothing: Option<&str> = None;
    tracing::warn!(error, nothing, some = Some("thing"), nested, r#type = "raw");
    tracing::warn!(is_true = true, float = 1.5, wide = u128::MAX, list = ?[1, 2]);
    tracing::warn!(line = 3, nothing, "no field but {}", "one");
    tracing::error!("{}", "only a message");
    tracing::error!(nothing);
    tracing::info_span!(
        "span",
        text = "in a span",
        number = 3_u64,
        later = tracing::field::Empty
    )
    .in_scope(|| {
        tracing::Span::current().record("later", "added");
        tracing::info!(number = 1_u64, "within");
    });
}

#[test]
fn a_line_has_the_fields_as_by_default() {
    let (ours, default) = (Lines::default(), Lines::default());
    let lines = Registry::default().with(ours.layer(LogFields));
    with_default(lines, log_all_kinds_of_fields);
    let lines = Registry::default().with(default.layer(DefaultFields::new()));
    with_default(lines, log_all_kinds_of_fields);
    assert!(ours.text().lines().count() > 30, "{}", ours.text());
    assert_eq!(ours.text(), default.text());
}
