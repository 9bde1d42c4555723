//! covers: A5

use std::time::Duration;

use super::super::{Agent, IdleBreaker, SharedBudget};
use super::{message, with_candidate};

const AUTH: &str = "[auth]\nkeys_env = \"KEYS\"\n";

/// The one agent of a file with keys.
#[track_caller]
fn agent(text: &str) -> Agent {
    let mut config = with_candidate(&format!("{AUTH}{text}")).unwrap();
    assert_eq!(config.agents.len(), 1);
    config.agents.remove(0)
}

#[test]
fn what_an_agent_leaves_out_is_as_for_all() {
    let all = "preset = \"recommended\"\n[run]\ntimeout = \"1h\"\nmax_turns = 7\nidle_fails_over = true\n\
               [retry]\nshared_ratio = 0.5\nmax_delay = \"4s\"\n";
    let text = format!("{all}{AUTH}[agents.coder]\n");
    let config = with_candidate(&text).unwrap();

    assert_eq!(config.agents[0].name, "coder");
    assert_eq!(config.agents[0].run, config.run);
    assert_eq!(config.agents[0].retry, config.retry);
    assert_eq!(config.run.timeout, Some(Duration::from_secs(3600)));
    assert!(config.run.idle_breaker.unwrap().fails_over);
}

#[test]
fn an_agents_values_beat_those_of_all() {
    let agent = agent(
        "[run]\nstep_timeout = \"5m\"\nmax_turn_time = \"30m\"\ntimeout = \"1h\"\nidle = \"10m\"\n\
         max_turns = 30\nidle_breaker = 5\n[retry]\nmax_attempts_per_candidate = 5\nper_run = 20\nper_error_key = 4\n\
         shared_ratio = 0.5\n[agents.coder]\nstep_timeout = \"7s\"\nmax_turn_time = \"0s\"\n\
         timeout = \"2h\"\nidle = \"0s\"\nmax_turns = 50\nidle_breaker = 3\nidle_fails_over = true\n\
         max_attempts_per_candidate = 1\nper_run = 0\nper_error_key = 9\nshared_floor = 2\n\
         base_delay = \"10ms\"\nmax_delay = \"20ms\"\nmax_retry_after = \"0s\"\n",
    );

    assert_eq!(agent.run.step_timeout, Some(Duration::from_secs(7)));
    assert_eq!(agent.run.max_turn_time, None);
    assert_eq!(agent.run.timeout, Some(Duration::from_secs(7200)));
    assert_eq!(agent.run.idle, None);
    assert_eq!(agent.run.max_turns, Some(50));
    let breaker = IdleBreaker {
        silent: 3,
        fails_over: true,
    };
    assert_eq!(agent.run.idle_breaker, Some(breaker));
    assert_eq!(agent.retry.attempts, 1);
    assert_eq!(agent.retry.per_run, None);
    assert_eq!(agent.retry.per_error_key, Some(9));
    let shared = SharedBudget {
        ratio: 0.5,
        floor: 2,
    };
    assert_eq!(agent.retry.shared, Some(shared));
    assert_eq!(agent.retry.base_delay, Duration::from_millis(10));
    assert_eq!(agent.retry.max_delay, Duration::from_millis(20));
    assert_eq!(agent.retry.max_retry_after, Duration::ZERO);
}

/// A delay of all that is longer gives way.
#[test]
fn zero_switches_what_all_have_off() {
    let agent = agent(
        "[run]\nmax_turns = 30\nidle_breaker = 5\nidle_fails_over = true\n[retry]\nshared_ratio = 0.5\n\
         [agents.coder]\nmax_turns = 0\nidle_breaker = 0\nshared_ratio = 0\nshared_floor = 0\nmax_delay = \"1ms\"\n",
    );

    assert_eq!(agent.run.max_turns, None);
    assert_eq!(agent.run.idle_breaker, None);
    assert_eq!(agent.retry.shared, None);
    assert_eq!(agent.retry.base_delay, Duration::from_millis(1));
}

/// It has no table of its own that could switch repeats on.
#[test]
fn an_agent_repeats_nothing_unless_it_or_all_say_so() {
    assert_eq!(agent("[agents.coder]\nper_run = 3").retry.attempts, 1);
    let twice = agent("[agents.coder]\nmax_attempts_per_candidate = 2");
    assert_eq!(twice.retry.attempts, 2);
}

#[test]
fn an_agent_without_a_key_is_nobody() {
    let keyless = message(with_candidate("[agents.coder]\ntimeout = \"1s\""));
    let unknown = message(with_candidate(&format!("{AUTH}[agents.codr]\n")));

    assert_eq!(
        keyless,
        "gateway.toml:1:9: [agents.coder] is nobody: without [auth] no caller has a name"
    );
    assert_eq!(
        unknown,
        "gateway.toml:3:9: [agents.codr] is nobody: no key of [auth] has this name"
    );
}

#[test]
fn what_is_wrong_is_told_with_the_agents_name() {
    let wrong = |text: &str| message(with_candidate(&format!("{AUTH}[agents.coder]\n{text}")));

    for (text, told) in [
        (
            "timeout = 5",
            "gateway.toml:4:11: agents.coder.timeout = 5 is not a duration",
        ),
        (
            "per_run = -1",
            "gateway.toml:4:11: agents.coder.per_run = -1 is not a whole",
        ),
        (
            "max_turns = \"many\"",
            "gateway.toml:4:13: agents.coder.max_turns = \"many\" is not a whole",
        ),
        ("colour = 1", "gateway.toml:4:1: unknown key `colour`"),
        (
            "base_delay = \"1h\"",
            "gateway.toml:4:14: agents.coder.base_delay (3600s) is longer",
        ),
        (
            "idle_fails_over = true",
            "gateway.toml:4:19: agents.coder.idle_fails_over does nothing without",
        ),
    ] {
        let message = wrong(text);
        assert!(message.starts_with(told), "{message}");
    }
}
