//! What observers are told, as it happens.
//!
//! covers: C8

use serde_json::Value;

use crate::{
    net::{Ask, CHAT, Streaming, Upstream, chat, run},
    support::{Config, Gateway},
};

/// An event as it came: its name, its number, its data.
pub(crate) type Event = (String, u64, Value);

/// Reads the answer until this many events are there, or it ends.
pub(crate) async fn events(stream: &mut Streaming, many: usize) -> Vec<Event> {
    let text = stream
        .read(|text| text.matches("\n\n").count() >= many)
        .await;
    let of_line = |event: &str, name: &str| {
        let mut lines = event.lines();
        let line = lines.find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} is missing: {event}"))
            .to_owned()
    };
    let event = |event: &str| {
        let number = of_line(event, "id: ").parse().unwrap();
        let data = serde_json::from_str(&of_line(event, "data: ")).unwrap();
        (of_line(event, "event: "), number, data)
    };
    text.split_terminator("\n\n").map(event).collect()
}

#[test]
fn observers_are_told_of_each_run_that_opens_and_ends() {
    run(async {
        let (_upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let observe = || gateway.get("/events").open();
        let mut one = observe().await;
        let mut two = observe().await;
        assert_eq!(one.headers["content-type"], "text/event-stream");
        assert_eq!(one.headers["cache-control"], "no-cache");
        let request = gateway.post(CHAT, chat("ok")).header("x-run-id", "r-1");
        let request = request.header("x-session-id", "s-1");
        assert_eq!(request.ask().await.status, 200);
        assert!(gateway.abort("r-1").await);

        for observer in [&mut one, &mut two] {
            let told = events(observer, 2).await;
            let [(opened, first, notice), (ended, second, end)] = &told[..] else {
                panic!("two events: {told:?}");
            };
            assert_eq!((opened.as_str(), ended.as_str()), ("notice", "ended"));
            assert_eq!(*second, first + 1);
            assert_eq!(notice["notice"]["kind"], "opened");
            for (event, number) in [(notice, first), (end, second)] {
                assert_eq!(event["run"], "r-1");
                assert_eq!(event["session"], "s-1");
                assert_eq!(event["registry_sequence"], *number);
            }
            assert_eq!(
                (&notice["sequence"], &end["sequence"]),
                (&1.into(), &2.into())
            );
            assert_eq!(end["reason"], "aborted");
            assert!(
                end["message"].as_str().unwrap().contains("aborted"),
                "{end}"
            );
        }
    });
}

/// covers: B6
#[test]
fn an_observer_that_lost_its_connection_is_told_what_it_missed() {
    run(async {
        let (_upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let mut observer = gateway.get("/events").open().await;
        let turn = async |id: &str| {
            let request = gateway.post(CHAT, chat("ok")).header("x-run-id", id);
            assert_eq!(request.ask().await.status, 200);
        };
        turn("r-1").await;
        turn("r-2").await;
        let told = events(&mut observer, 2).await;
        drop(observer);
        assert!(gateway.abort("r-1").await);

        let back = gateway.get("/events");
        let mut back = back
            .header("last-event-id", &told[0].1.to_string())
            .open()
            .await;
        turn("r-3").await;
        let told = events(&mut back, 3).await;
        let numbers = |(name, id, data): &Event| {
            let own = data["sequence"].as_u64().unwrap();
            (name.clone(), *id, data["run"].to_string(), own)
        };
        let expected = [
            ("notice", 2, "\"r-2\"", 1),
            ("ended", 3, "\"r-1\"", 2),
            ("notice", 4, "\"r-3\"", 1),
        ];
        let expected = expected.map(|(name, id, run, own)| (name.into(), id, run.into(), own));
        assert_eq!(told.iter().map(numbers).collect::<Vec<_>>(), expected);
    });
}

/// An observer that stays does not keep the process.
/// covers: C10
#[test]
fn observers_are_told_of_the_shutdown_and_their_answer_ends() {
    run(async {
        let upstream = Upstream::model().await;
        let mut gateway = Config::new("")
            .candidates(&["m"], upstream.addr)
            .start()
            .await;
        let mut observer = gateway.get("/events").open().await;
        let request = gateway.post(CHAT, chat("stall")).header("x-run-id", "r-1");
        let _stream = request.open().await;
        gateway.signal("TERM");

        let told = events(&mut observer, usize::MAX).await;
        let names: Vec<_> = told.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["notice", "ended"]);
        assert_eq!(told[1].2["reason"], "shutdown");
        assert_eq!(gateway.exit_status().await.code(), Some(0));
    });
}

/// covers: T104
#[test]
fn an_observer_of_an_idle_gateway_does_not_keep_the_process() {
    run(async {
        let mut gateway = Gateway::embedded().await;
        let mut observer = gateway.get("/events").open().await;
        gateway.signal("TERM");
        assert_eq!(observer.rest().await, "");
        assert_eq!(gateway.exit_status().await.code(), Some(0));
    });
}
