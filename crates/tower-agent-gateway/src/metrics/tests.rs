//! covers: T86, T103

use tower_agent::{Owner, ReasonClass};

use super::*;

#[test]
fn labels_are_escaped() {
    let mut out = Exposition::default();
    out.family("f_total", Kind::Counter, "Help.");
    out.sample(&[("a", "x\\y\"z\n"), ("b", "")], 3);
    assert_eq!(
        out.finish(),
        "# HELP f_total Help.\n# TYPE f_total counter\nf_total{a=\"x\\\\y\\\"z\\n\",b=\"\"} 3\n"
    );
}

#[tokio::test]
async fn a_run_counts_once_and_what_was_lost_is_told() {
    let registry = RunRegistry::new();
    let metrics = Metrics::default();
    let counting = metrics.clone().watch(registry.subscribe());
    // Nobody counts yet: ten more than are held for an observer.
    for number in 0..RunRegistry::EVENTS / 2 + 5 {
        let run = registry.open(Owner::default(), format!("r-{number}").parse().unwrap());
        assert!(run.end(TerminalReason::Aborted));
        assert!(!run.end(TerminalReason::Aborted));
    }
    let _open = registry.open(Owner::default(), "open".parse().unwrap());
    drop(registry);
    counting.await;
    let text = metrics.text(1);
    let line = |line: &str| assert!(text.lines().any(|it| it == line), "{line}: {text}");
    line("agent_runs_open 1");
    line("agent_events_lost_total 11");
    // Of every run two events, of the last one.
    line("agent_runs_ended_total{reason=\"aborted\"} 512");
}

#[test]
fn reasons_that_others_make_up_are_one() {
    let custom = |name: &str| {
        let status = http::StatusCode::UNPROCESSABLE_ENTITY;
        reason(&TerminalReason::custom(name, ReasonClass::Limit, status))
    };
    assert_eq!(custom("a"), custom("b"));
    assert_eq!(reason(&TerminalReason::Stuck), "stuck");
}

#[test]
fn a_candidate_that_nobody_configured_is_no_label() {
    let metrics = Metrics::default();
    metrics.know(["a".to_owned()]);
    let label = |name| metrics.candidate(name);
    assert_eq!([Some("a"), Some("b"), None].map(label), ["a", "other", ""]);
}

#[test]
fn a_scrape_costs_the_same_however_many_runs_are_open() {
    let (metrics, registry) = (Metrics::default(), RunRegistry::new());
    let open = |number| registry.open(Owner::default(), format!("r-{number}").parse().unwrap());
    let scrape = || {
        let mut text = String::new();
        let cost = allocation_counter::measure(|| text = metrics.scrape(&registry));
        (text, cost.count_total)
    };
    let _few: Vec<_> = (0..10).map(open).collect();
    let (text, few) = scrape();
    assert!(text.contains("agent_runs_open 10\n"), "{text}");
    let _many: Vec<_> = (10..5_000).map(open).collect();
    let (text, many) = scrape();
    assert!(text.contains("agent_runs_open 5000\n"), "{text}");
    assert_eq!(many, few);
}
