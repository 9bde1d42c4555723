//! Limits of a run of several replicas that an operator raises at one of them.
//!
//! covers: H12, H4

use tower_agent::{RunExtension, registry::store::InMemoryRunStore};

use super::{Replica, heard};
use crate::support::healthy;

#[tokio::test(start_paused = true)]
async fn the_store_is_asked_with_the_raised_cap_where_it_was_raised() {
    let store = InMemoryRunStore::new();
    let [one, two]: [Replica; 2] =
        std::array::from_fn(|_| Replica::new(&store, healthy(), |stack| stack.max_turns(3)));
    for replica in [&one, &two] {
        assert_eq!(replica.ask("r").await.status, 200);
    }
    heard().await;
    let run = one.run("r").unwrap();
    run.extend(RunExtension::new().turns(2)).unwrap();
    for _ in 0..3 {
        assert_eq!(one.ask("r").await.status, 200);
    }
    assert_eq!((run.turns(), run.snapshot().max_turns), (5, Some(5)));
    let refused = one.ask("r").await;
    assert_eq!(
        refused.header("x-terminal-reason"),
        Some("turn_cap_reached")
    );
    assert_eq!(run.terminated().unwrap().at_turn(), Some(5));
    assert_eq!(one.upstream.calls(), 4);
    heard().await;
    let refused = two.ask("r").await;
    assert_eq!(
        refused.header("x-terminal-reason"),
        Some("turn_cap_reached")
    );
}
