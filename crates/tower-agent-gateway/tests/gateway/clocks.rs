//! Clocks that wait for heartbeats, and clocks that only observe.

use std::{iter, time::Duration};

use crate::{
    net::{
        Ask, CHAT, DONE, Play, SSE_HEAD, Step, TOKEN, Upstream, asks, chat, chunk, error_event, run,
    },
    support::Config,
};

/// covers: A7, A10
#[test]
fn a_local_model_is_given_up_when_its_heartbeats_stop() {
    run(async {
        let beat = format!("{SSE_HEAD}{}", chunk(": ping\n\n"));
        let upstream = Upstream::http1(Play::Script(vec![Step::write(beat), Step::Hang])).await;
        let profile = "[attempt]\nprofile = \"local\"\nheartbeat = \"100ms\"";
        let gateway = Config::new(profile)
            .candidate("m", upstream.addr)
            .start()
            .await;
        let body = "{\"model\":\"m\",\"stream\":true,\"messages\":[]}";
        assert_eq!(gateway.post(CHAT, body).ask().await.status, 504);

        let (_slow, gateway) = Config::new(profile).start_with_model(&["m"]).await;
        // 700 ms, without a heartbeat.
        let slow = gateway.post(CHAT, chat("slow-503")).ask().await;
        assert_eq!(slow.status, 503, "the upstream's own word");
    });
}

/// covers: H14
#[test]
fn a_candidate_that_crawls_is_replaced_while_it_is_held_and_cut_afterwards() {
    run(async {
        let token = [
            Step::Pause(Duration::from_millis(50)),
            Step::write(chunk(TOKEN)),
        ];
        let crawl = iter::repeat_n(token, 200).flatten();
        let crawl = iter::once(Step::write(SSE_HEAD)).chain(crawl).collect();
        let crawls = Upstream::http1(Play::Script(crawl)).await;
        let whole = format!("{SSE_HEAD}{}{}0\r\n\r\n", chunk(TOKEN), chunk(DONE));
        let serves = Upstream::http1(Play::Script(vec![Step::write(whole)])).await;
        // The stream is a hundred times below the floor, however busy the machine is.
        let floor = "[attempt]\nmin_tokens_per_second = 1000\nover = \"1s\"";
        let gateway = async |settings: &str| {
            let config = Config::new(format!("{floor}\n{settings}"));
            let config = config.candidate("crawling", crawls.addr);
            config.candidate("serving", serves.addr).start().await
        };
        let body = asks("crawling", true);

        let held = gateway("hold = \"20s\"").await;
        let answer = held.post(CHAT, body.clone()).ask().await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("x-served-model"), Some("serving"));
        assert_eq!(answer.text(), format!("{TOKEN}{DONE}"));

        let at_once = gateway("").await;
        let answer = at_once.post(CHAT, body).ask().await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("x-served-model"), Some("crawling"));
        let text = answer.text();
        assert!(text.starts_with(TOKEN), "{text}");
        let (event, error) = error_event(text);
        assert_eq!(error["error"]["code"], "slow", "{event}");
    });
}

/// covers: A12
#[test]
fn a_clock_that_observes_ends_nothing_and_tells_what_it_would_have_ended() {
    run(async {
        for clock in [
            "[run]\nmax_turn_time = \"100ms\"",
            "[run]\nstep_timeout = \"100ms\"",
            "[run]\ntimeout = \"100ms\"",
            "[attempt]\nstep_timeout = \"100ms\"",
            "[attempt]\nfirst_token_timeout = \"100ms\"",
            "[attempt]\nmax_time = \"100ms\"",
        ] {
            let settings = format!("{clock}\nobserve = true");
            let (_upstream, gateway) = Config::new(settings).start_with_model(&["m"]).await;
            let mut events = gateway.get("/events").open().await;
            // 700 ms.
            let answer = gateway.post(CHAT, chat("slow-503")).ask().await;
            assert_eq!(
                (answer.status.as_u16(), answer.reason()),
                (503, None),
                "{clock}"
            );
            events.until("\"kind\":\"would_have_ended\"").await;
        }
    });
}

/// covers: B6
#[test]
fn the_text_of_an_answer_that_was_cut_is_told_if_it_is_kept() {
    run(async {
        for (settings, told) in [("[run]\npartial = 4", true), ("", false)] {
            let (_upstream, gateway) = Config::new(settings).start_with_model(&["m"]).await;
            let mut events = gateway.get("/events").open().await;
            let mut stream = gateway.open_stream("one", "r-1", "s-1").await;
            stream.until("\n\n").await;
            assert!(gateway.abort("r-1").await);
            let ended = events.until("\"reason\":\"aborted\"").await;
            let ended = ended + &events.until("\n\n").await;
            assert_eq!(ended.contains("\"partial\":\""), told, "{ended}");
        }
    });
}
