//! Each rule, by what an agent's requests carry.

use std::{convert::Infallible, future::pending};

use tower::{ServiceBuilder, ServiceExt};
use tower_agent::{LoopGuardLayer, Run, RunLayer, RunRegistry, TerminalReason};

use super::{
    agent::{ALL, Agent},
    told,
};
use crate::support::{Outcome, ReadExt, Script, Upstream, reason_of, secs};

/// Lets an agent do one thing before each of its requests, at most 60 times. Answers
/// how many it had done when its run ended, if it did, and which loops were told of.
async fn circles(
    guard: LoopGuardLayer,
    mut agent: Agent,
    mut act: impl FnMut(&mut Agent, usize),
) -> (Option<usize>, Vec<String>) {
    let registry = RunRegistry::new();
    let events = registry.subscribe();
    let upstream = Upstream::script(Script::answer(200, "{}"));
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(registry.clone()))
        .layer(guard)
        .service(upstream.clone());
    let mut ended = None;
    for turn in 1..=60 {
        act(&mut agent, turn);
        match service.clone().oneshot(agent.request_of("r")).await {
            Ok(answer) => drop(answer.into_body().read().await.whole()),
            Err(cut) => {
                assert_eq!(reason_of(&cut), Some(TerminalReason::LoopDetected));
                assert_eq!(upstream.calls(), turn - 1, "it was not sent on");
                ended = Some(turn);
                break;
            }
        }
    }
    registry.find(&"r".parse().unwrap())[0].end(TerminalReason::Aborted);
    let mut told = told(events).await;
    // The last is the message of the end.
    told.pop();
    told.retain(|word| word.contains(" warned ") || word.contains(" stopped "));
    (ended, told)
}

/// Which of several comes next.
fn turn_of<'a>(all: &[&'a str], turn: usize) -> &'a str {
    all[(turn - 1) % all.len()]
}

#[tokio::test(start_paused = true)]
async fn a_poll_is_the_same_whatever_is_called_between() {
    for dialect in ALL {
        let polls = |agent: &mut Agent, turn: usize| match turn % 3 {
            0 => agent.calls("look", &format!(r#"{{"at":{turn}}}"#), Some("new")),
            _ => agent.does("job_status", "running"),
        };
        let (ended, told) = circles(LoopGuardLayer::new(), Agent::new(dialect), polls).await;
        assert_eq!(ended, Some(29), "at its twentieth poll, {dialect:?}");
        assert_eq!(
            told,
            [
                "same call warned job_status 10",
                "same call stopped job_status 20"
            ]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn two_calls_in_turn_end_at_twenty_and_not_if_a_result_changes() {
    for dialect in ALL {
        let agent = Agent::new(dialect);
        let (ended, told) = circles(LoopGuardLayer::new(), agent.clone(), |agent, turn| {
            agent.does(turn_of(&["open", "close"], turn), "done");
        })
        .await;
        assert_eq!(ended, Some(20), "{dialect:?}");
        assert_eq!(
            told,
            ["ping-pong warned close 10", "ping-pong stopped close 20"]
        );

        let exact = LoopGuardLayer::new().exact_results();
        let (ended, told) = circles(exact, agent, |agent, turn| {
            let result = format!("page {}", turn / 8);
            agent.does(turn_of(&["open", "close"], turn), &result);
        })
        .await;
        assert_eq!((ended, told), (None, vec![]), "{dialect:?}");
    }
}

/// What Codex sends of a command, in its older and in its newer form, and what other tools say.
#[tokio::test(start_paused = true)]
async fn a_result_that_only_took_another_time_in_another_process_is_the_same() {
    let older = |turn: usize, code: usize| {
        let metadata = format!(r#"{{"exit_code":{code},"duration_seconds":{turn}.5}}"#);
        format!(r#"{{"output":"no such file","metadata":{metadata}}}"#)
    };
    let newer = |turn: usize, code: usize| {
        format!("Exit code: {code}\nWall time: {turn}.5 seconds\nOutput:\nno such file")
    };
    let other = |turn: usize, code: usize| {
        let day = turn % 28 + 1;
        let ended = format!(r#""endedAt":"2026-01-{day:02}T10:00:00Z""#);
        format!(r#"{{"status":{code},"runs":[{{"wallTime":{turn},"pid":{turn}}}],{ended}}}"#)
    };
    let forms: [&dyn Fn(usize, usize) -> String; 3] = [&older, &newer, &other];
    for dialect in ALL {
        for form in forms {
            let same = |agent: &mut Agent, turn: usize| agent.does("shell", &form(turn, 1));
            let (ended, told) = circles(LoopGuardLayer::new(), Agent::new(dialect), same).await;
            assert_eq!(ended, Some(20), "{dialect:?}: {}", form(1, 1));
            let [warned, stopped] = ["warned shell 10", "stopped shell 20"];
            assert_eq!(told, [warned, stopped].map(|it| format!("same call {it}")));

            // Another exit code is another result.
            let changes = |agent: &mut Agent, turn: usize| agent.does("shell", &form(1, turn));
            let (ended, _) = circles(LoopGuardLayer::new(), Agent::new(dialect), changes).await;
            assert_eq!(ended, Some(30), "any result, {dialect:?}: {}", form(1, 1));
        }
        let exact = LoopGuardLayer::new().exact_results();
        let times = |agent: &mut Agent, turn: usize| agent.does("shell", &older(turn, 1));
        let (ended, _) = circles(exact, Agent::new(dialect), times).await;
        assert_eq!(ended, Some(30), "any result, {dialect:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_tenth_call_of_tools_that_there_are_not_ends_it() {
    let calls = |agent: &mut Agent, turn: usize| {
        let name = turn_of(&["guess", "guess_again", "job_status"], turn);
        agent.calls(name, &format!(r#"{{"at":{turn}}}"#), Some("no such tool"));
    };
    for dialect in ALL {
        let agent = Agent::new(dialect).has(&["job_status", "look"]);
        let (ended, told) = circles(LoopGuardLayer::new(), agent, calls).await;
        // What was called before the first request is not judged by its tools.
        assert_eq!(ended, Some(16), "{dialect:?}");
        assert_eq!(told, ["unknown tool stopped guess 10"]);

        let all = Agent::new(dialect).has(&["guess", "guess_again", "job_status"]);
        for agent in [all, Agent::new(dialect)] {
            let (ended, told) = circles(LoopGuardLayer::new(), agent, calls).await;
            assert_eq!((ended, told), (None, vec![]), "{dialect:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_polls_is_told_of_at_thirty_and_ends_it_at_sixty() {
    for dialect in ALL {
        let layer = LoopGuardLayer::new().polls(["process_wait"]);
        let (ended, told) = circles(layer, Agent::new(dialect), |agent, turn| {
            agent.does("process_wait", &format!("running for {turn} s"));
        })
        .await;
        assert_eq!(ended, Some(60), "{dialect:?}");
        let [warned, stopped] = ["warned process_wait 30", "stopped process_wait 60"];
        assert_eq!(told, [warned, stopped].map(|it| format!("same call {it}")));
    }
}

#[tokio::test(start_paused = true)]
async fn thirty_of_one_call_end_it_whatever_it_answers_and_other_arguments_do_not() {
    for dialect in ALL {
        let agent = || Agent::new(dialect);
        let (ended, told) = circles(LoopGuardLayer::new(), agent(), |agent, turn| {
            agent.does("read", &"line ".repeat(turn));
        })
        .await;
        assert_eq!(ended, Some(30), "{dialect:?}");
        assert_eq!(
            told,
            [
                "same arguments warned read 10",
                "same arguments warned read 20",
                "same arguments stopped read 30"
            ]
        );

        let (ended, told) = circles(LoopGuardLayer::new(), agent(), |agent, turn| {
            agent.calls("write", &format!(r#"{{"page":{turn}}}"#), Some("ok"));
        })
        .await;
        assert_eq!(
            (ended, told),
            (None, vec![]),
            "it does something, {dialect:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_order_of_keys_makes_no_other_call() {
    let written = [
        r#"{"a":1,"b":{"c":[2],"d":"3"}}"#,
        r#"{ "b": {"d":"3", "c":[2]}, "a":1 }"#,
    ];
    for dialect in ALL {
        let (ended, told) = circles(LoopGuardLayer::new(), Agent::new(dialect), |agent, turn| {
            agent.calls("look", turn_of(&written, turn), Some("nothing"));
        })
        .await;
        assert_eq!(ended, Some(20), "{dialect:?}");
        assert_eq!(
            told,
            ["same call warned look 10", "same call stopped look 20"]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_refused_ends_no_streak() {
    for dialect in ALL {
        let (ended, _) =
            circles(
                LoopGuardLayer::new(),
                Agent::new(dialect),
                |agent, turn| match turn % 3 {
                    0 => agent.calls("job_status", r#"{"job":7}"#, None),
                    _ => agent.does("job_status", "running"),
                },
            )
            .await;
        assert_eq!(ended, Some(29), "{dialect:?}");
    }

    // A tool of the program's that died of its own window did answer, with that: what
    // ends it is that it is the same call thirty times in a row.
    let run = Run::open();
    run.end_when_looping();
    let mut answered = 0;
    while run.terminal_reason().is_none() && answered < 100 {
        let tool = || run.tool("job_status").arguments(&7);
        if answered % 4 == 3 {
            let stopped = tool()
                .window(secs(1))
                .call(pending::<Result<(), Infallible>>());
            stopped.await.unwrap_err();
        }
        let status = tool().call(async { Ok::<_, Infallible>("running") });
        status.result_by(|found| *found).await.unwrap();
        answered += 1;
    }
    assert_eq!(answered, 24);
    assert_eq!(run.terminal_reason(), Some(TerminalReason::LoopDetected));
}

#[tokio::test(start_paused = true)]
async fn it_is_told_once_per_ten() {
    for dialect in ALL {
        let guard = LoopGuardLayer::new().stop(0).any_tool(0);
        let (ended, told) = circles(guard, Agent::new(dialect), |agent, _| {
            agent.does("job_status", "running");
        })
        .await;
        assert_eq!(ended, None);
        let each_ten = (1..=6).map(|tens| format!("same call warned job_status {tens}0"));
        assert_eq!(told, each_ten.collect::<Vec<_>>(), "{dialect:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_run_has_a_history_of_its_own() {
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(RunRegistry::new()))
        .layer(LoopGuardLayer::new())
        .service(Upstream::script(Script::answer(200, "{}")));
    let mut agents = ALL.map(Agent::new);
    for _ in 0..19 {
        for (agent, id) in agents.iter_mut().zip(["a", "b", "c"]) {
            agent.does("job_status", "running");
            Outcome::of(service.clone().oneshot(agent.request_of(id)))
                .await
                .whole();
        }
    }

    let run = Run::open();
    let sub_agents = [run.child(), run.child()];
    let agents = [&run, &sub_agents[0], &sub_agents[1]];
    agents.iter().for_each(|run| run.end_when_looping());
    let polls = async |run: &Run| {
        let call = run.tool("job_status").arguments(&7);
        let call = call.call(async { Ok::<_, Infallible>("running") });
        call.result_by(|found| *found).await.unwrap();
    };
    for _ in 0..19 {
        for agent in agents {
            polls(agent).await;
        }
    }
    assert!(agents.iter().all(|run| run.terminal_reason().is_none()));
    polls(&sub_agents[0]).await;
    let looped = Some(TerminalReason::LoopDetected);
    let reasons = agents.map(Run::terminal_reason);
    assert_eq!(reasons, [None, looped, None]);
}
