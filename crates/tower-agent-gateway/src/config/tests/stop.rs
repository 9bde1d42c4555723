//! covers: C5

use super::{message, with_candidate};

#[test]
fn phrases_are_read() {
    let config = with_candidate("[stop]\nphrases = [\"/stop\", \"Bitte aufhören!\"]").unwrap();

    assert_eq!(config.stop.unwrap(), ["/stop", "Bitte aufhören!"]);
    assert_eq!(with_candidate("").unwrap().stop, None);
}

#[test]
fn what_would_stop_nothing_is_named() {
    for (text, told) in [
        ("", "missing key `phrases`"),
        ("phrases = []", "stop.phrases is empty"),
        (
            "phrases = [\"stop\", \"!?\"]",
            "stop.phrases holds \"!?\", which has no letter and no digit",
        ),
        ("phrases = \"/stop\"", "invalid type"),
    ] {
        let message = message(with_candidate(&format!("[stop]\n{text}")));

        assert!(message.contains(told), "{message}");
        assert!(message.starts_with("gateway.toml:"), "{message}");
    }
}
