//! covers: T86, T103

use http::StatusCode;
use metrics_exporter_prometheus::PrometheusRecorder;
use tower_agent::{Owner, ReasonClass, RunRegistry, TerminalReason};

use super::*;

fn recorded(act: impl FnOnce(&PrometheusHandle)) {
    let recorder: PrometheusRecorder = builder().unwrap().build_recorder();
    let handle = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        describe();
        act(&handle);
    });
}

fn scrape(recorder: &PrometheusHandle, registry: &RunRegistry) -> String {
    let gauges = Gauges {
        open_runs: registry.open_runs(),
        held_bytes: 0,
        webhooks: 0,
        store: None,
    };
    render(recorder, gauges)
}

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|it| it == line), "{line}: {text}");
}

#[test]
fn labels_are_escaped() {
    recorded(|recorder| {
        metrics::counter!("f_total", "a" => "x\\y\"z\n", "b" => "").increment(3);
        has(&recorder.render(), "f_total{a=\"x\\\\y\\\"z\\n\",b=\"\"} 3");
    });
}

#[tokio::test]
async fn a_run_counts_once_and_none_is_lost() {
    recorded(|recorder| {
        let registry = RunRegistry::new();
        // More ends at once than the registry holds events for an observer.
        let ended = RunRegistry::EVENTS + 5;
        for number in 0..ended {
            let run = registry.open(Owner::default(), format!("r-{number}").parse().unwrap());
            assert!(run.end(TerminalReason::Aborted));
            assert!(!run.end(TerminalReason::Aborted));
        }
        let _open = registry.open(Owner::default(), "open".parse().unwrap());
        let text = scrape(recorder, &registry);
        has(&text, "agent_runs_open 1");
        has(
            &text,
            &format!("agent_runs_ended_total{{reason=\"aborted\"}} {ended}"),
        );
    });
}

#[tokio::test]
async fn reasons_that_others_make_up_are_one() {
    recorded(|recorder| {
        let registry = RunRegistry::new();
        let end = |id: &str, reason| {
            registry
                .open(Owner::default(), id.parse().unwrap())
                .end(reason)
        };
        for name in ["a", "b"] {
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            end(
                name,
                TerminalReason::custom(name, ReasonClass::Limit, status),
            );
        }
        end("c", TerminalReason::Stuck);
        let text = recorder.render();
        has(&text, "agent_runs_ended_total{reason=\"other\"} 2");
        has(&text, "agent_runs_ended_total{reason=\"stuck\"} 1");
    });
}

/// Two gateways of one process share the recorder, and each shows its own open runs.
#[tokio::test]
async fn a_scrape_shows_the_open_runs_of_its_own_registry() {
    recorded(|recorder| {
        let registries = [RunRegistry::new(), RunRegistry::new()];
        let _open = registries[0].open(Owner::default(), "r".parse().unwrap());
        for (registry, open) in registries.iter().zip([1, 0]) {
            has(
                &scrape(recorder, registry),
                &format!("agent_runs_open {open}"),
            );
        }
    });
}

#[tokio::test]
async fn a_scrape_costs_the_same_however_many_runs_are_open_or_remembered() {
    recorded(|recorder| {
        let registry = RunRegistry::new();
        let open = |number| registry.open(Owner::default(), format!("r-{number}").parse().unwrap());
        let mut last = 0;
        let mut remember = |runs: usize| {
            for number in last..runs {
                assert!(open(number).end(TerminalReason::Aborted));
            }
            last = runs;
        };
        let cost_of_scrape = |open: usize| {
            let mut text = String::new();
            // The first scrapes also sort the values since the last one, and both copies of the
            // help texts, which would count.
            for _ in 0..3 {
                let _sorted = scrape(recorder, &registry);
            }
            let cost = allocation_counter::measure(|| text = scrape(recorder, &registry));
            has(&text, &format!("agent_runs_open {open}"));
            cost.count_total
        };
        remember(100);
        let few = cost_of_scrape(0);
        remember(100_000);
        let remembered = cost_of_scrape(0);
        let _open: Vec<_> = (100_000..200_000).map(open).collect();
        assert_eq!([remembered, cost_of_scrape(100_000)], [few, few]);
    });
}
