use super::super::{Fallback, IdleBreaker};
use super::{message, with_candidate};

#[track_caller]
fn fallback(head: &str) -> (bool, bool) {
    let Fallback { cooldown, sticky } = with_candidate(head).unwrap().fallback;
    (cooldown, sticky)
}

#[track_caller]
fn idle(head: &str) -> Option<IdleBreaker> {
    with_candidate(head).unwrap().run.idle_breaker
}

#[test]
fn without_a_table_nobody_is_left_alone_and_no_session_stays() {
    assert_eq!(fallback(""), (false, false));
    assert_eq!(fallback("[fallback]"), (false, false));
}

#[test]
fn each_is_switched_by_itself_with_and_without_the_preset() {
    let preset = "preset = \"recommended\"\n[fallback]\n";
    assert_eq!(fallback(preset), (true, true));
    assert_eq!(
        fallback(&format!("{preset}cooldown = false")),
        (false, true)
    );
    assert_eq!(fallback(&format!("{preset}sticky = false")), (true, false));
    assert_eq!(fallback("[fallback]\ncooldown = true"), (true, false));
    assert_eq!(fallback("[fallback]\nsticky = true"), (false, true));
}

#[test]
fn silence_is_counted_if_the_file_or_the_preset_says_so() {
    let five = |fails_over| IdleBreaker {
        silent: 5,
        fails_over,
    };
    let preset = "preset = \"recommended\"\n[run]\n";
    assert_eq!(idle(""), None);
    assert_eq!(idle(preset), Some(five(false)));
    assert_eq!(idle(&format!("{preset}idle_breaker = 0")), None);
    assert_eq!(idle("[run]\nidle_breaker = 5"), Some(five(false)));
    let over = "[run]\nidle_breaker = 5\nidle_fails_over = true";
    assert_eq!(idle(over), Some(five(true)));
}

#[test]
fn failing_over_without_a_breaker_is_refused() {
    for silent in ["", "idle_breaker = 0\n"] {
        let text = format!("[run]\n{silent}idle_fails_over = true");
        let message = message(with_candidate(&text));
        assert!(message.contains("run.idle_fails_over"), "{message}");
    }
    assert_eq!(idle("[run]\nidle_fails_over = false"), None);
}

#[test]
fn what_is_no_count_is_refused_with_its_key() {
    for value in ["-1", "1.5", "\"5\"", "1001"] {
        let message = message(with_candidate(&format!("[run]\nidle_breaker = {value}")));
        assert!(message.contains("run.idle_breaker"), "{message}");
        assert!(message.starts_with("gateway.toml:2:"), "{message}");
    }
}
