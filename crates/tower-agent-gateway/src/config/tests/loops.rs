//! covers: D7

use super::super::Loops;
use super::{message, with_candidate};

const RECOMMENDED: Loops = Loops {
    warn: 10,
    stop: 20,
    unknown_tool: 10,
    any_tool: 30,
    observe: false,
    polls: Vec::new(),
    exact_results: false,
};

#[test]
fn loops_are_looked_for_if_the_file_or_the_preset_says_so() {
    for (text, loops) in [
        ("", None),
        ("[loops]\n", Some(RECOMMENDED)),
        ("preset = \"recommended\"", Some(RECOMMENDED)),
    ] {
        assert_eq!(with_candidate(text).unwrap().loops, loops, "{text}");
    }
}

#[test]
fn each_number_is_its_own_and_zero_is_never() {
    let text = "[loops]\nwarn = 1\nstop = 2\nunknown_tool = 3\nany_tool = 0\nobserve = true\n\
                polls = [\"process_wait\"]\nexact_results = true";
    let loops = Loops {
        warn: 1,
        stop: 2,
        unknown_tool: 3,
        any_tool: 0,
        observe: true,
        polls: vec!["process_wait".to_owned()],
        exact_results: true,
    };
    assert_eq!(with_candidate(text).unwrap().loops, Some(loops));

    let text = "preset = \"recommended\"\n\
                [loops]\nwarn = 0\nstop = 0\nunknown_tool = 0\nany_tool = 0";
    assert_eq!(with_candidate(text).unwrap().loops, None, "nothing is read");
}

#[test]
fn a_number_that_is_none_is_named() {
    for key in ["warn", "stop", "unknown_tool", "any_tool"] {
        let message = message(with_candidate(&format!("[loops]\n{key} = 1001")));

        let told = format!("loops.{key} = 1001 is not a whole number from 0 to 1000");
        assert!(message.ends_with(&told), "{message}");
        assert!(message.starts_with("gateway.toml:2:"), "{message}");
    }
}
