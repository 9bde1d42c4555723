//! A registry that is read in parts, and counted.
//!
//! covers: T86

use std::time::Duration;

use tower_agent::{
    RunRegistry, TerminalReason,
    registry::{RunCursor, RunPage},
};

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

/// Whoever merges pages of several registries shows a part of each.
#[tokio::test(start_paused = true)]
async fn a_page_goes_on_behind_any_of_its_runs_and_before_the_first() {
    let registry = RunRegistry::new();
    let ids = |page: &RunPage| -> Vec<_> {
        let ids = page.runs.iter().map(|run| run.run.to_string());
        ids.collect()
    };
    let empty = registry.page(None, 5);
    assert_eq!((empty.start, empty.places), (RunCursor::END, vec![]));
    for number in 0..5 {
        open(&registry, number);
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let page = registry.page(None, 3);
    assert_eq!(ids(&page), ["r-4", "r-3", "r-2"]);
    let ages = page.places.iter().map(|place| place.age.as_secs());
    assert_eq!(ages.collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(page.next, Some(page.places[2].cursor));

    open(&registry, 5);
    let behind = registry.page(Some(page.places[0].cursor), 2);
    assert_eq!(ids(&behind), ["r-3", "r-2"]);
    for same in [&page, &registry.page(Some(page.start), 3)] {
        assert_eq!(registry.page(Some(same.start), 3).places, page.places);
    }
    assert!(registry.page(Some(RunCursor::END), 3).runs.is_empty());
    assert!(registry.page(Some(empty.start), 3).runs.is_empty());
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
