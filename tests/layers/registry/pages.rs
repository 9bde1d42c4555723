//! A registry that is read in parts, and counted.
//!
//! covers: T86

use tower_agent::{RunRegistry, TerminalReason, registry::RunCursor};

use super::{id, us};

fn open(registry: &RunRegistry, number: usize) {
    let run = registry.open(us(), id(&format!("r-{number}")));
    if number % 2 == 1 {
        run.end(TerminalReason::Aborted);
    }
}

#[tokio::test(start_paused = true)]
async fn pages_show_each_run_once_newest_first_whatever_happens_between_them() {
    let registry = RunRegistry::new();
    for number in 0..100 {
        open(&registry, number);
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = registry.page(after, 7);
        assert!(page.runs.len() == 7 || page.next.is_none());
        seen.extend(page.runs.iter().map(|run| run.run.to_string()));
        // What is opened, or ends, meanwhile moves no page.
        open(&registry, 100 + seen.len());
        registry.abort(us(), &id("r-0"));
        let Some(next) = page.next else { break };
        after = Some(next.to_string().parse::<RunCursor>().unwrap());
    }
    let newest_first: Vec<_> = (0..100).rev().map(|number| format!("r-{number}")).collect();
    assert_eq!(seen, newest_first);
}

#[tokio::test(start_paused = true)]
async fn a_page_as_long_as_all_has_no_next_and_each_page_goes_on() {
    let registry = RunRegistry::new();
    assert!(registry.page(None, 5).next.is_none(), "there is nothing");
    for number in 0..5 {
        open(&registry, number);
    }
    let whole = registry.page(None, 5);
    assert_eq!((whole.runs.len(), whole.next), (5, None));
    assert_eq!(registry.page(None, usize::MAX).runs.len(), 5);
    let least = registry.page(None, 0);
    assert_eq!((least.runs.len(), least.next.is_some()), (1, true));
}

#[test]
fn what_no_cursor_prints_as_is_none() {
    for text in ["", "-1", "+1", "1 ", "a", "18446744073709551616"] {
        assert!(text.parse::<RunCursor>().is_err(), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn open_runs_are_counted_as_the_list_has_them() {
    let registry = RunRegistry::new();
    let in_list = || {
        let runs = registry.list();
        runs.iter().filter(|run| run.reason.is_none()).count()
    };
    for number in 0..50 {
        open(&registry, number);
        assert_eq!(registry.open_runs(), in_list());
    }
    // An id that is opened anew while the end of the one before is not told of yet
    // is one run, and so is one that is opened anew later.
    registry
        .open(us(), id("r-0"))
        .end(TerminalReason::Completed);
    open(&registry, 0);
    assert_eq!((registry.open_runs(), in_list()), (25, 25));
    tokio::time::sleep(RunRegistry::IDLE).await;
    assert_eq!((registry.open_runs(), in_list()), (0, 0), "all were idle");
}
