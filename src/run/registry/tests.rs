mod keys;
mod owners;

use std::{sync::Arc, time::Duration};

use super::{Owner, RunRegistry};
use crate::run::TerminalReason;

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_run_that_was_forgotten() {
    for reason in [TerminalReason::Completed, TerminalReason::Aborted] {
        let registry = RunRegistry::new();
        let open = |id: &str, session: Option<&str>| {
            let session = session.map(Arc::from);
            let id = id.parse().unwrap();
            let run = registry.open_with(Owner::default(), id, session, RunRegistry::IDLE);
            run.end(reason.clone());
            Arc::downgrade(run.node())
        };
        // The last opens an id anew, if that has completed.
        let nodes = [open("a", None), open("b", Some("s")), open("b", Some("s"))];
        assert!(nodes[0].upgrade().is_some(), "remembered");

        tokio::time::sleep(RunRegistry::REMEMBERED).await;

        assert!(registry.list().is_empty());
        assert!(nodes.iter().all(|node| node.upgrade().is_none()));
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_limit_of_nothing_is_looked_at_once() {
    let registry = RunRegistry::new();
    let id = "a".parse().unwrap();
    let run = registry.open_with(Owner::default(), id, None, Duration::ZERO);
    // It would be due again at once, for ever.
    let _tidied = registry.list();
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
}
