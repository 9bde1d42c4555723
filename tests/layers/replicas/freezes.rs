//! New runs stay out at all replicas.
//!
//! covers: H4, H11

use super::*;

#[tokio::test(start_paused = true)]
async fn a_freeze_holds_at_all_replicas_and_one_that_was_cut_off_hears_of_it_later() {
    let [one, two] = replicas(&healthy(), |stack| stack);
    assert_eq!(one.ask("open").await.status, 200);
    two.store.cut();
    assert!(one.registry.freeze(None));
    heard().await;
    assert_eq!(one.ask("new").await.status, 503);
    assert_eq!(two.ask("new").await.status, 200, "it is cut off");
    two.store.mend();
    heard().await;
    assert_eq!(two.ask("newer").await.status, 503);
    // A run that is open at the other replica goes on here.
    assert_eq!(two.ask("open").await.status, 200);
    assert!(two.registry.thaw(None));
    heard().await;
    assert_eq!(one.ask("newer").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_starts_knows_of_the_freeze_and_one_that_lost_the_store_keeps_what_it_told()
{
    let store = InMemoryRunStore::new();
    let one = Replica::new(&store, healthy(), |stack| stack);
    assert!(one.registry.freeze(Owner::anonymous()));
    heard().await;
    let two = Replica::new(&store, healthy(), |stack| stack);
    // As after a reconnect.
    two.store.cut();
    two.store.mend();
    heard().await;
    assert_eq!(two.ask("r").await.status, 503);
    assert_eq!(two.registry.frozen(), one.registry.frozen());
    // What an operator does while the store is away is told once it is back.
    two.store.cut();
    assert!(two.registry.thaw(Owner::anonymous()));
    assert_eq!(two.ask("r").await.status, 200);
    assert_eq!(one.ask("s").await.status, 503);
    two.store.mend();
    heard().await;
    assert_eq!(one.ask("s").await.status, 200);
    assert!(two.registry.frozen().is_nobody());
}
