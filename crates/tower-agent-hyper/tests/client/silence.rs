//! Calls that are dropped after silence, and what becomes of the connections.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::{sync::Barrier, time::Instant};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_agent::{BoxError, ReplayBody, RetryBudget, RetryBudgetLayer, StepTimeoutLayer};
use tower_agent_hyper::{HyperService, SILENCE};

use crate::{
    http2::{DATA, END_HEADERS, Frames, HEADERS, STATUS_200, http2},
    upstream::{OK, Peer, Server, ask, client, send, within},
};

const WINDOW: Duration = Duration::from_secs(1);

/// A server whose connections are dead from a time on: they acknowledge, and nothing is processed.
/// Later connections are well.
async fn mortal(is_http2: bool, width: usize) -> (Server, Arc<AtomicBool>) {
    let is_dead = Arc::new(AtomicBool::new(false));
    let (dead, together) = (Arc::clone(&is_dead), Arc::new(Barrier::new(width)));
    let server = Server::start(move |mut peer| {
        let (dead, together) = (Arc::clone(&dead), Arc::clone(&together));
        async move {
            let is_mortal = !dead.load(Ordering::SeqCst);
            if is_http2 {
                let mut frames = Frames::accept(peer).await.unwrap();
                while let Some(stream) = frames.request().await {
                    if is_mortal && dead.load(Ordering::SeqCst) {
                        std::future::pending::<()>().await;
                    }
                    frames.answer(stream).await;
                }
                return;
            }
            while peer.request().await.is_some() {
                if is_mortal && dead.load(Ordering::SeqCst) {
                    return peer.hang().await;
                }
                if is_mortal {
                    together.wait().await;
                }
                peer.send(OK).await;
            }
        }
    })
    .await;
    (server, is_dead)
}

/// Calls with one repeat after a silent attempt.
async fn call(client: HyperService, server: &Server) -> Result<Response<()>, BoxError> {
    let budget = RetryBudget::new().max_attempts_per_candidate(2);
    let service = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(budget))
        .layer(StepTimeoutLayer::new(WINDOW))
        .service(client);
    let request = server.post(r#"{"model":"m","messages":[],"stream":true}"#);
    let answer = within(service.oneshot(request)).await?;
    let (head, body) = answer.into_parts();
    within(body.collect()).await?;
    Ok(Response::from_parts(head, ()))
}

#[tokio::test]
async fn after_a_dead_http_2_connection_a_fresh_one_serves_at_the_second_try() {
    let (server, is_dead) = mortal(true, 1).await;
    let client = http2().build().unwrap();
    call(client.clone(), &server).await.unwrap();
    is_dead.store(true, Ordering::SeqCst);

    let began = Instant::now();
    let answer = call(client.clone(), &server).await.unwrap();

    assert_eq!(answer.status(), 200);
    assert!(began.elapsed() < 2 * WINDOW, "{:?}", began.elapsed());
    assert_eq!(server.connections(), 2);
    // The dead connection serves nobody again.
    call(client, &server).await.unwrap();
    let at: Vec<_> = server.notes().into_iter().map(|(at, _)| at).collect();
    assert_eq!(at, [0, 0, 1, 1]);
}

/// Before its first answer a connection is in the pool too, as HTTP/2 shares it.
#[tokio::test]
async fn a_http_2_connection_that_was_dead_from_the_start_is_replaced() {
    let server = Server::start(|peer| async move {
        let number = peer.number;
        let mut frames = Frames::accept(peer).await.unwrap();
        if number == 0 {
            frames.request().await;
            std::future::pending::<()>().await;
        }
        frames.answer_all().await;
    })
    .await;

    let answer = call(http2().build().unwrap(), &server).await.unwrap();

    assert_eq!(answer.status(), 200);
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn after_three_dead_idle_http_1_connections_a_fresh_one_serves_at_the_second_try() {
    let (server, is_dead) = mortal(false, 3).await;
    let client = client();
    let opened = (0..3).map(|_| call(client.clone(), &server));
    for answer in futures_util::future::join_all(opened).await {
        answer.unwrap();
    }
    assert_eq!(server.connections(), 3);
    is_dead.store(true, Ordering::SeqCst);

    let began = Instant::now();
    let answer = call(client.clone(), &server).await.unwrap();

    assert_eq!(answer.status(), 200);
    assert!(began.elapsed() < 2 * WINDOW, "{:?}", began.elapsed());
    assert_eq!(server.connections(), 4);
    call(client, &server).await.unwrap();
    let last: Vec<_> = server
        .notes()
        .into_iter()
        .skip(3)
        .map(|(at, _)| at)
        .collect();
    assert_eq!(last[1..], [3, 3], "{last:?}");
}

/// Sends a request, lets `waits` pass on tokio's clock, and drops the call without an answer.
async fn leave_after(waits: Duration, mut client: HyperService, request: Request<ReplayBody>) {
    let mut call = client.call(request);
    let sent = tokio::time::timeout(Duration::from_millis(100), &mut call).await;
    assert!(sent.is_err(), "it is answered");
    tokio::time::pause();
    tokio::time::advance(waits).await;
    tokio::time::resume();
}

/// An HTTP/2 server that answers every other request.
async fn every_other() -> Server {
    Server::start(|peer| async move {
        let mut frames = Frames::accept(peer).await.unwrap();
        while let Some(stream) = frames.request().await {
            frames.answer(stream).await;
            frames.request().await;
        }
    })
    .await
}

#[tokio::test]
async fn a_caller_that_leaves_costs_a_healthy_http_2_connection_nothing() {
    let server = every_other().await;
    let client = http2().build().unwrap();
    ask(&client, server.post("a")).await.unwrap();

    leave_after(Duration::ZERO, client.clone(), server.post("b")).await;

    ask(&client, server.post("c")).await.unwrap();
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_call_without_a_run_that_is_dropped_after_a_long_silence_costs_the_connection() {
    let server = every_other().await;
    // Without PINGs, whose answers would prove that the peer is well.
    let client = http2().http2_keep_alive_interval(None).build().unwrap();
    ask(&client, server.post("a")).await.unwrap();

    leave_after(SILENCE, client.clone(), server.post("b")).await;

    ask(&client, server.post("c")).await.unwrap();
    assert_eq!(server.connections(), 2);
}

/// The stream of a slow model is silent while another of the same connection is not.
#[tokio::test]
async fn a_silent_stream_beside_one_that_moves_costs_no_connection() {
    let server = every_other().await;
    let client = http2().build().unwrap();
    ask(&client, server.post("a")).await.unwrap();
    let mut silent = client.clone().call(server.post("b"));
    let sent = tokio::time::timeout(Duration::from_millis(100), &mut silent).await;
    assert!(sent.is_err(), "it is answered");
    tokio::time::pause();
    tokio::time::advance(SILENCE).await;
    tokio::time::resume();

    ask(&client, server.post("c")).await.unwrap();
    // What was read since the silent request went out proves that the peer is well.
    tokio::time::pause();
    tokio::time::advance(SILENCE).await;
    tokio::time::resume();
    drop(silent);

    leave_after(Duration::ZERO, client.clone(), server.post("d")).await;
    ask(&client, server.post("e")).await.unwrap();
    assert_eq!(server.connections(), 1);
}

/// A server of HTTP/1 that does not answer the request `silent`; its first two answers wait for
/// each other.
async fn silent_at_times() -> Server {
    let (together, answered) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
    Server::start(move |mut peer: Peer| {
        let (together, answered) = (Arc::clone(&together), Arc::clone(&answered));
        async move {
            while peer.request().await.is_some() {
                if peer.is_asked("silent") {
                    return peer.hang().await;
                }
                if answered.fetch_add(1, Ordering::SeqCst) < 2 {
                    together.wait().await;
                }
                peer.send(OK).await;
            }
        }
    })
    .await
}

/// Makes two idle connections.
async fn opened(client: &HyperService, server: &Server) {
    let (a, b) = tokio::join!(ask(client, server.post("a")), ask(client, server.post("b")));
    a.and(b).unwrap();
    assert_eq!(server.connections(), 2);
}

/// A model may think for longer than a caller stays.
#[tokio::test]
async fn a_caller_that_leaves_a_silent_call_costs_no_idle_connection() {
    let server = silent_at_times().await;
    let client = client();
    opened(&client, &server).await;

    leave_after(SILENCE, client.clone(), server.post("silent")).await;

    ask(&client, server.post("c")).await.unwrap();
    assert_eq!(server.connections(), 2);
}

/// An idle connection that another call has used since the silence began is alive.
#[tokio::test]
async fn a_silent_call_spares_the_connections_that_were_read_meanwhile() {
    let server = silent_at_times().await;
    let client = client();
    opened(&client, &server).await;
    let steps = StepTimeoutLayer::new(WINDOW).layer(client.clone());
    let silent = server.post(r#"{"model":"m","messages":[],"stream":true}"#);
    let silent = silent.map(|_| ReplayBody::from("silent".to_owned()));

    let (silent, meanwhile) = tokio::join!(within(steps.oneshot(silent)), async {
        tokio::time::sleep(WINDOW / 2).await;
        ask(&client, server.post("c")).await
    });

    assert!(silent.is_err() && meanwhile.is_ok());
    ask(&client, server.post("d")).await.unwrap();
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn a_stream_that_falls_silent_costs_its_connection() {
    let server = Server::start(|peer| async move {
        let number = peer.number;
        let mut frames = Frames::accept(peer).await.unwrap();
        if number > 0 {
            return frames.answer_all().await;
        }
        let stream = frames.request().await.unwrap();
        frames.send(HEADERS, END_HEADERS, stream, STATUS_200).await;
        // The caller waits for this frame, and then for another.
        tokio::time::sleep(Duration::from_millis(100)).await;
        frames.send(DATA, 0, stream, b"data: {}\n\n").await;
        std::future::pending().await
    })
    .await;
    let client = http2().build().unwrap();
    let steps = StepTimeoutLayer::new(WINDOW).layer(client.clone());
    let answer = within(steps.oneshot(server.post("{}"))).await.unwrap();
    within(answer.into_body().collect()).await.unwrap_err();

    ask(&client, server.post("b")).await.unwrap();

    assert_eq!(server.connections(), 2);
}

/// The silence is the caller's if the answer waits for it.
#[tokio::test]
async fn a_slow_caller_that_leaves_costs_no_connection() {
    let server = Server::start(|peer| async move {
        let mut frames = Frames::accept(peer).await.unwrap();
        while let Some(stream) = frames.request().await {
            frames.send(HEADERS, END_HEADERS, stream, STATUS_200).await;
            for _ in 0..5 {
                frames.send(DATA, 0, stream, b"hello").await;
            }
        }
    })
    .await;
    let client = http2().http2_keep_alive_interval(None).build().unwrap();
    let answer = send(&client, server.post("a")).await.unwrap();
    let mut body = answer.into_body();
    within(body.frame()).await.unwrap().unwrap();
    // The others come.
    tokio::time::sleep(Duration::from_millis(200)).await;
    within(body.frame()).await.unwrap().unwrap();
    tokio::time::pause();
    tokio::time::advance(SILENCE).await;
    tokio::time::resume();

    drop(body);

    send(&client, server.post("b")).await.unwrap();
    assert_eq!(server.connections(), 1);
}
