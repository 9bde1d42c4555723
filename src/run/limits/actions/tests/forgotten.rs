//! covers: T83

use super::*;
use crate::{
    llm::Called,
    registry::{Owner, RunRegistry},
    run::{ToolArguments, handle::Run, reason::TerminalReason},
};

const ARGUMENTS: ToolArguments = ToolArguments {
    digest: 1,
    excerpt: None,
};

fn kept(run: &Run) -> Option<usize> {
    run.run_state().rare().actions.kept()
}

/// Asks with a history of so many calls, and is answered with one more.
fn acts(run: &Run, calls: usize) {
    let mut agent = Agent::unlimited();
    for call in 0..calls {
        agent.acts("search", &format!(r#"{{"page":{call}}}"#), "found");
    }
    let body = format!(r#"{{"messages":[{}]}}"#, agent.messages.join(","));
    let history = History::read(&Dialect::Any, body.as_bytes(), &run.actions().places()).unwrap();
    run.actions().read_history(&history, false);
    run.actions().expect(vec![Called {
        id: Some(7),
        name: b"search"[..].into(),
        arguments: 7,
        written: b"",
    }]);
    run.actions().ran("poll".into(), ARGUMENTS, Some(2));
}

/// What is remembered of a run that ended is remembered ten thousand times.
#[tokio::test(start_paused = true)]
async fn what_a_run_did_is_kept_as_long_as_it_lives() {
    let registry = RunRegistry::new();
    let open = |id: &str| registry.open(Owner::default(), id.parse().unwrap());
    for reason in [TerminalReason::TurnCap, TerminalReason::Completed] {
        let run = open(reason.as_str());
        let child = run.child();
        assert_eq!(kept(&run), Some(0), "nothing is made before it is needed");
        for run in [&run, &child] {
            acts(run, 40);
            assert!(kept(run).is_some_and(|kept| kept > 50));
        }

        run.end(reason);

        for run in [&run, &child] {
            assert_eq!(kept(run), None);
            acts(run, 40);
            run.end_when_looping();
            assert_eq!(kept(run), None, "nor what comes late");
            assert!(run.actions().places().is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_run_was_ended_for_is_known_after_its_end() {
    let run = Run::open();
    run.end_when_looping();
    for _ in 0..20 {
        run.actions().ran("poll".into(), ARGUMENTS, Some(2));
    }
    let message = run.snapshot().message.unwrap();
    assert!(message.contains("called poll 20 times"), "{message}");
    assert_eq!(kept(&run), None);
}
