//! Whole gateways: what the stack makes of a socket's answers.

use axum::body::Body;
use http::{Request, Response};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::support::{
    Asked, POSTED, Upstream, delta, message, request, second, text, user, within,
};
use crate::{App, Config, Runs, stacks::UpstreamLane};

struct Gateway {
    app: App,
    lane: UpstreamLane,
}

impl Gateway {
    /// A gateway with these upstreams over WebSocket, in front of the tables in `settings`.
    fn new(settings: &str, upstreams: &[&Upstream]) -> Self {
        let candidates = upstreams.iter().enumerate().map(|(at, upstream)| {
            let url = format!("http://{}/v1", upstream.addr);
            format!("[[candidates]]\nmodel = \"m{at}\"\nbase_url = \"{url}\"\ntransport = \"websocket\"\n")
        });
        let text = format!("{settings}\n{}", candidates.collect::<String>());
        let config = Config::parse(&text, "test").unwrap();
        Self {
            app: App::new(&config, &Runs::new()).unwrap(),
            lane: UpstreamLane::default(),
        }
    }

    async fn ask(&self, input: &[Value]) -> Response<Body> {
        let request: Request<Body> = request(Some(&self.lane), input).map(Body::new);
        within(self.app.router().oneshot(request)).await.unwrap()
    }
}

#[tokio::test]
async fn a_lane_reaches_the_upstream_and_its_turns_are_continued() {
    let mut upstream = Upstream::start().await;
    let gateway = Gateway::new("", &[&upstream]);
    let mut peer = None;
    for (input, sent, id) in [
        (&second()[..1], json!([user("a")]), "r1"),
        (&second()[..], json!([user("b")]), "r2"),
    ] {
        let asking = async { text(gateway.ask(input).await).await.unwrap() };
        let answering = async {
            let mut peer = match peer.take() {
                Some(peer) => peer,
                None => upstream.socket().await,
            };
            let create = peer.create().await;
            assert_eq!(create["model"], "m0");
            assert_eq!(create["input"], sent);
            peer.answer(id, &message(id)).await;
            peer
        };
        let (answer, asked) = tokio::join!(asking, answering);
        assert!(answer.contains(&delta(id).to_string()), "{answer}");
        peer = Some(asked);
    }
}

#[tokio::test]
async fn a_rate_limit_moves_the_call_to_the_next_candidate_over_post_and_rests_the_first() {
    let (mut first, mut next) = (Upstream::start().await, Upstream::start().await);
    let gateway = Gateway::new("[fallback]\ncooldown = true", &[&first, &next]);
    let asking = async { text(gateway.ask(&[user("a")]).await).await.unwrap() };
    let refusing = async {
        let mut peer = first.socket().await;
        peer.create().await;
        peer.send(&json!({
            "type": "error", "status": 429, "headers": {"retry-after": "60"},
            "error": {"code": "rate_limit_exceeded", "message": "slow down"},
        }))
        .await;
        assert_eq!(next.post().await["model"], "m1");
    };
    let (answer, ()) = tokio::join!(asking, refusing);
    assert!(answer.contains("posted"), "{answer}");

    // The next call begins with the second candidate, by its first attempt.
    let asking = async { text(gateway.ask(&[user("a")]).await).await.unwrap() };
    let answering = async {
        let mut peer = next.socket().await;
        assert_eq!(peer.create().await["model"], "m1");
        peer.answer("r1", &message("r1")).await;
    };
    let (answer, ()) = tokio::join!(asking, answering);
    assert!(answer.contains("r1"), "{answer}");
    assert!(first.is_idle());
}

#[tokio::test]
async fn a_call_that_is_cut_before_its_content_is_repeated_over_post() {
    let mut upstream = Upstream::start().await;
    let gateway = Gateway::new("[retry]\nper_run = 1", &[&upstream]);
    let asking = async { text(gateway.ask(&[user("a")]).await).await.unwrap() };
    let cutting = async {
        let mut peer = upstream.socket().await;
        peer.create().await;
        peer.send(&json!({"type": "response.created", "response": {"id": "r1"}}))
            .await;
        drop(peer);
        upstream.asked().await
    };
    let (answer, asked) = tokio::join!(asking, cutting);
    let Asked::Post(headers, body) = asked else {
        panic!("another socket was opened");
    };
    assert_eq!(headers["x-attempt"], "2");
    assert_eq!(body["input"], json!([user("a")]));
    assert_eq!(answer, POSTED);
}

#[tokio::test]
async fn an_overflow_is_the_callers_400() {
    let mut upstream = Upstream::start().await;
    let gateway = Gateway::new("", &[&upstream]);
    let input = [user("a")];
    let asking = gateway.ask(&input);
    let refusing = async {
        let mut peer = upstream.socket().await;
        peer.create().await;
        peer.send(&json!({
            "type": "error", "status": 400,
            "error": {"code": "context_length_exceeded", "message": "too long"},
        }))
        .await;
    };
    let (answer, ()) = tokio::join!(asking, refusing);
    assert_eq!(answer.status(), 400);
    let body: Value = serde_json::from_str(&text(answer).await.unwrap()).unwrap();
    assert_eq!(body["error"]["code"], "context_length_exceeded");
}
