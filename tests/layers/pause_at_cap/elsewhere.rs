//! An upstream that is another server of these layers, and whose operator puts a request off.
//!
//! covers: F6, H12

use tower_agent::{Candidate, Cooldowns, ModelFallbackLayer, RetryBudget};

use super::Served;
use crate::support::Script;

#[tokio::test(start_paused = true)]
async fn what_it_puts_off_goes_to_the_caller_and_rests_nothing() {
    for code in ["run_paused", "frozen", "peers_lost"] {
        let body = format!(r#"{{"error":{{"message":"later","type":"{code}","code":"{code}"}}}}"#);
        let script = Script::answer(503, body).header("retry-after", "30");
        let cooldowns = Cooldowns::new();
        let served = Served::new(script, |stack| {
            let candidates = ["a", "b"].map(Candidate::new);
            let fallback = ModelFallbackLayer::new(candidates).cooldowns(cooldowns.clone());
            let budget = RetryBudget::new().per_run(1).consecutive_errors(1);
            stack.fallback(fallback).retry(budget)
        });
        for calls in 1..=3 {
            let outcome = served.turn("a").await;
            assert_eq!(outcome.status, 503, "{code}: {}", outcome.text);
            assert_eq!(outcome.header("retry-after"), Some("30"));
            assert!(outcome.text.contains(code), "{}", outcome.text);
            assert_eq!(served.upstream.calls(), calls, "{code}: one attempt each");
        }
        let snapshot = served.run().snapshot();
        assert_eq!((snapshot.errors, snapshot.reason), (0, None), "{code}");
        assert_eq!(served.upstream.models(), ["a", "a", "a"]);
        assert!(cooldowns.is_empty(), "{code}");
    }
}
