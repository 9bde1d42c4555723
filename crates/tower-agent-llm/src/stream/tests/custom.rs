use super::judged;
use crate::dialect::Finish;
use crate::{
    dialect::{Dialect, Grammar, StreamState},
    dialect::{error_body, error_event},
    sse::{ErrorInfo, Event, EventKind, EventVerdict},
};

#[derive(Debug)]
struct LineGrammar;

impl Grammar for LineGrammar {
    fn name(&self) -> &'static str {
        "lines"
    }

    fn judge(&self, event: &Event<'_>, stream: &mut StreamState) -> EventVerdict {
        stream.report_usage(None, Some(event.data.len() as u64));
        match event.data {
            b"end" => EventKind::Terminator.into(),
            b"fail" => EventKind::Error.into(),
            _ => EventVerdict::content(false),
        }
    }
}

#[test]
fn another_dialect_plugs_in() {
    let dialect = Dialect::Custom(&LineGrammar);
    let judge = judged(dialect, &["hello", "you"]);
    assert_eq!(
        (judge.finish(), judge.usage().unwrap().output_tokens),
        (Finish::Truncated, 5)
    );
    assert_eq!(
        judged(dialect, &["hello", "end"]).finish(),
        Finish::Complete
    );
    let failed = judged(dialect, &["fail"]);
    assert_eq!(
        (failed.finish(), &*failed.failure().unwrap().message),
        (Finish::Failed, "fail")
    );
    assert_eq!(dialect, Dialect::Custom(&LineGrammar));
    assert_ne!(dialect, Dialect::OpenAiChat);
}

#[test]
fn its_errors_have_the_common_shape() {
    let info = ErrorInfo {
        code: "c",
        message: "m",
        run_id: None,
        sequence: 0,
        response_id: None,
    };
    let dialect = Dialect::Custom(&LineGrammar);
    assert_eq!(
        error_event(dialect, &info),
        error_event(Dialect::OpenAiChat, &info)
    );
    assert_eq!(
        error_body(dialect, &info),
        error_body(Dialect::OpenAiChat, &info)
    );
}
