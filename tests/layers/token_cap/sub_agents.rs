//! The caps of a run and those of its sub-agents.
//!
//! covers: H8

use futures_util::future::join_all;
use tower_agent::{Run, TerminalReason};

use super::{CAPPED, ask, capped, output, spent, ten, usage};
use crate::support::{DONE, FINISH, Script, Upstream};

/// A stream of this many tokens, as its upstream states at its end.
fn answer(tokens: u32) -> Script {
    let script = Script::sse().data(ten()).data(FINISH);
    script.data(usage(7, tokens)).data(DONE)
}

#[tokio::test(start_paused = true)]
async fn the_tokens_of_a_sub_agent_are_also_those_of_the_run_above() {
    let upstream = Upstream::script(Script::sse().repeat(100, 1.0, ten()));
    let service = capped(output(50)).retry(1).build(&upstream);
    let run = Run::open();
    let child = run.child();

    let calls = join_all([&run, &child].map(|run| ask(&service, run))).await;

    assert!(calls.iter().all(|call| call.reason == CAPPED));
    assert_eq!(run.terminal_reason(), CAPPED, "the run above has both");
    assert!(spent(&run).output_tokens >= 60);
    assert!(spent(&child).output_tokens <= 50);
}

#[tokio::test(start_paused = true)]
async fn a_sub_agent_under_lower_caps_does_not_end_the_run_above() {
    let parents = capped(output(1000)).retry(1);
    let parents = parents.build(&Upstream::script(answer(500)));
    let upstream = Upstream::script(answer(150));
    let children = capped(output(200)).retry(1).build(&upstream);
    let run = Run::open();
    ask(&parents, &run).await.whole();

    let child = run.child();
    for _ in 0..2 {
        ask(&children, &child).await.whole();
    }
    let refused = ask(&children, &child).await;

    assert_eq!((refused.reason, upstream.calls()), (CAPPED, 2));
    assert_eq!(child.terminal_reason(), CAPPED);
    assert_eq!(
        (run.terminal_reason(), spent(&run).output_tokens),
        (None, 800)
    );
    // The cap of the run above holds in a request of a sub-agent, too.
    let other = run.child();
    ask(&children, &other).await.whole();
    ask(&parents, &run).await.whole();
    let refused = ask(&children, &other).await;
    assert_eq!(refused.reason, CAPPED);
    assert_eq!(run.terminal_reason(), CAPPED);
}

/// A run has the caps of the layer that its own requests pass.
#[tokio::test(start_paused = true)]
async fn a_run_that_has_made_no_request_has_no_caps() {
    let upstream = Upstream::script(answer(150));
    let children = capped(output(100)).retry(1).build(&upstream);
    let run = Run::open();

    for _ in 0..3 {
        ask(&children, &run.child()).await.whole();
    }
    assert_eq!(
        (run.terminal_reason(), spent(&run).output_tokens),
        (None, 450)
    );

    let own = capped(output(400)).retry(1).build(&upstream);
    assert_eq!(ask(&own, &run).await.reason, Some(TerminalReason::TokenCap));
}
