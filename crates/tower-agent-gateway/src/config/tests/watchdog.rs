//! covers: E1, E2

use std::time::Duration;

use super::super::WatchdogServices;
use super::{message, with_candidate};

const CHECKER: &str = "checker = \"http://127.0.0.1:7/check\"\n";

#[test]
fn each_key_is_its_own() {
    let text = "[loops]\n[watchdog]\nchecker = \"http://127.0.0.1:7/check\"\ncheck_within = \"1s\"\n\
                question = \"https://host/ask\"\nanswer_within = \"2s\"\nends = true\n\
                observe = true\nexcerpts = 200";
    let watchdog = WatchdogServices {
        checker: Some("http://127.0.0.1:7/check".parse().unwrap()),
        check_within: Some(Duration::from_secs(1)),
        question: Some("https://host/ask".parse().unwrap()),
        answer_within: Some(Duration::from_secs(2)),
        ends: true,
        observe: true,
        excerpts: 200,
    };
    assert_eq!(with_candidate(text).unwrap().watchdog, Some(watchdog));

    let text = format!("preset = \"recommended\"\n[watchdog]\n{CHECKER}");
    let watchdog = with_candidate(&text).unwrap().watchdog.unwrap();
    assert!(!watchdog.ends && !watchdog.observe);
    assert_eq!((watchdog.check_within, watchdog.excerpts), (None, 0));
    let preset = with_candidate("preset = \"recommended\"").unwrap();
    assert_eq!(preset.watchdog, None, "no preset turns it on");
}

#[test]
fn a_mistake_is_named_with_its_place() {
    for (text, place, says) in [
        (
            "",
            "2:2",
            "watchdog: has no effect without `checker` or `question`",
        ),
        (
            "question = \"http://h/q\"\nends = true",
            "4:8",
            "watchdog.ends: has no effect without watchdog.checker",
        ),
        (
            "question = \"http://h/q\"\ncheck_within = \"1s\"",
            "4:16",
            "watchdog.check_within: has no effect without watchdog.checker",
        ),
        (
            "checker = \"http://h/q\"\nanswer_within = \"1s\"",
            "4:17",
            "watchdog.answer_within: has no effect without watchdog.question",
        ),
        ("checker = \"h\"", "3:11", "watchdog.checker: \"h\""),
        (
            "checker = \"http://h/q\"\nexcerpts = 1025",
            "4:12",
            "watchdog.excerpts: 1025 is not a whole number from 0 to 1024",
        ),
        ("ask = 1", "3:1", "watchdog.ask: unknown key"),
    ] {
        let message = message(with_candidate(&format!("[loops]\n[watchdog]\n{text}")));
        let start = format!("gateway.toml:{place}: {says}");
        assert!(message.starts_with(&start), "{message}");
    }
    let message = message(with_candidate(&format!("[watchdog]\n{CHECKER}")));
    let says = "gateway.toml:1:2: watchdog: has no effect without [loops]";
    assert_eq!(message, says);
}

#[test]
fn a_question_before_a_cap_is_asked_by_a_watchdog() {
    let asking = "[run]\nmax_output_tokens = 9\nask_at = 0.5\n";
    for (text, says) in [
        (
            "",
            "3:10: run.ask_at: has no effect without watchdog.question",
        ),
        (
            "[loops]\n[watchdog]\nchecker = \"http://h/q\"",
            "3:10: run.ask_at: has no effect without watchdog.question",
        ),
        (
            "[watchdog]\nquestion = \"http://h/q\"\nchecker = \"http://h/q\"",
            "6:11: watchdog.checker: has no effect without [loops]",
        ),
    ] {
        let message = message(with_candidate(&format!("{asking}{text}")));
        assert_eq!(message, format!("gateway.toml:{says}"));
    }
    let agents = "[auth]\nkeys_env = \"KEYS\"\n[agents.coder]\nmax_output_tokens = 9\nask_at = 0.5";
    let message = message(with_candidate(agents));
    assert!(
        message.contains("agents.coder.ask_at: has no effect"),
        "{message}"
    );
    let asked = format!("{asking}[watchdog]\nquestion = \"http://h/q\"");
    assert!(with_candidate(&asked).unwrap().watchdog.is_some());
}
