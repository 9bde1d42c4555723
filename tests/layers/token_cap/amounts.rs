//! Amounts that are large, or not whole.
//!
//! covers: H8

use futures_util::future::join_all;
use tower_agent::{Candidate, Run, TokenCaps, run::Price};

use super::{CAPPED, ask, capped, spent, usage};
use crate::support::{DONE, FINISH, Script, Upstream, chat, prompt};

/// The highest price: a thousand for a token.
fn dear() -> Candidate {
    Candidate::new("dear").price(Price::per_million(0.0, Price::MAX))
}

fn answer(usage: &str) -> Script {
    let script = Script::sse().data(chat("a")).data(FINISH).wait(1.0);
    script.data(usage).data(DONE)
}

#[tokio::test(start_paused = true)]
async fn a_cost_in_the_millions_reaches_its_cap() {
    for max in [18.5e6, 1e9] {
        let tokens = (max / 1000.0) as u32 + 100;
        let upstream = Upstream::script(answer(&usage(7, tokens)));
        let caps = TokenCaps::new().max_cost(max);
        let service = capped(caps).fallback([dear()]).retry(1).build(&upstream);
        let run = Run::open();

        service.ask(run.attach(prompt("dear"))).await.whole();

        let cost = f64::from(tokens) * 1000.0;
        assert!((spent(&run).cost - cost).abs() < 1.0, "{:?}", spent(&run));
        let next = service.ask(run.attach(prompt("dear"))).await;
        assert_eq!(next.reason, CAPPED, "{max}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_states_a_senseless_number_does_not_lower_the_count() {
    let most = usage(7, 1).replace(
        "\"completion_tokens\":1",
        &format!("\"completion_tokens\":{}", u64::MAX),
    );
    let upstream = Upstream::script(answer(&most));
    let caps = TokenCaps::new().max_cost(1e9).max_output_tokens(u32::MAX);
    let service = capped(caps).fallback([dear()]).retry(1).build(&upstream);
    let run = Run::open();

    join_all([(); 3].map(|()| ask(&service, &run))).await;

    assert_eq!(spent(&run).output_tokens, u64::MAX);
    assert!(spent(&run).cost > 1e22, "{:?}", spent(&run));
    assert_eq!(ask(&service, &run).await.reason, CAPPED);
}

#[tokio::test(start_paused = true)]
async fn a_cap_on_cost_is_named_as_it_was_set() {
    for (max, words) in [
        (19.99, "its cost of 19.99"),
        (1_234_567.89, "its cost of 1234567.89"),
    ] {
        let upstream = Upstream::script(answer(&usage(7, 2_000_000)));
        let caps = TokenCaps::new().max_cost(max);
        let service = capped(caps).fallback([dear()]).retry(1).build(&upstream);
        let run = Run::open();
        service.ask(run.attach(prompt("dear"))).await;

        let refused = service.ask(run.attach(prompt("dear"))).await;

        let message = refused.terminated().message();
        assert!(message.contains(words), "{message}");
    }
}
