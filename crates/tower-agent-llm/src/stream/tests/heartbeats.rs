//! Tests of events that only say that the connection is alive, in each dialect.

use proptest::{prelude::*, sample::select};

use super::super::reader::StreamReader;
use crate::dialect::Dialect;

const DIALECTS: [Dialect; 4] = [
    Dialect::Any,
    Dialect::OpenAiChat,
    Dialect::OpenAiResponses,
    Dialect::Anthropic,
];

/// Whether an event is progress, and whether it is more than a sign of life.
fn seen(dialect: Dialect, event: &str) -> (bool, bool) {
    let mut reader = StreamReader::new(dialect);
    let seen = reader.push(format!("{event}\n\n").as_bytes());
    (seen.progress, reader.parts() > 0)
}

#[test]
fn heartbeats_are_life_in_each_dialect() {
    for dialect in DIALECTS {
        for event in [
            "event: ping\ndata: {}",
            "event: keepalive\ndata: {}",
            "event: keep-alive\ndata:",
            "event: heartbeat\ndata: still here",
            "data: {\"type\":\"ping\"}",
            "data: {\"type\":\"heartbeat\"}",
            "data: {\"type\":\"response.heartbeat\"}",
            "data: {\"type\":\"codex.keepalive\"}",
            "data: {\"type\":\"KEEP_ALIVE\",\"at\":7}",
            "data: {}",
            "data: { }",
            "data:",
            ": keep-alive",
        ] {
            assert_eq!(seen(dialect, event), (false, false), "{dialect:?}: {event}");
        }
        for event in [
            "data: {\"type\":\"heartbeats\"}",
            "data: {\"type\":\"status\"}",
            "event: status\ndata: {}",
            "data: {\"a\":{}}",
            "data: still here",
        ] {
            assert_eq!(seen(dialect, event), (true, true), "{dialect:?}: {event}");
        }
    }
}

#[test]
fn the_number_of_a_prompts_progress_is_progress_only_while_it_grows() {
    for dialect in [
        Dialect::OpenAiChat,
        Dialect::OpenAiResponses,
        Dialect::Anthropic,
    ] {
        for (before, behind) in [("{\"total\":100,\"processed\":", "}"), ("", "")] {
            let mut reader = StreamReader::new(dialect);
            let mut is_progress = |count: &str| {
                let event = format!("data: {{\"prompt_progress\":{before}{count}{behind}}}\n\n");
                reader.push(event.as_bytes()).progress
            };
            let counts = ["10", "10", "20", "5", "20", "21", "-1", "\"x\"", "22"];
            let grown = [true, false, true, false, false, true, false, false, true];
            assert_eq!(counts.map(&mut is_progress), grown, "{dialect:?} {before}");
        }
    }
}

proptest! {
    /// A counter is progress as often as it reaches a new maximum.
    #[test]
    fn progress_counts_new_maxima(
        counts in prop::collection::vec(0_u64..9, 0..20),
        dialect in select(&DIALECTS[1..]),
    ) {
        let mut reader = StreamReader::new(dialect);
        let mut most = 0;
        for count in counts {
            let event = format!("data: {{\"prompt_progress\":{{\"processed\":{count}}}}}\n\n");
            let seen = reader.push(event.as_bytes());
            prop_assert_eq!(seen.progress, count > most);
            most = most.max(count);
        }
    }
}
