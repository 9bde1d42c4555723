//! A limit on time that passes while its run has nothing in flight.
//!
//! covers: H16

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::HeaderValue;
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt};
use tower_agent::{
    AgentStack, HardCeilingLayer, Run, RunLayer, RunRegistry, Scope, TerminalReason, Terminated,
    Trajectory,
    registry::{AbortOutcome, WaitOutcome},
    run::RunCompletion,
};

use super::{id, us};
use crate::support::{ReadExt, Script, Upstream, healthy, prompt, request, secs, with_header};

const CEILING: Duration = secs(20);

/// What a trajectory wrote.
#[derive(Clone, Debug, Default)]
struct Records(Arc<Mutex<Vec<u8>>>);

impl io::Write for Records {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn layer(registry: &RunRegistry) -> RunLayer {
    RunLayer::new(registry.clone()).owner_by(|_| us())
}

/// Asks for one turn of the run `r`, under a ceiling or another limit of the run.
async fn turn(
    registry: &RunRegistry,
    idle: Duration,
    limit: HardCeilingLayer,
) -> Result<(), Terminated> {
    let stack = layer(registry)
        .idle(idle)
        .layer(limit.scope(Scope::Run).layer(Upstream::script(healthy())));
    let mut request = request();
    request
        .headers_mut()
        .insert("x-run-id", HeaderValue::from_static("r"));
    match stack.oneshot(request).await {
        Ok(answer) => {
            answer.into_body().read().await.whole();
            Ok(())
        }
        Err(error) => Err(Terminated::find(&*error).expect("its run is over").clone()),
    }
}

fn both() -> [(HardCeilingLayer, TerminalReason); 2] {
    [
        (HardCeilingLayer::new(CEILING), TerminalReason::HardCeiling),
        (
            HardCeilingLayer::optional(None).timeout(Some(CEILING)),
            TerminalReason::CallerDeadline,
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn finished_work_completes_after_its_idle_limit_although_the_ceiling_has_passed() {
    for (limit, _) in both() {
        let records = Records::default();
        let trajectory = Trajectory::new(records.clone());
        let registry = RunRegistry::new().trajectory(&trajectory);
        turn(&registry, CEILING, limit).await.unwrap();
        sleep(secs(1)).await;
        turn(&registry, CEILING, limit).await.unwrap();
        let run = registry.get(us(), &id("r")).unwrap();

        sleep(CEILING - secs(1)).await;
        assert_eq!(registry.list().len(), 1);
        assert_eq!(
            run.terminal_reason(),
            None,
            "nothing was in flight at its ceiling"
        );
        sleep(secs(1)).await;
        let _tidied = registry.list();

        assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
        turn(&registry, CEILING, limit).await.expect("a new run");
        assert_eq!(
            registry.get(us(), &id("r")).unwrap().snapshot().generation,
            2
        );
        drop((registry, trajectory));
        assert_eq!(records.0.lock().unwrap().len(), 0, "no record of a limit");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_comes_within_the_idle_limit_hears_the_limit_that_passed() {
    for (limit, reason) in both() {
        let registry = RunRegistry::new();
        turn(&registry, CEILING, limit).await.unwrap();
        // The agent's own tool.
        sleep(CEILING - secs(1)).await;
        turn(&registry, CEILING, limit).await.unwrap();
        sleep(secs(7)).await;

        let heard = turn(&registry, CEILING, limit).await.unwrap_err();

        assert_eq!(heard.reason, reason);
        assert_eq!(heard.elapsed, CEILING, "and not when the request came");
        assert!(heard.message().contains("after 20s"), "{}", heard.message());
        let run = registry.get(us(), &id("r")).unwrap();
        assert_eq!(run.elapsed(), CEILING);
        assert_eq!(run.snapshot().elapsed, CEILING);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stack_with_a_ceiling_and_no_idle_limit_has_half_of_the_ceiling() {
    let registry = RunRegistry::new();
    let stack = AgentStack::server(&registry)
        .runs(|runs| runs.owner_by(|_| us()))
        .ceiling(CEILING)
        .service(Upstream::script(healthy()));
    let ask = || with_header(prompt("m"), "x-run-id", "r");
    let answer = stack.clone().oneshot(ask()).await.unwrap();
    answer.into_body().read().await.whole();
    let run = registry.get(us(), &id("r")).unwrap();

    for (after, reason) in [
        (CEILING / 2 - secs(1), None),
        (secs(1), Some(TerminalReason::Completed)),
    ] {
        sleep(after).await;
        let _tidied = registry.list();
        assert_eq!(run.terminal_reason(), reason);
    }
}

#[tokio::test(start_paused = true)]
async fn work_of_the_program_hears_the_ceiling_of_its_idle_run() {
    type Work = fn(&Run);
    let works: [Work; 3] = [
        |run| assert!(run.check().is_err()),
        |run| drop(run.attach(request())),
        |run| drop(run.tool("t").call(std::future::ready(Ok::<_, String>(())))),
    ];
    for (number, work) in works.iter().enumerate() {
        let registry = RunRegistry::new();
        let run = registry.open(us(), id("r"));
        let limit = HardCeilingLayer::new(CEILING).scope(Scope::Run);
        let service = limit.layer(Upstream::script(healthy()));
        let answer = service.oneshot(run.attach(request())).await.unwrap();
        answer.into_body().read().await.whole();
        sleep(CEILING).await;
        assert_eq!(run.terminal_reason(), None);

        work(&run);

        assert_eq!(
            run.terminal_reason(),
            Some(TerminalReason::HardCeiling),
            "{number}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_run_behind_its_ceiling_ends_as_who_ends_it_says() {
    type End = fn(&RunRegistry, &Run);
    let ends: [(End, TerminalReason); 4] = [
        (
            |_, run| assert!(run.end(TerminalReason::Completed)),
            TerminalReason::Completed,
        ),
        (
            |registry, _| assert_eq!(registry.abort(us(), &id("r")), AbortOutcome::Ended),
            TerminalReason::Aborted,
        ),
        (
            |registry, _| assert_eq!(registry.shutdown(), 1),
            TerminalReason::Shutdown,
        ),
        (
            |_, run| assert_eq!(run.complete(), RunCompletion::Completed),
            TerminalReason::Completed,
        ),
    ];
    for (end, reason) in ends {
        let registry = RunRegistry::new();
        turn(&registry, secs(60), HardCeilingLayer::new(CEILING))
            .await
            .unwrap();
        let run = registry.get(us(), &id("r")).unwrap();
        sleep(CEILING * 2).await;

        end(&registry, &run);

        assert_eq!(run.terminal_reason(), Some(reason));
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_an_idle_run_resolves_when_the_run_completes() {
    let registry = RunRegistry::new();
    turn(&registry, secs(60), HardCeilingLayer::new(CEILING))
        .await
        .unwrap();
    let began = Instant::now();

    let waited = registry.wait(us(), &id("r"), secs(1000)).await;

    assert!(matches!(
        waited,
        WaitOutcome::Ended {
            reason: TerminalReason::Completed,
            ..
        }
    ));
    assert_eq!(began.elapsed(), secs(60));
}

#[tokio::test(start_paused = true)]
async fn a_wait_learns_of_the_ceiling_that_the_next_request_hears() {
    let registry = RunRegistry::new();
    turn(&registry, secs(60), HardCeilingLayer::new(CEILING))
        .await
        .unwrap();
    let waits = registry.wait(us(), &id("r"), secs(1000));
    let comes_back = async {
        sleep(secs(30)).await;
        turn(&registry, secs(60), HardCeilingLayer::new(CEILING)).await
    };

    let (waited, heard) = futures_util::join!(waits, comes_back);

    assert_eq!(heard.unwrap_err().reason, TerminalReason::HardCeiling);
    assert!(matches!(
        waited,
        WaitOutcome::Ended {
            reason: TerminalReason::HardCeiling,
            ..
        }
    ));
}

/// A pause is work in flight: a person is asked, and a ceiling goes on.
#[tokio::test(start_paused = true)]
async fn a_paused_run_ends_at_its_ceiling() {
    let registry = RunRegistry::new();
    turn(&registry, secs(60), HardCeilingLayer::new(CEILING))
        .await
        .unwrap();
    let run = registry.get(us(), &id("r")).unwrap();
    let _asked = run.pause();

    sleep(CEILING).await;
    let _looked = registry.list();

    assert_eq!(run.terminal_reason(), Some(TerminalReason::HardCeiling));
}

/// Such a run has no other end.
#[tokio::test(start_paused = true)]
async fn a_run_that_never_completes_for_being_idle_ends_at_its_ceiling() {
    let registry = RunRegistry::new();
    turn(&registry, Duration::MAX, HardCeilingLayer::new(CEILING))
        .await
        .unwrap();
    let run = registry.get(us(), &id("r")).unwrap();

    sleep(CEILING).await;
    let _looked = registry.list();

    assert_eq!(run.terminal_reason(), Some(TerminalReason::HardCeiling));
}

#[tokio::test(start_paused = true)]
async fn a_sub_agent_that_works_at_the_ceiling_ends_with_its_idle_parent() {
    let registry = RunRegistry::new();
    turn(&registry, secs(60), HardCeilingLayer::new(CEILING))
        .await
        .unwrap();
    let run = registry.get(us(), &id("r")).unwrap();
    let agent = run.child();
    let limit = HardCeilingLayer::new(CEILING * 2);
    let service = limit.layer(Upstream::script(Script::before_head().never()));
    let call = service.oneshot(agent.attach(request()));

    let error = call.await.unwrap_err();

    assert_eq!(run.terminal_reason(), Some(TerminalReason::HardCeiling));
    let heard = Terminated::find(&*error).unwrap();
    assert_eq!(heard.reason, TerminalReason::HardCeiling);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_said_to_be_done_completes_when_its_work_is() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(
        Script::sse()
            .data("data: {}\n\n")
            .wait(5.0)
            .data("data: [DONE]\n\n"),
    );
    let service = layer(&registry).layer(upstream);
    let ask = || with_header(request(), "x-run-id", "r");
    let first = service.clone().oneshot(ask()).await.unwrap();
    let run = registry.get(us(), &id("r")).unwrap();

    assert_eq!(run.complete(), RunCompletion::Pending);
    // A request that comes meanwhile is served.
    let second = service.clone().oneshot(ask()).await.unwrap();
    first.into_body().read().await.whole();
    assert_eq!(run.terminal_reason(), None);
    second.into_body().read().await.whole();

    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!(run.complete(), RunCompletion::Completed);
    let next = service.oneshot(ask()).await.unwrap();
    next.into_body().read().await.whole();
    assert_eq!(
        registry.get(us(), &id("r")).unwrap().snapshot().generation,
        2
    );
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_over_keeps_its_reason_when_it_is_said_to_be_done() {
    let registry = RunRegistry::new();
    let run = registry.open(us(), id("r"));
    run.end(TerminalReason::Aborted);

    assert_eq!(
        run.complete(),
        RunCompletion::Ended(TerminalReason::Aborted)
    );
}

/// A run outside of a registry has no id by which a request could find it again.
#[tokio::test(start_paused = true)]
async fn a_program_that_completes_its_run_lets_its_work_end_and_starts_none() {
    let run = Run::open();
    let tool = run.tool("t").call(async {
        sleep(secs(3)).await;
        Ok::<_, String>(7)
    });
    let tool = tokio::spawn(tool);
    tokio::task::yield_now().await;

    assert_eq!(run.complete(), RunCompletion::Pending);

    assert!(run.check().is_err(), "no work starts");
    assert_eq!(tool.await.unwrap().unwrap(), 7);
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
}
