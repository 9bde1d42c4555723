//! Owners that may use so many tokens in an hour.
//!
//! covers: H8

use std::{io::Write, sync::Arc, sync::Mutex, time::Duration};

use tokio::time::advance;
use tower_agent::{
    Candidate, OwnerCapLayer, OwnerCaps, RunId, RunRegistry, TokenCaps, Trajectory,
    layers::run::RequestRun, run::Price,
};

use super::{CAPPED, output, ten, usage};
use crate::support::{
    DONE, FINISH, Outcome, Place, Script, Stack, StackService, Upstream, prompt, with_header,
};

fn capped(registry: &RunRegistry, caps: TokenCaps) -> Stack {
    let caps = OwnerCaps::new().tokens_per_hour(caps);
    let layer = OwnerCapLayer::new(registry.clone(), caps);
    Stack::default().run(registry).layer(Place::OwnerCap, layer)
}

fn service(registry: &RunRegistry, caps: TokenCaps, upstream: &Upstream) -> StackService {
    capped(registry, caps).retry(1).build(upstream)
}

async fn ask(service: &StackService, owner: &'static str, run: &'static str) -> Outcome {
    let asked = with_header(prompt("a"), "authorization", owner);
    service.ask(with_header(asked, "x-run-id", run)).await
}

/// An answer of this many tokens.
fn answer(tokens: u32) -> Script {
    let script = Script::sse().data(ten()).data(FINISH);
    script.data(usage(7, tokens)).data(DONE)
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_at_its_cap_is_refused_with_each_run_for_an_hour_and_others_are_not() {
    let upstream = Upstream::script(answer(600));
    let written = Written::default();
    let registry = RunRegistry::new().trajectory(&Trajectory::new(written.clone()));
    let service = service(&registry, output(1000), &upstream);
    for run in ["r-1", "r-2"] {
        ask(&service, "one", run).await.whole();
    }

    for run in ["r-2", "r-3"] {
        let refused = ask(&service, "one", run).await;
        assert_eq!(refused.reason, CAPPED, "{run}");
        let message = refused.terminated().message();
        let words = "its caller used up, within an hour, its 1000 output tokens";
        assert!(message.contains(words), "{message}");
    }
    ask(&service, "two", "r-1").await.whole();
    assert_eq!(upstream.calls(), 3);
    let line = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    assert!(line.contains(r#""kind":"harness_refused","reason":"token_cap_reached","cap":"output_tokens_per_hour","limit":1000"#), "{line}");

    advance(Duration::from_secs(61 * 60)).await;
    ask(&service, "one", "r-4").await.whole();
    assert_eq!(upstream.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_stream_in_which_an_owner_exceeds_its_cap_ends_and_its_run_goes_on() {
    let upstream = Upstream::script(Script::sse().repeat(100, 1.0, ten()));
    let registry = RunRegistry::new();
    let service = service(&registry, output(55), &upstream);

    let cut = ask(&service, "one", "r-1").await;

    assert_eq!(cut.reason, CAPPED);
    assert_eq!(cut.frames, 6);
    let run = &registry.find(&"r-1".parse().unwrap())[0];
    assert_eq!(run.terminal_reason(), None);
    assert_eq!(ask(&service, "one", "r-1").await.reason, CAPPED);
    advance(Duration::from_secs(61 * 60)).await;
    let upstream_calls = upstream.calls();
    ask(&service, "one", "r-5").await;
    assert_eq!(upstream.calls(), upstream_calls + 1);
}

#[tokio::test(start_paused = true)]
async fn the_estimate_of_an_owner_is_corrected_too() {
    let upstream = Upstream::script(answer(2));
    let registry = RunRegistry::new();
    let service = service(&registry, output(20), &upstream);

    // Ten tokens while it streams, and two in the end.
    for run in ["r-1", "r-2", "r-3", "r-4", "r-5"] {
        ask(&service, "one", run).await.whole();
    }
}

/// The run above counts the tokens of a sub-agent's run, too; their owner counts them once.
#[tokio::test(start_paused = true)]
async fn the_tokens_of_a_sub_agent_count_once_for_its_owner() {
    let upstream = Upstream::script(answer(300));
    let registry = RunRegistry::new();
    let service = service(&registry, output(1000), &upstream);
    let ask_as = async |run: RequestRun| {
        let mut asked = with_header(prompt("a"), "authorization", "one");
        asked.extensions_mut().insert(run);
        service.ask(asked).await
    };
    let id = |id: &str| -> RunId { id.parse().unwrap() };

    ask_as(RequestRun::new(id("main"))).await.whole();
    for child in ["first", "second"] {
        let child = RequestRun::new(id(child)).child_of(id("main"));
        ask_as(child).await.whole();
    }

    // 900 tokens so far.
    ask_as(RequestRun::new(id("main"))).await.whole();
    let run = &registry.find(&id("main"))[0];
    assert_eq!(run.tokens_spent().unwrap().output_tokens, 1200);
    let refused = ask_as(RequestRun::new(id("main"))).await;
    assert_eq!(refused.reason, CAPPED);
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_no_streams_count_for_their_owner() {
    let text = |bytes: usize| {
        format!(
            r#""choices":[{{"message":{{"content":"{}"}}}}]"#,
            "x".repeat(bytes)
        )
    };
    let usage = r#""usage":{"prompt_tokens":9,"completion_tokens":600}"#;
    for (kind, body) in [
        ("short", format!("{{{},{usage}}}", text(9))),
        ("long", format!("{{{},{usage}}}", text(300_000))),
        ("unstated", format!("{{{}}}", text(2400))),
    ] {
        for retries in [false, true] {
            let upstream = Upstream::script(Script::answer(200, &body));
            let registry = RunRegistry::new();
            let stack = capped(&registry, output(1000));
            let stack = if retries { stack.retry(2) } else { stack };
            let service = stack.build(&upstream);
            for run in ["r-1", "r-2"] {
                ask(&service, "one", run).await.whole();
            }

            let refused = ask(&service, "one", "r-3").await;

            assert_eq!(refused.reason, CAPPED, "{kind}, {retries}");
            ask(&service, "two", "r-4").await.whole();
        }
    }
}

/// A stream that crosses a minute, and that its upstream corrects in the second one.
#[tokio::test(start_paused = true)]
async fn a_corrected_estimate_lowers_no_later_minute() {
    let estimated = Script::sse().repeat(90, 0.1, ten()).wait(60.0).data(FINISH);
    let corrected = estimated.data(usage(7, 2)).data(DONE);
    let upstream = Upstream::scripts([corrected, answer(600)]);
    let registry = RunRegistry::new();
    let service = service(&registry, output(1000), &upstream);

    ask(&service, "one", "r-1").await.whole();
    // The hour of the first minute is over, and that of the second is not.
    advance(Duration::from_secs(60 * 60)).await;

    for run in ["r-2", "r-3"] {
        ask(&service, "one", run).await.whole();
    }
    assert_eq!(ask(&service, "one", "r-4").await.reason, CAPPED);
}

#[tokio::test(start_paused = true)]
async fn a_large_cost_reaches_the_cap_of_its_owner_and_is_reported_as_it_was_set() {
    // Ten million, and the largest number that fits.
    for tokens in [10_000, u64::MAX] {
        let usage = usage(7, 1).replace("_tokens\":1}", &format!("_tokens\":{tokens}}}"));
        let script = Script::sse().data(ten()).data(FINISH).data(usage);
        let upstream = Upstream::script(script.data(DONE));
        let written = Written::default();
        let registry = RunRegistry::new().trajectory(&Trajectory::new(written.clone()));
        let dear = Candidate::new("a").price(Price::per_million(0.0, Price::MAX));
        let stack = capped(&registry, TokenCaps::new().max_cost(9_500_000.99));
        let service = stack.fallback([dear]).retry(1).build(&upstream);
        ask(&service, "one", "r-1").await.whole();

        assert_eq!(ask(&service, "one", "r-2").await.reason, CAPPED, "{tokens}");

        let line = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert!(
            line.contains(r#""cap":"cost_per_hour","limit":9500000.99,"#),
            "{line}"
        );
    }
}
