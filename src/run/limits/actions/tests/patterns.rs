//! covers: D7

use super::*;
use LoopPattern::{Cycle, PingPong, SameCall, SameTool, UnknownTool};
use LoopVerdict::{Observed, Stopped, Warned};

/// Nothing ends, so that what is told can be counted.
fn off(stop: u32) -> LoopLimits {
    LoopLimits {
        stop: LoopLimits::limit(stop),
        any_tool: None,
        ..LoopLimits::DEFAULT
    }
}

#[test]
fn the_same_call_with_the_same_result_is_told_at_ten_and_ends_at_twenty() {
    let mut agent = Agent::new();
    let keys = [
        r#"{"job":7,"deep":{"a":1,"b":2}}"#,
        r#"{ "deep":{"b":2,"a":1}, "job":7 }"#,
    ];

    let told = told((0..20).map(|turn| agent.does("status", keys[turn % 2], "running")));

    assert_eq!(
        told,
        [(10, SameCall, Warned, 10), (20, SameCall, Stopped, 20)]
    );
}

#[test]
fn other_calls_between_make_no_difference_within_thirty() {
    let mut agent = Agent::new();

    let told = told((0..28).map(|turn| {
        if turn % 7 == 6 || turn % 7 == 2 {
            return agent.does("note", &format!("{{\"n\":{turn}}}"), "ok");
        }
        agent.does("status", "{}", "running")
    }));

    assert_eq!(
        told,
        [(13, SameCall, Warned, 10), (27, SameCall, Stopped, 20)]
    );
}

#[test]
fn a_slow_poll_is_told_once_per_ten_and_ends_nothing() {
    let mut agent = Agent::new();

    let told = told((0..90).map(|turn| match turn % 3 {
        0 => agent.does("status", "{}", "running"),
        _ => agent.does("work", &format!("{{\"n\":{turn}}}"), &format!("{turn}")),
    }));

    assert_eq!(
        told,
        [
            (28, SameCall, Warned, 10),
            (58, SameCall, Warned, 20),
            (88, SameCall, Warned, 30)
        ]
    );
}

#[test]
fn another_result_begins_anew() {
    let mut agent = Agent::with(LoopLimits {
        any_tool: None,
        ..LoopLimits::DEFAULT
    });

    let told = told((0..57).map(|turn| {
        agent.does(
            "status",
            "{}",
            if turn % 19 == 18 {
                "changed"
            } else {
                "running"
            },
        )
    }));

    let warned: Vec<_> = told
        .iter()
        .filter(|(_, pattern, ..)| *pattern == SameCall)
        .map(|(at, _, verdict, times)| (*at, *verdict, *times))
        .collect();
    assert_eq!(
        warned,
        [(10, Warned, 10), (29, Warned, 10), (48, Warned, 10)]
    );
}

#[test]
fn two_calls_in_turn_are_told_at_ten_and_end_at_twenty() {
    let mut agent = Agent::new();

    let told = told((0..20).map(|turn| match turn % 2 {
        0 => agent.does("read", "{}", "text"),
        _ => agent.does("list", "{}", "files"),
    }));

    assert_eq!(
        told,
        [(10, PingPong, Warned, 10), (20, PingPong, Stopped, 20)]
    );
}

/// The calls of `names` in turn, each always with one result.
fn in_turn(agent: &mut Agent, names: &str, calls: usize) -> Vec<Vec<LoopFinding>> {
    let names: Vec<_> = names.split(' ').cycle().take(calls).collect();
    names
        .into_iter()
        .map(|name| agent.does(name, "{}", &format!("of {name}")))
        .collect()
}

#[test]
fn up_to_four_calls_in_any_order_without_a_new_result_are_told_and_end_at_thirty() {
    for names in ["a b a a b", "poll sleep look", "a b c d"] {
        let told = told(in_turn(&mut Agent::new(), names, 30).into_iter());

        let cycle = told.iter().filter(|(_, pattern, ..)| *pattern == Cycle);
        assert_eq!(
            cycle.copied().collect::<Vec<_>>(),
            [
                (10, Cycle, Warned, 10),
                (20, Cycle, Warned, 20),
                (30, Cycle, Stopped, 30)
            ],
            "{names}"
        );
        // Each call alone is a loop too, and told at its tenth.
        assert!(told.len() <= 6, "{names} {told:?}");
    }
    let rare = told(in_turn(&mut Agent::new(), "a b c a d a a", 30).into_iter());
    assert_eq!(rare.last(), Some(&(30, Cycle, Stopped, 30)));
}

#[test]
fn results_that_come_back_are_not_new_and_a_changed_one_is() {
    let results = |of: fn(usize) -> &'static str| {
        let mut agent = Agent::new();
        let turns = (0..36).map(|turn| match turn % 2 {
            0 => agent.does("toggle", "{}", "ok"),
            _ => agent.does("look", "{}", of(turn)),
        });
        let told = told(turns.collect::<Vec<_>>().into_iter());
        let stopped = told.into_iter().find(|found| found.2 == Stopped);
        stopped.map(|(at, pattern, ..)| (at, pattern))
    };

    let back_and_forth = results(|turn| ["on", "off"][turn / 2 % 2]);
    assert_eq!(back_and_forth, Some((30, Cycle)));
    let once = results(|turn| if turn < 18 { "on" } else { "off" });
    assert_eq!(once, None);
}

#[test]
fn five_calls_in_turn_are_no_cycle() {
    let told = told(in_turn(&mut Agent::new(), "a b c d e", 49).into_iter());
    assert_eq!(told, []);
}

#[test]
fn a_new_result_begins_the_cycle_anew() {
    let mut agent = Agent::new();
    let mut turns = in_turn(&mut agent, "a b c", 28);
    turns.push(agent.does("b", "{}", "changed"));
    turns.extend(in_turn(&mut agent, "c a d", 28));

    let told = told(turns.into_iter());

    assert!(told.iter().all(|found| found.2 == Warned), "{told:?}");
}

#[test]
fn two_calls_in_turn_that_change_something_are_no_loop() {
    let mut agent = Agent::new();
    agent.exact = true;

    let told = told((0..40).map(|turn| match turn % 2 {
        0 => agent.does("edit", "{}", &format!("{turn}")),
        _ => agent.does("test", "{}", &format!("{turn}")),
    }));

    assert_eq!(told, []);
}

#[test]
fn tools_that_are_not_declared_end_the_run_at_ten() {
    let mut agent = Agent::new();
    agent.tools = r#"{"type":"function","function":{"name":"read"}}"#;

    let told = told((0..21).map(|turn| {
        let name = if turn % 2 == 0 {
            format!("made_up_{turn}")
        } else {
            "read".to_owned()
        };
        agent.does(&name, &format!("{{\"n\":{turn}}}"), &format!("{turn}"))
    }));

    // With what the first was called nobody saw.
    assert_eq!(told, [(21, UnknownTool, Stopped, 10)]);
}

#[test]
fn without_declared_tools_none_is_unknown() {
    let mut agent = Agent::new();

    let turn = |turn| (format!("{{\"n\":{turn}}}"), format!("{turn}"));
    let turns = (0..40).map(|number| {
        let (arguments, result) = turn(number);
        agent.does("made_up", &arguments, &result)
    });

    assert_eq!(told(turns), []);
}

#[test]
fn a_tool_that_was_declared_when_it_was_called_is_known() {
    let mut agent = Agent::new();
    let [read, list] = ["read", "list"].map(|name| {
        format!(r#"{{"type":"function","function":{{"name":"{name}"}}}}"#).leak() as &str
    });

    let mut turns = Vec::new();
    for turn in 0..20 {
        // Called with what the request before declared.
        let (before, after) = if turn % 2 == 0 {
            ("list", read)
        } else {
            ("read", list)
        };
        agent.tools = after;
        turns.push(agent.does(before, &format!("{{\"n\":{turn}}}"), &format!("{turn}")));
    }

    // The first request has none before it.
    assert_eq!(told(turns.into_iter()), []);
}

#[test]
fn the_same_call_in_a_row_is_told_at_ten_and_twenty_and_ends_at_thirty_whatever_it_answers() {
    let mut agent = Agent::new();
    agent.exact = true;
    let turns = (0..30).map(|turn| agent.does("search", "{}", &format!("{turn}")));
    assert_eq!(
        told(turns),
        [
            (10, SameTool, Warned, 10),
            (20, SameTool, Warned, 20),
            (30, SameTool, Stopped, 30)
        ]
    );
}

#[test]
fn one_tool_with_other_arguments_each_time_is_no_loop_whatever_it_answers() {
    let mut agent = Agent::new();
    let turns = (0..60).map(|turn| agent.does("write", &format!("{{\"n\":{turn}}}"), "ok"));
    assert_eq!(told(turns), []);
}

#[test]
fn without_limits_the_usual_ones_are_told_and_nothing_ends() {
    let mut agent = Agent::unlimited();
    let turns = (0..40).map(|_| agent.does("status", "{}", "running"));
    assert_eq!(
        told(turns),
        [
            (10, SameCall, Warned, 10),
            (20, SameCall, Observed, 20),
            (20, SameCall, Warned, 20),
            (30, SameCall, Warned, 30),
            (30, SameTool, Observed, 30),
            (40, SameCall, Warned, 40)
        ]
    );
}

#[test]
fn what_was_called_before_the_first_request_is_not_judged_by_its_tools() {
    let mut agent = Agent::new();
    let acts = |agent: &mut Agent, turns: std::ops::Range<usize>| {
        for turn in turns {
            agent.acts(
                "phase_one",
                &format!("{{\"n\":{turn}}}"),
                &format!("{turn}"),
            );
        }
    };
    acts(&mut agent, 0..15);
    agent.tools = r#"{"type":"function","function":{"name":"phase_two"}}"#;
    assert_eq!(agent.asks(), []);

    // Nor by those of a request that has nothing in common with the one before.
    assert_eq!(agent.asks(), []);
    agent.messages.clear();
    acts(&mut agent, 100..115);
    assert_eq!(agent.asks(), []);

    acts(&mut agent, 200..210);
    let told = told([agent.asks()].into_iter());
    assert_eq!(told, [(1, UnknownTool, Stopped, 10)]);
}

#[test]
fn a_user_who_answers_a_finished_turn_begins_anew() {
    let mut agent = Agent::new();
    let told = told((0..40).map(|_| {
        let told = agent.does("build_status", "{}", "green");
        agent.says("It is green.");
        agent.hears("how is the build?");
        told
    }));
    assert_eq!(told, []);
}

#[test]
fn a_turn_begins_once_however_often_and_from_where_it_is_read() {
    let mut agent = Agent::new();
    agent.acts("status", "{}", "running");
    agent.says("It runs.");
    agent.hears("wait for it");
    let mut turns = Vec::new();
    for turn in 0..20 {
        // The head changes, so all is read again.
        agent.messages[0] = format!(r#"{{"role":"system","content":"round {turn}"}}"#);
        turns.push(agent.does("status", "{}", "running"));
    }
    let told = told(turns.into_iter());
    assert_eq!(told.last(), Some(&(20, SameCall, Stopped, 20)));
}

#[test]
fn a_user_who_speaks_between_two_calls_changes_nothing() {
    let mut agent = Agent::new();
    let told = told((0..20).map(|turn| {
        let told = agent.does("status", "{}", "running");
        agent.hears(&format!("{turn}"));
        told
    }));
    assert_eq!(
        told,
        [(10, SameCall, Warned, 10), (20, SameCall, Stopped, 20)]
    );
}

#[test]
fn of_one_request_the_last_are_judged_and_each_pattern_is_told_once() {
    let mut agent = Agent::with(off(0));
    for _ in 0..3000 {
        agent.acts("status", "{}", "running");
    }
    let effects = agent.effects();

    assert!(effects.len() <= 300, "{}", effects.len());
    assert_eq!(told([found(effects)].into_iter()).len(), 1);
}

#[test]
fn a_limit_that_is_off_never_fires_and_the_smaller_of_two_does() {
    let mut agent = Agent::with(off(0));
    let told_of = |agent: &mut Agent| told((0..45).map(|_| agent.does("status", "{}", "running")));
    assert_eq!(
        told_of(&mut agent),
        [
            (10, SameCall, Warned, 10),
            (20, SameCall, Warned, 20),
            (30, SameCall, Warned, 30),
            (40, SameCall, Warned, 40),
        ]
    );

    let mut agent = Agent::with(off(12));
    agent.state.limit(off(15), true);
    agent.state.limit(off(0), true);
    let stopped = told_of(&mut agent);
    assert_eq!(stopped[1], (12, SameCall, Stopped, 12));
}

#[test]
fn a_limit_beyond_the_window_is_reached_too() {
    let mut agent = Agent::with(LoopLimits {
        warn: None,
        ..off(50)
    });

    let told = told((0..50).map(|_| agent.does("status", "{}", "running")));

    assert_eq!(told, [(50, SameCall, Stopped, 50)]);
}

#[test]
fn limits_that_observe_tell_once_and_end_nothing() {
    let mut agent = Agent::unlimited();
    agent.state.limit(
        LoopLimits {
            warn: None,
            any_tool: None,
            ..off(5)
        },
        false,
    );

    let told = told((0..40).map(|turn| {
        agent.does(
            "status",
            "{}",
            if turn == 20 { "changed" } else { "running" },
        )
    }));

    assert_eq!(
        told,
        [(5, SameCall, Observed, 5), (26, SameCall, Observed, 5)]
    );
}

#[test]
fn beside_limits_that_observe_those_that_end_still_end() {
    let mut agent = Agent::with(off(20));
    agent.state.limit(off(5), false);

    let told = told((0..20).map(|_| agent.does("status", "{}", "running")));

    assert_eq!(
        told,
        [
            (5, SameCall, Observed, 5),
            (10, SameCall, Warned, 10),
            (20, SameCall, Stopped, 20)
        ]
    );
}

#[test]
fn results_that_are_not_known_are_like_no_other() {
    let mut state = ActionLog::default();
    state.limit(LoopLimits::DEFAULT, true);
    let turns = (0..30).map(|_| found(state.ran(action("status", "{}", None))));

    assert_eq!(
        told(turns),
        [
            (10, SameTool, Warned, 10),
            (20, SameTool, Warned, 20),
            (30, SameTool, Stopped, 30)
        ]
    );
}

/// An inner layer has smaller ones, and sees each request after the first has.
#[test]
fn other_limits_are_no_further_round() {
    let mut agent = Agent::with(off(0));
    let mut stop = 1000;
    let told = told((0..30).map(|_| {
        let found = agent.does("status", "{}", "running");
        stop -= 1;
        assert_eq!(agent.state.limit(off(stop), true), [], "nothing was done");
        found
    }));
    assert_eq!(
        told,
        [
            (10, SameCall, Warned, 10),
            (20, SameCall, Warned, 20),
            (30, SameCall, Warned, 30),
        ]
    );
}

#[test]
fn smaller_limits_tell_what_they_would_have_told_and_nothing_twice() {
    let warn = |every| LoopLimits {
        warn: std::num::NonZeroU32::new(every),
        ..off(0)
    };
    for (turns, then) in [(12, None), (17, Some(17)), (7, Some(7)), (4, None)] {
        let mut agent = Agent::with(warn(10));
        for _ in 0..turns {
            agent.does("status", "{}", "running");
        }
        let told = found(agent.state.limit(warn(5), true));
        let times = told.first().map(|found| found.times);
        assert_eq!(
            (times, told.len()),
            (then, usize::from(then.is_some())),
            "{turns}"
        );
    }
}

fn waiting(agent: &mut Agent, result: &str) -> Vec<LoopFinding> {
    agent.does("process_wait", r#"{"pid":7}"#, result)
}

fn poller() -> Agent {
    let mut agent = Agent::new();
    let polls = ["process_wait".into()];
    agent.state.add_polls(&polls.into());
    agent
}

#[test]
fn a_polling_tool_is_told_at_thirty_and_ends_at_sixty() {
    let mut agent = poller();
    let told = told((0..60).map(|_| waiting(&mut agent, "running")));
    assert_eq!(
        told,
        [(30, SameCall, Warned, 30), (60, SameCall, Stopped, 60)]
    );
}

#[test]
fn a_changed_result_of_a_polling_tool_begins_anew_even_if_it_was_there_before() {
    let mut agent = poller();
    let told = told((0..200).map(|turn| {
        waiting(
            &mut agent,
            if turn % 25 == 24 {
                "a line came"
            } else {
                "running"
            },
        )
    }));
    assert_eq!(told, []);
}

#[test]
fn a_cycle_with_a_polling_tool_has_its_patience_and_other_tools_have_none() {
    let mut agent = poller();
    let turns = (0..90).map(|turn| match turn % 3 {
        0 => waiting(&mut agent, "running"),
        1 => agent.does("sleep", "{}", "ok"),
        _ => agent.does("look", "{}", "nothing"),
    });
    let cycles: Vec<_> = told(turns.collect::<Vec<_>>().into_iter());
    let cycles: Vec<_> = cycles
        .into_iter()
        .filter(|found| found.1 == Cycle)
        .collect();
    assert_eq!(
        cycles,
        [
            (30, Cycle, Warned, 30),
            (60, Cycle, Warned, 60),
            (90, Cycle, Stopped, 90)
        ]
    );

    let mut agent = poller();
    let told = told((0..60).map(|turn| match turn % 3 {
        0 => agent.does("status", "{}", "running"),
        _ => agent.does("work", &format!("{{\"n\":{turn}}}"), "ok"),
    }));
    assert!(told.iter().all(|found| found.2 == Warned), "{told:?}");
}

#[test]
fn a_polling_tool_is_no_sign_of_being_stuck() {
    let mut agent = poller();
    agent.acts("process_wait", "{}", "running");
    assert_eq!(agent.effects(), [Effect::Moved]);
}

#[test]
fn a_compaction_begins_anew() {
    let mut agent = Agent::new();
    let told = told((0..60).map(|turn| {
        if turn % 9 == 0 {
            agent.state.compacted();
        }
        agent.does("status", "{}", "running")
    }));
    assert_eq!(told, []);
}
