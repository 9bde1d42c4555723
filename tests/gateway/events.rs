//! What observers are told, as it happens.

use serde_json::Value;

use crate::net::{CHAT, Config, Gateway, Upstream, chat, run, within};

/// An event as it came: its name, its number, its data.
type Event = (String, u64, Value);

/// Reads the answer until this many events are there, or it ends.
async fn events(answer: &mut reqwest::Response, many: usize) -> Vec<Event> {
    let mut text = String::new();
    while text.matches("\n\n").count() < many {
        match within(answer.chunk()).await.unwrap() {
            Some(chunk) => text += std::str::from_utf8(&chunk).unwrap(),
            None => break,
        }
    }
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
        let upstream = Upstream::model().await;
        let gateway = Gateway::with(&Config::of(upstream.addr, ""), &[]).await;
        let observe = || gateway.get("/events").send();
        let mut one = within(observe()).await.unwrap();
        let mut two = within(observe()).await.unwrap();
        assert_eq!(one.headers()["content-type"], "text/event-stream");
        assert_eq!(one.headers()["cache-control"], "no-cache");
        let request = gateway.post(CHAT, chat("ok")).header("x-run-id", "r-1");
        let request = request.header("x-session-id", "s-1");
        assert_eq!(within(request.send()).await.unwrap().status(), 200);
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
                assert_eq!(event["sequence"], *number);
            }
            assert_eq!(end["reason"], "aborted");
            assert!(
                end["message"].as_str().unwrap().contains("aborted"),
                "{end}"
            );
        }
    });
}

/// An observer that stays does not keep the process.
#[test]
fn observers_are_told_of_the_shutdown_and_their_answer_ends() {
    run(async {
        let upstream = Upstream::model().await;
        let mut gateway = Gateway::with(&Config::of(upstream.addr, ""), &[]).await;
        let mut observer = within(gateway.get("/events").send()).await.unwrap();
        let request = gateway.post(CHAT, chat("stall")).header("x-run-id", "r-1");
        let _stream = within(request.send()).await.unwrap();
        gateway.signal("TERM");

        let told = events(&mut observer, usize::MAX).await;
        let names: Vec<_> = told.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["notice", "ended"]);
        assert_eq!(told[1].2["reason"], "shutdown");
        assert_eq!(gateway.ended().await.code(), Some(0));
    });
}

#[test]
fn an_observer_of_an_idle_gateway_does_not_keep_the_process() {
    run(async {
        let mut gateway = Gateway::embedded().await;
        let mut observer = within(gateway.get("/events").send()).await.unwrap();
        gateway.signal("TERM");
        assert_eq!(within(observer.chunk()).await.unwrap(), None);
        assert_eq!(gateway.ended().await.code(), Some(0));
    });
}
