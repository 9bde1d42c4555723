//! covers: C8

use axum::http::StatusCode;
use futures_util::FutureExt;
use http_body_util::BodyExt;
use tokio::task::unconstrained;
use tower_agent::Owner;

use super::*;

/// The answer to an observer from now on, and the sender whose `true` stops the stream.
async fn observe(registry: &RunRegistry) -> (Response, watch::Sender<bool>) {
    let (stop, stopping) = watch::channel(false);
    let all = EventFeed::new(registry.clone(), stopping);
    (resume(&all, None).await, stop)
}

/// The answer to an observer that has seen the event of this id.
async fn resume(all: &EventFeed, last: Option<&str>) -> Response {
    let mut headers = HeaderMap::new();
    if let Some(last) = last {
        headers.insert("last-event-id", last.parse().unwrap());
    }
    let last = headers.get("last-event-id").filter(|id| !id.is_empty());
    own_events(all.clone(), last.map(|id| id.to_str().unwrap()))
}

fn all_of(registry: &RunRegistry) -> (EventFeed, watch::Sender<bool>) {
    let (stop, stopping) = watch::channel(false);
    (EventFeed::new(registry.clone(), stopping), stop)
}

/// Opens a run for each of these numbers, which causes one event each.
fn open(registry: &RunRegistry, numbers: std::ops::Range<usize>) {
    for number in numbers {
        drop(registry.open(Owner::default(), format!("r-{number}").parse().unwrap()));
    }
}

/// The ids of the events that are ready; instead of an id, the data of a `lost` event.
async fn ids(answer: &mut Response) -> Vec<String> {
    let mut ids = Vec::new();
    while let Some(Some(event)) = unconstrained(chunk(answer)).now_or_never() {
        let id = event.lines().find_map(|line| line.strip_prefix("id: "));
        let data = event.lines().find_map(|line| line.strip_prefix("data: "));
        ids.push(id.or(data).unwrap().to_owned());
    }
    ids
}

fn numbers(numbers: std::ops::RangeInclusive<usize>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

async fn chunk(answer: &mut Response) -> Option<String> {
    let frame = answer.body_mut().frame().await?.unwrap();
    Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
}

/// Sends more events than the registry holds for an observer.
#[tokio::test]
async fn an_observer_that_is_too_slow_is_told_how_much_it_lost() {
    let registry = RunRegistry::new();
    let (mut answer, _stop) = observe(&registry).await;
    let many = RunRegistry::EVENTS + 10;
    open(&registry, 0..many);
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

/// The events of a shutdown are the last of the stream.
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

#[tokio::test]
async fn an_observer_that_comes_back_goes_on_after_the_last_event_it_saw() {
    let registry = RunRegistry::new();
    let (all, _stop) = all_of(&registry);
    open(&registry, 0..3);
    let mut from_now_on = resume(&all, None).await;
    let mut first = resume(&all, Some("0")).await;
    let mut back = resume(&all, Some("2")).await;
    let mut up_to_date = resume(&all, Some("3")).await;
    let mut empty = resume(&all, Some("")).await;
    open(&registry, 3..5);
    assert_eq!(ids(&mut from_now_on).await, numbers(4..=5));
    assert_eq!(ids(&mut first).await, numbers(1..=5));
    assert_eq!(ids(&mut back).await, numbers(3..=5));
    assert_eq!(ids(&mut up_to_date).await, numbers(4..=5));
    assert_eq!(ids(&mut empty).await, numbers(4..=5));
}

#[tokio::test]
async fn what_is_no_longer_kept_is_counted_as_lost() {
    let registry = RunRegistry::new();
    let (all, _stop) = all_of(&registry);
    // The subscription holds all events since the log was last read, then only the last of them.
    for (open_first, more) in [(1_000, 1_000), (1_000, 3_000)] {
        let newest = registry.list().len();
        open(&registry, newest..newest + open_first);
        let newest = newest + open_first;
        assert_eq!(
            ids(&mut resume(&all, Some(&newest.to_string())).await).await,
            [""; 0]
        );
        open(&registry, newest..newest + more);
        let newest = newest + more;
        let oldest = newest - RunRegistry::EVENTS + 1;

        let mut back = resume(&all, Some("5")).await;
        let mut last_lost = resume(&all, Some(&(oldest - 2).to_string())).await;
        let mut none_lost = resume(&all, Some(&(oldest - 1).to_string())).await;

        let lost = |events: usize| format!("{{\"event\":\"lost\",\"events\":{events}}}");
        let kept = numbers(oldest..=newest);
        assert_eq!(
            ids(&mut back).await,
            [&[lost(oldest - 6)], &kept[..]].concat()
        );
        assert_eq!(ids(&mut last_lost).await, [&[lost(1)], &kept[..]].concat());
        assert_eq!(ids(&mut none_lost).await, kept);
    }
}

/// An observer of a gateway that was restarted sends such an id.
#[tokio::test]
async fn an_id_above_all_ids_gets_all_that_is_kept() {
    let registry = RunRegistry::new();
    let (all, _stop) = all_of(&registry);
    let mut early = resume(&all, Some("7")).await;
    open(&registry, 0..3);
    let mut late = resume(&all, Some("4")).await;
    open(&registry, 3..4);
    assert_eq!(ids(&mut early).await, numbers(1..=4));
    assert_eq!(ids(&mut late).await, numbers(1..=4));
}

#[tokio::test]
async fn an_id_that_is_no_number_is_refused_by_name() {
    let (all, _stop) = all_of(&RunRegistry::new());
    for id in ["r-1", "-1", "1.5", "18446744073709551616"] {
        let mut answer = resume(&all, Some(id)).await;
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{id}");
        let text = chunk(&mut answer).await.unwrap();
        assert!(text.contains("last-event-id"), "{text}");
    }
}

/// Events are sent while observers reconnect.
#[tokio::test]
async fn an_observer_that_comes_back_misses_nothing_and_sees_nothing_twice() {
    let registry = RunRegistry::new();
    let (all, _stop) = all_of(&registry);
    let runtime = tokio::runtime::Handle::current();
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| open(&registry, 0..20_000));
        let back = || {
            let _timers = runtime.enter();
            let mut last = 0;
            while !opening.is_finished() {
                let came = async {
                    let mut answer = resume(&all, Some(&last.to_string())).await;
                    ids(&mut answer).await
                };
                for id in came.now_or_never().expect("nothing is waited for") {
                    match id.parse() {
                        Ok(id) => {
                            assert_eq!(id, last + 1);
                            last = id;
                        }
                        Err(_) => {
                            let lost: serde_json::Value = serde_json::from_str(&id).unwrap();
                            last += lost["events"].as_u64().unwrap();
                        }
                    }
                }
            }
            assert!(last > 0);
        };
        std::thread::scope(|scope| {
            scope.spawn(back);
            scope.spawn(back);
        });
    });
}

/// The shutdown comes from another thread, at any moment of a look at the stream.
#[test]
fn an_end_that_another_thread_sends_before_the_shutdown_is_told() {
    for _ in 0..5_000 {
        let registry = RunRegistry::new();
        let (all, stop) = all_of(&registry);
        let mut events = pin!(all.stream(None).1);
        open(&registry, 0..1);
        assert!(matches!(events.next().now_or_never(), Some(Some(_))));
        let shutdown = std::thread::spawn(move || {
            registry.shutdown();
            stop.send_replace(true);
        });
        let mut told = false;
        loop {
            match events.next().now_or_never() {
                Some(Some(event)) => told |= matches!(event, RunEvent::Ended { .. }),
                Some(None) => break,
                None => {}
            }
        }
        shutdown.join().unwrap();
        assert!(told);
    }
}

fn relayed(answer: &EventsAnswer) -> Vec<u64> {
    answer.events.iter().map(|event| event.number).collect()
}

#[tokio::test]
async fn another_gateway_gets_the_events_in_parts_and_is_told_how_many_it_lost() {
    let registry = RunRegistry::new();
    let (all, _stop) = all_of(&registry);
    let nothing = all.answer(Some(0), None);
    assert_eq!(
        (relayed(&nothing), nothing.position, nothing.more),
        (vec![], 0, false)
    );
    let many = RunRegistry::EVENTS + 100;
    open(&registry, 0..many);
    let (mut seen, mut last, mut lost) = (Vec::new(), 0, 0);
    loop {
        let answer = all.answer(Some(last), None);
        assert!(answer.events.len() <= RELAYED);
        seen.extend(relayed(&answer));
        (last, lost) = (answer.position, lost + answer.lost);
        if !answer.more {
            break;
        }
    }
    assert_eq!(lost, 100);
    assert_eq!(seen, (101..=many as u64).collect::<Vec<_>>());
    let none = all.answer(Some(last), None);
    assert_eq!(
        (relayed(&none), none.lost, none.position),
        (vec![], 0, many as u64)
    );
}

#[tokio::test(start_paused = true)]
async fn an_observer_elsewhere_begins_with_now_or_with_a_gateway_that_came_after_it() {
    let registry = RunRegistry::new();
    let (all, _stop) = all_of(&registry);
    tokio::time::advance(Duration::from_secs(10)).await;
    open(&registry, 0..3);
    let begins = |since: Option<u64>| {
        let answer = all.answer(None, since);
        (relayed(&answer), answer.position)
    };
    assert_eq!(begins(Some(5_000)), (vec![], 3));
    assert_eq!(begins(Some(20_000)), (vec![1, 2, 3], 3));
    assert_eq!(begins(None), (vec![1, 2, 3], 3));
    // A number of a gateway that ran before.
    assert_eq!(relayed(&all.answer(Some(7), Some(0))), [1, 2, 3]);
}
