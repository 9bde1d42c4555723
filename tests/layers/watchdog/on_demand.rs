//! covers: E1
//! Checks that the program asks for, and what a checker is shown.

use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_agent::{LoopGuardLayer, ReplayBody, RunLayer};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_run_is_checked_when_the_program_asks_and_the_latest_result_is_kept() {
    let run = Run::open();
    let events = run.subscribe();
    let replies = [verdict(2, Status::Looping), verdict(0, Status::Working)];
    let checker = Checker::new(replies);
    let watchdog = Watchdog::of_run(&run).checker(checker.clone()).ends(true);
    let watching = watch(watchdog.clone());
    assert!(run.snapshot().last_check.is_none());

    let looping = watchdog.check(&run).await.unwrap();
    assert_eq!(looping, Verdict::new(Status::Looping, "so it seems"));
    assert_eq!(
        run.terminal_reason(),
        None,
        "a check on demand ends nothing"
    );
    pass(3).await;
    let last = run.snapshot().last_check.unwrap();
    assert_eq!((last.verdict, last.ago), (looping, secs(3)));

    rounds(&run, 5);
    pass(1).await;
    let last = run.child().snapshot().last_check;
    assert!(last.is_none(), "a sub-agent's run has checks of its own");
    let last = run.snapshot().last_check.unwrap();
    assert_eq!((last.verdict.status, last.ago), (Status::Working, secs(1)));
    assert!(!checker.seen.lock().unwrap()[0].stuck);
    assert_eq!(
        told(&run, events).await,
        [
            checked(Status::Looping),
            LOOKS_STUCK,
            checked(Status::Working)
        ]
    );
    assert!(run.snapshot().last_check.is_some(), "also after the end");
    watching.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_check_on_demand_meets_the_limits_of_every_check_and_goes_with_its_run() {
    let run = Run::open();
    let watchdog = Watchdog::of_run(&run);
    assert_eq!(watchdog.check(&run).await, None, "there is no checker");

    let checker = Checker::new([Never]);
    let watchdog = watchdog.checker(checker.clone()).checks(1);
    let start = Instant::now();
    let clone = watchdog.clone();
    let (first, second) = tokio::join!(watchdog.check(&run), clone.check(&run));
    assert_eq!(first.unwrap().status, Status::Unknown);
    assert_eq!(second.unwrap().status, Status::Unknown);
    assert_eq!(
        (start.elapsed(), checker.most.load(Ordering::SeqCst)),
        (secs(10), 1)
    );

    let ends = async {
        sleep(secs(1)).await;
        run.end(TerminalReason::Aborted);
    };
    let start = Instant::now();
    let (none, ()) = tokio::join!(watchdog.check(&run), ends);
    assert_eq!((none, start.elapsed()), (None, secs(1)));
    assert_eq!(checker.under_way(), 0);
    assert_eq!(watchdog.check(&run).await, None);
    assert_eq!(checker.times(), 3, "an ended run is not checked");
}

#[tokio::test(start_paused = true)]
async fn a_long_verdict_is_kept_in_part() {
    let run = Run::open();
    let long = Verdict::new(Status::Working, "é".repeat(10_000));
    let watchdog = Watchdog::of_run(&run).checker(Checker::new([After(0, long.clone())]));
    assert_eq!(watchdog.check(&run).await, Some(long));
    let kept = run.snapshot().last_check.unwrap().verdict.reason;
    assert_eq!(kept, "é".repeat(512));
}

/// What the checker is shown of a run.
async fn shown(run: &Run) -> RunSnapshot {
    let checker = Checker::new([verdict(0, Status::Working)]);
    let watchdog = Watchdog::of_run(run).checker(checker.clone());
    watchdog.check(run).await.unwrap();
    let seen = checker.seen.lock().unwrap().pop();
    seen.unwrap()
}

async fn looks_up(run: &Run, page: u32) {
    let tool = run.tool("look_up").arguments(&("page", page));
    tool.watch(async {}).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_checker_sees_the_last_actions_and_their_words_only_if_the_program_allows() {
    let run = Run::open();
    assert!(shown(&run).await.actions.is_empty());
    for page in [1, 2, 1] {
        looks_up(&run, page).await;
    }
    let actions = shown(&run).await.actions;
    let names: Vec<_> = actions.iter().map(|action| &*action.name).collect();
    assert_eq!(names, ["look_up"; 3]);
    assert_eq!(actions[0].digest, actions[2].digest);
    assert_ne!(actions[0].digest, actions[1].digest);
    assert!(actions.iter().all(|action| action.excerpt.is_none()));

    run.keep_excerpts(9);
    for page in 10..25 {
        looks_up(&run, page).await;
    }
    let actions = shown(&run).await.actions;
    assert_eq!(actions.len(), 10);
    assert_eq!(actions[0].excerpt.as_deref(), Some("[\"page\",1"));
    assert!(run.snapshot().actions.is_empty(), "for checkers only");
}

#[tokio::test(start_paused = true)]
async fn a_checker_sees_the_task_that_the_program_set_or_allowed() {
    let ask = async |run: &Run, body: &'static str| {
        let model = LoopGuardLayer::new().layer(service_fn(|_: Request<ReplayBody>| async {
            Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::default()))
        }));
        let request = Request::post("/v1/chat/completions");
        let request = request.body(ReplayBody::from(body)).unwrap();
        model.oneshot(run.attach(request)).await.unwrap();
    };
    let first = r#"{"messages":[{"role":"user","content":"Fix the \"build\""}]}"#;
    let next = r#"{"messages":[{"role":"user","content":"Fix the \"build\""},
        {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function",
            "function":{"name":"make","arguments":"{\"target\": \"all\"}"}}]},
        {"role":"tool","tool_call_id":"1","content":"failed"},
        {"role":"user","content":"And?"}]}"#;

    let run = Run::open();
    ask(&run, first).await;
    ask(&run, next).await;
    let seen = shown(&run).await;
    assert_eq!(
        (seen.task, seen.actions[0].excerpt.as_deref()),
        (None, None)
    );

    let run = Run::open();
    run.keep_excerpts(100);
    ask(&run, first).await;
    ask(&run, next).await;
    let seen = shown(&run).await;
    assert_eq!(seen.task.as_deref(), Some("Fix the \"build\""));
    assert_eq!(&*seen.actions[0].name, "make");
    assert_eq!(
        seen.actions[0].excerpt.as_deref(),
        Some("{\"target\": \"all\"}")
    );
    assert_eq!(run.snapshot().task, None, "for checkers only");

    run.set_task("Mend it");
    ask(&run, next).await;
    assert_eq!(shown(&run).await.task.as_deref(), Some("Mend it"));
    run.set_task("x".repeat(5000));
    assert_eq!(shown(&run).await.task.unwrap().len(), 1024);
}

#[tokio::test(start_paused = true)]
async fn a_layer_allows_excerpts_of_all_its_runs() {
    for (max, excerpt) in [(0, None), (4, Some("[\"pa"))] {
        let layer = RunLayer::new(RunRegistry::new()).keep_excerpts(max);
        let server = layer.layer(service_fn(async |request: Request<()>| {
            let run: &Run = request.extensions().get().unwrap();
            looks_up(run, 1).await;
            let actions = shown(run).await.actions;
            assert_eq!(actions[0].excerpt.as_deref(), excerpt);
            Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::default()))
        }));
        server.oneshot(Request::new(())).await.unwrap();
    }
}
