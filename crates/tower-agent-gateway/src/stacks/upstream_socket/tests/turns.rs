//! What an upstream is sent at each turn, and by which way.

use std::time::Duration;

use http::header;
use serde_json::json;
use tokio::time;

use super::support::{
    POSTED, Upstream, ask, completed, delta, first_turn, message, request, request_of, second,
    send, service, sse, text, turn, user,
};
use crate::stacks::UpstreamLane;

#[tokio::test]
async fn the_second_turn_sends_what_is_new_with_the_id_of_the_first() {
    let mut upstream = Upstream::start().await;
    let (service, lane) = (upstream.service(), UpstreamLane::default());
    let mut fields = json!({"input": [user("a")], "tools": [1]});
    let asking = ask(&service, request_of(Some(&lane), fields.clone()));
    let output = json!({"type": "message", "id": "m_1", "status": "completed", "content": "b"});
    let answering = async {
        let mut peer = upstream.socket().await;
        assert_eq!(peer.path, "/v1/responses?a=b");
        let headers = &peer.headers;
        assert_eq!(headers[header::AUTHORIZATION], "Bearer secret");
        assert_eq!(headers["openai-beta"], "responses_websockets=2026-02-06");
        assert_eq!(headers["session-id"], "s");
        for name in ["content-type", "content-length", "accept"] {
            assert!(!headers.contains_key(name), "{name}");
        }
        let create = peer.create().await;
        let mut wanted = fields.clone();
        wanted["type"] = "response.create".into();
        wanted["model"] = "m".into();
        wanted["stream"] = true.into();
        assert_eq!(create, wanted);
        peer.answer("r1", &output).await;
        peer
    };
    let (answer, mut peer) = tokio::join!(asking, answering);
    let item = json!({"type": "response.output_item.done", "item": output});
    assert_eq!(answer.unwrap(), sse(&[delta("r1"), item, completed("r1")]));

    fields["input"] = json!([user("a"), {"type": "message", "content": "b"}, user("c")]);
    let asking = ask(&service, request_of(Some(&lane), fields));
    let answering = async {
        let create = peer.create().await;
        peer.answer("r2", &message("r2")).await;
        create
    };
    let (answer, create) = tokio::join!(asking, answering);

    assert!(answer.unwrap().contains("r2"));
    assert_eq!(create["previous_response_id"], "r1");
    assert_eq!(create["input"], json!([user("c")]));
    assert_eq!(create["tools"], json!([1]));
    let third = [user("a"), message("b"), user("c"), message("r2"), user("d")];
    let third = turn(&service, &lane, &mut peer, &third, "r3").await;
    assert_eq!(
        third["input"].as_array().unwrap().len(),
        5,
        "the tools are gone"
    );
    drop(lane);
    peer.closed().await;
    assert!(upstream.is_idle());
}

/// The chain goes on over many turns, and a failed one breaks it.
#[tokio::test]
async fn a_failed_response_is_not_continued() {
    let mut upstream = Upstream::start().await;
    let (service, lane) = (upstream.service(), UpstreamLane::default());
    let mut peer = first_turn(&mut upstream, &service, &lane).await;
    let mut input = second().to_vec();
    let create = turn(&service, &lane, &mut peer, &input, "r2").await;
    assert_eq!(create["previous_response_id"], "r1");
    input.extend([message("r2"), user("c")]);

    let asking = ask(&service, request(Some(&lane), &input));
    let failing = async {
        let create = peer.create().await;
        assert_eq!(create["previous_response_id"], "r2");
        peer.send(&delta("x")).await;
        peer.send(&json!({"type": "response.failed", "response": {"id": "r3"}}))
            .await;
    };
    let (answer, ()) = tokio::join!(asking, failing);
    drop(answer);

    let create = turn(&service, &lane, &mut peer, &input, "r4").await;
    assert_eq!(create["input"], json!(input));
    assert_eq!(create.get("previous_response_id"), None);
}

#[tokio::test]
async fn an_incomplete_response_is_continued() {
    let mut upstream = Upstream::start().await;
    let (service, lane) = (upstream.service(), UpstreamLane::default());
    let asking = ask(&service, request(Some(&lane), &[user("a")]));
    let answering = async {
        let mut peer = upstream.socket().await;
        peer.create().await;
        peer.send(&delta("x")).await;
        let item = json!({"type": "response.output_item.done", "item": message("r1")});
        peer.send(&item).await;
        let response = json!({"id": "r1", "status": "incomplete"});
        peer.send(&json!({"type": "response.incomplete", "response": response}))
            .await;
        peer
    };
    let (answer, mut peer) = tokio::join!(asking, answering);
    drop(answer);

    let create = turn(&service, &lane, &mut peer, &second(), "r2").await;
    assert_eq!(create["previous_response_id"], "r1");
}

#[tokio::test]
async fn what_has_no_lane_or_no_stream_goes_over_post() {
    let mut upstream = Upstream::start().await;
    let (plain, lane) = (upstream.service(), UpstreamLane::default());
    let http = service([upstream.candidate().websocket(false)]);
    let mut unstreamed = request(Some(&lane), &[user("a")]);
    *unstreamed.body_mut() = json!({"model": "m", "input": "a"}).to_string().into();
    for (service, request) in [
        (&plain, request(None, &[user("a")])),
        (&http, request(Some(&lane), &[user("a")])),
        (&plain, unstreamed),
    ] {
        let answer = send(service, request).await.unwrap();
        upstream.post().await;
        assert_eq!(text(answer).await.unwrap(), POSTED);
    }
    assert!(upstream.is_idle());
}

#[tokio::test]
async fn a_lane_has_one_response_at_a_time_and_the_next_goes_over_post() {
    let mut upstream = Upstream::start().await;
    let (service, lane) = (upstream.service(), UpstreamLane::default());
    let first = request(Some(&lane), &[user("a")]);
    let asking = send(&service, first);
    let beginning = async {
        let mut peer = upstream.socket().await;
        peer.create().await;
        peer.send(&delta("x")).await;
        peer
    };
    let (first, mut peer) = tokio::join!(asking, beginning);
    let first = first.unwrap();

    let beside = ask(&service, request(Some(&lane), &[user("b")])).await;
    assert_eq!(beside.unwrap(), POSTED);
    assert_eq!(upstream.post().await["input"], json!([user("b")]));

    peer.send(&completed("r1")).await;
    assert_eq!(
        text(first).await.unwrap(),
        sse(&[delta("x"), completed("r1")])
    );
    let create = turn(&service, &lane, &mut peer, &[user("a"), user("c")], "r2").await;
    assert_eq!(create["previous_response_id"], "r1");
}

#[tokio::test]
async fn another_account_has_another_socket() {
    let mut upstream = Upstream::start().await;
    let url = format!("http://{}/v1", upstream.addr);
    let candidate = tower_agent::Candidate::new("m").base_url(url).unwrap();
    let service = service([candidate.websocket(true).forward_credentials(true)]);
    let lane = UpstreamLane::default();
    let mut peers = Vec::new();
    for key in ["one", "two"] {
        let mut asked = request(Some(&lane), &[user("a")]);
        asked
            .headers_mut()
            .insert("authorization", key.parse().unwrap());
        let answering = async {
            let mut peer = upstream.socket().await;
            assert_eq!(peer.headers["authorization"], key);
            assert_eq!(peer.create().await.get("previous_response_id"), None);
            peer.answer(key, &message(key)).await;
            peer
        };
        let (answer, peer) = tokio::join!(ask(&service, asked), answering);
        assert!(answer.unwrap().contains(key));
        peers.push(peer);
    }
}

/// An idle socket answers no pings, and at an hour the upstream ends it.
#[tokio::test]
async fn an_old_or_idle_socket_is_replaced() {
    let mut upstream = Upstream::start().await;
    let (service, lane) = (upstream.service(), UpstreamLane::default());
    let minutes = |minutes: u64| async move {
        time::pause();
        time::advance(Duration::from_secs(60 * minutes)).await;
        time::resume();
    };
    let mut first = first_turn(&mut upstream, &service, &lane).await;
    minutes(3).await;
    let create = turn(&service, &lane, &mut first, &second(), "r2").await;
    assert_eq!(create["previous_response_id"], "r1");

    minutes(4).await;
    let mut peer = first_turn(&mut upstream, &service, &lane).await;
    first.closed().await;

    for _ in 0..18 {
        minutes(3).await;
        turn(&service, &lane, &mut peer, &second(), "r2").await;
    }
    minutes(1).await;
    drop(first_turn(&mut upstream, &service, &lane).await);
    peer.closed().await;
}

/// What an upstream says between two turns is not the beginning of the next answer.
#[tokio::test]
async fn what_is_said_aside_between_turns_changes_nothing() {
    let mut upstream = Upstream::start().await;
    let (service, lane) = (upstream.service(), UpstreamLane::default());
    let mut peer = first_turn(&mut upstream, &service, &lane).await;
    peer.send(&json!({"type": "codex.rate_limits"})).await;
    let create = turn(&service, &lane, &mut peer, &second(), "r2").await;
    assert_eq!(create["previous_response_id"], "r1");

    let late = json!({"type": "error", "error": {"code": "websocket_connection_limit_reached"}});
    peer.send(&late).await;
    drop(first_turn(&mut upstream, &service, &lane).await);
    assert!(upstream.is_idle());
}
