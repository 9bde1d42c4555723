//! A loop is found by what it does, before a clock would have found it.

use std::{convert::Infallible, time::Duration};

use tokio::time::{Instant, sleep};
use tower::{ServiceBuilder, ServiceExt};
use tower_agent::{
    HardCeilingLayer, LoopGuardLayer, Run, RunEvent, RunLayer, RunNotice, RunRegistry, Scope,
    TerminalReason, run::RunEvents,
};

use super::agent::{ALL, Agent, Dialect};
use crate::support::{ReadExt, Script, Upstream, secs};

/// How long the tool takes, whoever runs it.
const TOOL: Duration = secs(5);
const CLOCK: Duration = secs(30);

/// When the run of the events looked stuck and after how many actions, and when and as
/// what it ended.
async fn story(mut events: RunEvents) -> (Vec<(Duration, u32)>, Duration, TerminalReason) {
    let start = Instant::now();
    let mut found = Vec::new();
    loop {
        match events.next().await.unwrap() {
            RunEvent::Notice {
                notice: RunNotice::LooksStuck { repeats },
                ..
            } => found.push((start.elapsed(), repeats)),
            RunEvent::Ended { reason, .. } => return (found, start.elapsed(), reason),
            _ => {}
        }
    }
}

/// An agent that asks the model and polls a job, each time for five seconds, until it is
/// refused. The tool is one of the program's run, if it is given, else the agent's own.
async fn polls(
    dialect: Dialect,
    registry: &RunRegistry,
    program: bool,
) -> (Vec<(Duration, u32)>, Duration, TerminalReason) {
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(registry.clone()))
        .layer(HardCeilingLayer::new(CLOCK).scope(Scope::Run))
        .layer(LoopGuardLayer::new())
        .service(Upstream::script(Script::answer(200, "{}")));
    let mut agent = Agent::new(dialect);
    let agent = async {
        loop {
            let request = agent.request_of("r");
            let Ok(answer) = service.clone().oneshot(request).await else {
                return;
            };
            let run = answer.extensions().get::<Run>().unwrap().clone();
            answer.into_body().read().await.whole();
            if program {
                let call = run.run().tool("job_status").arguments(&[7]);
                let call = call.call(async {
                    sleep(TOOL).await;
                    Ok::<_, Infallible>("running")
                });
                if call.await.is_err() {
                    return;
                }
            } else {
                sleep(TOOL).await;
                agent.does("job_status", "running");
            }
        }
    };
    tokio::join!(story(registry.subscribe()), agent).0
}

/// covers: A9
#[tokio::test(start_paused = true)]
async fn five_calls_of_five_seconds_are_found_at_twenty_five_before_a_clock_of_thirty() {
    let own = ALL.map(|dialect| (dialect, false));
    for (dialect, program) in own.into_iter().chain([(Dialect::Chat, true)]) {
        let (found, ended, reason) = polls(dialect, &RunRegistry::new(), program).await;

        assert_eq!(found, [(secs(25), 5)], "{dialect:?} {program}");
        assert_eq!(
            (ended, reason),
            (CLOCK, TerminalReason::HardCeiling),
            "{dialect:?} {program}: it is told, and not ended"
        );
    }
}
