use std::time::Duration;

use super::{message, with_candidate};

#[test]
fn a_call_whose_caller_left_is_cancelled_unless_it_is_to_drain() {
    let drain = |text: &str| {
        with_candidate(&format!("[disconnect]\n{text}"))
            .unwrap()
            .drain
    };
    assert_eq!(with_candidate("").unwrap().drain, None);
    assert_eq!(drain("policy = \"cancel\""), None);
    assert_eq!(drain("policy = \"drain\""), Some(Duration::from_secs(30)));
    let limited = drain("drain_limit = \"1500ms\"\npolicy = \"drain\"");
    assert_eq!(limited, Some(Duration::from_millis(1500)));
}

#[test]
fn a_drain_limit_that_means_nothing_is_refused() {
    let wrong = |text: &str| message(with_candidate(&format!("[disconnect]\n{text}")));
    assert_eq!(
        wrong("drain_limit = \"1s\""),
        "gateway.toml:2:15: disconnect.drain_limit is of no use without \
         disconnect.policy = \"drain\""
    );
    assert_eq!(
        wrong("policy = \"drain\"\ndrain_limit = \"0s\""),
        "gateway.toml:3:15: disconnect.drain_limit is zero: to drain nothing, write \
         disconnect.policy = \"cancel\""
    );
    let number = wrong("policy = \"drain\"\ndrain_limit = 5");
    assert!(
        number.contains("disconnect.drain_limit = 5 is not a duration"),
        "{number}"
    );
}
