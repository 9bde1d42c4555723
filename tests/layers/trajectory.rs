//! What the harness did to runs, written down.
//!
//! covers: D5

mod owners;
mod writer;

use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

use futures_util::future::pending;
use serde_json::Value;
use tokio::time::advance;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{
    BoxError, Candidate, Cooldowns, HardCeilingLayer, ModelFallbackLayer, Owner, ReplayBody,
    RetryBudgetLayer, Run, RunLayer, RunRegistry, Scope, StepTimeoutLayer, TerminalReason,
    ToolError, Trajectory, TurnCapLayer,
};

use crate::support::{
    LogCapture, Outcome, ReadExt, Script, Upstream, UpstreamBody, healthy, no_delay, prompt,
    reason_of, request, request_of, secs,
};

/// What was written, call by call, and what of it was not flushed yet.
#[derive(Clone, Debug, Default)]
struct Paper(Arc<Mutex<[Vec<Vec<u8>>; 2]>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap()[1].push(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let [written, pending] = &mut *self.0.lock().unwrap();
        written.append(pending);
        Ok(())
    }
}

impl Paper {
    fn trajectory(&self) -> Trajectory {
        Trajectory::new(self.clone())
    }

    /// Each write is one whole line, and flushed.
    fn lines(&self) -> Vec<Value> {
        let [written, pending] = &*self.0.lock().unwrap();
        assert!(pending.is_empty(), "not flushed");
        let whole = |line: &Vec<u8>| {
            let text = line.strip_suffix(b"\n").unwrap();
            assert!(!text.contains(&b'\n'));
            serde_json::from_slice(text).unwrap()
        };
        written.iter().map(whole).collect()
    }
}

fn open(registry: &RunRegistry, id: &str) -> Run {
    registry.open(Owner::default(), id.parse().unwrap())
}

async fn use_up(run: &Run, turns: u32) {
    let upstream = Upstream::script(Script::json().data("{}"));
    let service = TurnCapLayer::new(turns).layer(upstream);
    for _ in 0..turns {
        let answer = service
            .clone()
            .oneshot(run.attach(request()))
            .await
            .unwrap();
        answer.into_body().read().await.whole();
    }
    for _ in 0..3 {
        let refused = service.clone().oneshot(run.attach(request())).await;
        assert!(refused.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_at_its_cap_is_one_record() {
    let paper = Paper::default();
    let registry = RunRegistry::new().trajectory(&paper.trajectory());
    let run = open(&registry, "r-1");
    advance(secs(2)).await;

    use_up(&run, 30).await;

    let lines = paper.lines();
    assert_eq!(lines.len(), 1);
    let end = run.terminated().unwrap();
    let expected = serde_json::json!({
        "type": "harness_terminate", "kind": "harness_terminate", "reason": "turn_cap_reached",
        "at_turn": 30, "run": "r-1", "session": null, "elapsed_ms": 2000,
        "message": end.message(),
    });
    assert_eq!(lines[0], expected);
}

#[tokio::test(start_paused = true)]
async fn limits_and_clocks_of_runs_are_recorded_and_nothing_else() {
    let limits = [
        TerminalReason::TurnCap,
        TerminalReason::RetryBudget,
        TerminalReason::RunErrors,
        TerminalReason::ConsecutiveErrors,
        TerminalReason::LoopDetected,
        TerminalReason::Stuck,
        TerminalReason::IdleCircuitOpen,
        TerminalReason::StepTimeout,
        TerminalReason::Slow,
        TerminalReason::HardCeiling,
        TerminalReason::CallerDeadline,
    ];
    let others = [
        TerminalReason::Completed,
        TerminalReason::Aborted,
        TerminalReason::ClientDisconnect,
        TerminalReason::Superseded,
        TerminalReason::Shutdown,
    ];
    let paper = Paper::default();
    let registry = RunRegistry::new().trajectory(&paper.trajectory());
    for reason in limits.iter().chain(&others) {
        let run = open(&registry, reason.as_str());
        let child = run.child();
        run.end(reason.clone());
        run.end(TerminalReason::Stuck);
        assert_eq!(child.terminal_reason().as_ref(), Some(reason));
    }

    let lines = paper.lines();
    let told: Vec<_> = lines
        .iter()
        .map(|line| line["reason"].as_str().unwrap())
        .collect();
    assert_eq!(told, limits.each_ref().map(TerminalReason::as_str));
}

#[tokio::test(start_paused = true)]
async fn a_clock_of_a_call_is_no_record_and_one_of_the_run_is() {
    let paper = Paper::default();
    for (scope, records) in [(Scope::Found, 0), (Scope::Run, 1)] {
        let run = Run::open();
        run.record_to(&paper.trajectory());
        let service = StepTimeoutLayer::new(secs(5))
            .scope(scope)
            .layer(Upstream::script(Script::before_head().never()));
        let cut = service.oneshot(run.attach(request())).await.unwrap_err();
        assert_eq!(reason_of(&cut), Some(TerminalReason::StepTimeout));
        assert_eq!(paper.lines().len(), records, "{scope:?}");
    }
    assert_eq!(paper.lines()[0]["reason"], "step_timeout");
}

#[tokio::test(start_paused = true)]
async fn a_sub_agents_own_cap_is_recorded_where_its_parents_is() {
    let paper = Paper::default();
    let run = Run::open();
    run.record_to(&paper.trajectory());
    let (agent, other) = (run.child(), run.child());
    use_up(&agent, 2).await;
    assert_eq!(
        (other.terminal_reason(), run.terminal_reason()),
        (None, None)
    );
    assert_eq!(paper.lines().len(), 1);
    assert_eq!(paper.lines()[0]["run"], agent.id().to_string());
    assert_eq!(paper.lines()[0]["at_turn"], 2);
}

#[tokio::test(start_paused = true)]
async fn the_runs_own_takes_the_place_of_the_registrys() {
    let [own, registrys] = [Paper::default(), Paper::default()];
    let registry = RunRegistry::new().trajectory(&registrys.trajectory());
    let run = open(&registry, "a");
    run.record_to(&own.trajectory());
    run.record_to(&registrys.trajectory());
    run.end(TerminalReason::Stuck);
    open(&registry, "b").end(TerminalReason::Stuck);
    assert_eq!((own.lines().len(), registrys.lines().len()), (1, 1));
    assert_eq!(registrys.lines()[0]["run"], "b");
}

#[test]
fn runs_that_end_at_the_same_time_do_not_mix() {
    let paper = Paper::default();
    let registry = RunRegistry::new().trajectory(&paper.trajectory());
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let registry = &registry;
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .build()
                    .unwrap();
                let _entered = runtime.enter();
                for number in 0..50 {
                    let run = open(registry, &format!("{thread}:{number}"));
                    run.end(TerminalReason::Stuck);
                }
            });
        }
    });
    let lines = paper.lines();
    let runs: std::collections::BTreeSet<_> =
        lines.iter().map(|line| line["run"].to_string()).collect();
    assert_eq!((lines.len(), runs.len()), (400, 400));
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_fails_or_panics_is_logged_and_disturbs_nothing() {
    struct Broken(bool);
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            assert!(!self.0, "the writer panics");
            Err(io::Error::other("the disk is full"))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    for (panics, said) in [
        (false, "trajectory not written"),
        (true, "trajectory panicked"),
    ] {
        let heard = LogCapture::start();
        let trajectory = Trajectory::new(Broken(panics));
        for _ in 0..2 {
            let run = Run::open();
            run.record_to(&trajectory);
            assert!(run.end(TerminalReason::Stuck));
            assert_eq!(run.settled().await, TerminalReason::Stuck);
        }
        assert_eq!(heard.events(said).len(), 2);
    }
}

/// covers: F14
#[tokio::test(start_paused = true)]
async fn a_run_whose_time_is_up_starts_no_compaction_and_says_so() {
    let paper = Paper::default();
    let run = Run::open();
    run.record_to(&paper.trajectory());
    let limited = HardCeilingLayer::new(secs(60))
        .scope(Scope::Run)
        .layer(Upstream::script(Script::json().data("{}")));
    Outcome::of(limited.oneshot(run.attach(request())))
        .await
        .whole();
    advance(secs(60)).await;

    let mut started = false;
    let compaction = run.tool("compaction").call(async {
        started = true;
        Ok::<_, &str>(())
    });
    assert!(matches!(compaction.await, Err(ToolError::Terminated(_))));
    assert!(!started);

    let lines = paper.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(
        (&lines[0]["kind"], &lines[0]["reason"]),
        (&"harness_terminate".into(), &"max_turn_time".into())
    );
    let refused = serde_json::json!({
        "type": "harness_refused", "kind": "harness_refused", "name": "compaction",
        "reason": "max_turn_time", "run": run.id().to_string(), "session": null,
    });
    assert_eq!(lines[1], refused);

    for _ in 0..20 {
        drop(run.tool("search").watch(pending::<()>()));
    }
    assert_eq!(paper.lines().len(), 1 + 8, "no more than eight of a run");
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_while_a_run_is_held_open_for_its_last_call_is_recorded() {
    let paper = Paper::default();
    let run = Run::open();
    run.record_to(&paper.trajectory());
    let service = TurnCapLayer::new(1)
        .final_call(secs(60))
        .layer(Upstream::script(Script::json().data("{}")));
    let answer = service.clone().oneshot(run.attach(request())).await;
    answer.unwrap().into_body().read().await.whole();
    assert!(service.oneshot(run.attach(request())).await.is_err());

    drop(run.tool("search").watch(pending::<()>()));
    assert_eq!(run.terminal_reason(), None);
    drop(run.final_call(request()));

    let lines = paper.lines();
    let kinds: Vec<_> = lines.iter().map(|line| &line["kind"]).collect();
    assert_eq!(kinds, ["harness_refused", "harness_terminate"]);
    for line in &lines {
        assert_eq!(line["reason"], "turn_cap_reached");
    }
    assert_eq!(lines[0]["name"], "search");
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_for_another_reason_is_no_record() {
    let paper = Paper::default();
    let run = Run::open();
    run.record_to(&paper.trajectory());
    run.end(TerminalReason::Aborted);
    drop(run.tool("search").watch(pending::<()>()));
    assert_eq!(paper.lines(), Vec::<Value>::new());
}

/// covers: F14
#[tokio::test(start_paused = true)]
async fn timeouts_of_tools_move_to_no_other_model() {
    // Beside a call: the tool's alone.
    let upstream = Upstream::script(healthy());
    let fallback = ModelFallbackLayer::new(["a", "b"].map(Candidate::new))
        .budget(no_delay())
        .cooldowns(Cooldowns::new());
    let service = fallback.clone().layer(upstream.clone());
    let run = Run::open();
    for name in ["search", "compaction"] {
        let cut = run.tool(name).window(secs(5)).watch(pending::<()>()).await;
        assert_eq!(cut.unwrap_err().reason, TerminalReason::StepTimeout);
        Outcome::of(service.clone().oneshot(run.attach(prompt("a"))))
            .await
            .whole();
    }
    let asked = |upstream: &Upstream| -> Vec<_> {
        let seen = upstream.requests();
        seen.iter()
            .map(|seen| seen.body().contains("\"a\""))
            .collect()
    };
    assert_eq!(asked(&upstream), [true, true]);

    // Within a call: a layer of the program's that makes the prompt shorter first.
    let calls = Arc::new(Mutex::new(0));
    let compacting = service_fn({
        let calls = Arc::clone(&calls);
        move |request: http::Request<ReplayBody>| {
            *calls.lock().unwrap() += 1;
            let run = request.extensions().get::<Run>().unwrap().clone();
            async move {
                let tool = run.tool("compaction").window(secs(5));
                tool.watch(pending::<()>()).await?;
                Err::<http::Response<UpstreamBody>, BoxError>("unreachable".into())
            }
        }
    });
    let service = ServiceBuilder::new()
        .layer(fallback)
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(compacting);
    let error = service
        .clone()
        .oneshot(run.attach(prompt("a")))
        .await
        .unwrap_err();
    assert_eq!(reason_of(&error), Some(TerminalReason::StepTimeout));
    assert_eq!(*calls.lock().unwrap(), 1, "neither repeated nor moved");
    assert_eq!(run.terminal_reason(), None);
    // And it was nothing that the model did: it is not left alone.
    service.oneshot(run.attach(prompt("a"))).await.unwrap_err();
    assert_eq!(*calls.lock().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_runs_own_holds_for_a_child_that_a_registry_adopts() {
    let [own, registrys] = [Paper::default(), Paper::default()];
    let registry = RunRegistry::new().trajectory(&registrys.trajectory());
    let run = Run::open();
    run.record_to(&own.trajectory());
    let child = run.child();
    let service = RunLayer::new(registry.clone()).layer(Upstream::script(healthy()));
    let answer = service.oneshot(request_of(&child)).await.unwrap();
    answer.into_body().read().await.whole();

    child.end(TerminalReason::Stuck);

    assert!(!registry.list().is_empty(), "the child is in the registry");
    assert_eq!((own.lines().len(), registrys.lines().len()), (1, 0));
}
