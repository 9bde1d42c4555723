//! covers: C8

use http_body_util::BodyExt;
use tower_agent::Owner;

use super::*;

/// The answer to an observer, and what stops it.
async fn observe(registry: &RunRegistry) -> (Response, watch::Sender<bool>) {
    let (stop, stopping) = watch::channel(false);
    let answer = events(State(Events::new(registry.clone(), stopping))).await;
    (answer, stop)
}

async fn chunk(answer: &mut Response) -> Option<String> {
    let frame = answer.body_mut().frame().await?.unwrap();
    Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
}

/// More than the registry holds for an observer.
#[tokio::test]
async fn an_observer_that_is_too_slow_is_told_how_much_it_lost() {
    let registry = RunRegistry::new();
    let (mut answer, _stop) = observe(&registry).await;
    let many = RunRegistry::EVENTS + 10;
    for number in 0..many {
        drop(registry.open(Owner::default(), format!("r-{number}").parse().unwrap()));
    }
    let first = chunk(&mut answer).await.unwrap();
    assert_eq!(
        first,
        "event: lost\ndata: {\"event\":\"lost\",\"events\":10}\n\n"
    );
    let second = chunk(&mut answer).await.unwrap();
    assert!(second.starts_with("event: notice\n"), "{second}");
    assert!(second.contains("\"run\":\"r-10\""), "{second}");
    assert!(second.ends_with("\nid: 11\n\n"), "{second}");
}

#[tokio::test(start_paused = true)]
async fn silence_is_filled_with_comments() {
    let registry = RunRegistry::new();
    let (mut answer, _stop) = observe(&registry).await;
    for _ in 0..3 {
        let asked = tokio::time::Instant::now();
        assert_eq!(chunk(&mut answer).await.unwrap(), ":\n\n");
        assert_eq!(asked.elapsed(), KEEP_ALIVE);
    }
}

/// Those at the shutdown are the last that there are.
#[tokio::test]
async fn what_is_there_at_the_end_is_told_before_it() {
    let registry = RunRegistry::new();
    let (mut answer, stop) = observe(&registry).await;
    let _run = registry.open(Owner::default(), "r-1".parse().unwrap());
    registry.shutdown();
    stop.send_replace(true);
    let opened = chunk(&mut answer).await.unwrap();
    assert!(opened.contains("\"kind\":\"opened\""), "{opened}");
    let ended = chunk(&mut answer).await.unwrap();
    assert!(ended.starts_with("event: ended\n"), "{ended}");
    assert!(ended.contains("\"reason\":\"shutdown\""), "{ended}");
    assert_eq!(chunk(&mut answer).await, None);
}
