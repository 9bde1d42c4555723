//! Calls of reqwest 0.12 under the layers, on sockets.

use std::{net::SocketAddr, time::Duration};

use http::Request;
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::mpsc,
};
use tower::{ServiceBuilder, ServiceExt};
use tower_agent::{
    BoxError, FailureClass, RetryBudget, RetryBudgetLayer, Run, StepTimeoutLayer, TerminalReason,
    FailedAttempts,
};
use tower_agent_reqwest_0_12::service;

const WINDOW: Duration = Duration::from_millis(500);

/// An upstream that sends these bytes to each request, and holds the connection; tells each
/// request.
async fn upstream(sent: &'static str) -> (SocketAddr, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (asked, asks) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let asked = asked.clone();
            tokio::spawn(async move {
                let mut read = vec![0; 16 * 1024];
                while let Ok(count @ 1..) = socket.read(&mut read).await {
                    let _ = asked.send(String::from_utf8_lossy(&read[..count]).into_owned());
                    let _ = socket.write_all(sent.as_bytes()).await;
                }
            });
        }
    });
    (address, asks)
}

/// A request of reqwest's builder through a stack over reqwest's client, and an answer of reqwest's.
async fn ask(run: &Run, address: SocketAddr) -> Result<reqwest::Response, BoxError> {
    let stack = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(RetryBudget::new()))
        .layer(StepTimeoutLayer::new(WINDOW))
        .service(service(reqwest::Client::builder().no_proxy())?);
    let url = format!("http://{address}/v1/chat/completions");
    let asked = reqwest::Client::new().post(url).body(r#"{"model":"m"}"#);
    let request: Request<reqwest::Body> = asked.build()?.try_into()?;
    let answer = stack.oneshot(run.attach(request)).await?;
    Ok(answer.map(reqwest::Body::wrap).into())
}

#[tokio::test]
async fn an_answer_comes_through_whole_and_without_its_framing() {
    let (address, mut asks) =
        upstream("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n").await;

    let answer = ask(&Run::open(), address).await.unwrap();

    assert!(!answer.headers().contains_key("transfer-encoding"));
    assert_eq!(answer.text().await.unwrap(), "hi");
    assert!(asks.recv().await.unwrap().ends_with(r#"{"model":"m"}"#));
}

#[tokio::test]
async fn a_silent_upstream_is_a_step_timeout() {
    let (address, mut asks) = upstream("").await;
    let run = Run::open();

    let error = ask(&run, address).await.unwrap_err();

    let reason = TerminalReason::find(&*error);
    assert_eq!(reason, Some(&TerminalReason::StepTimeout), "{error}");
    asks.recv().await.unwrap();
    assert!(asks.try_recv().is_err(), "asked once");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let (other, mut asks) = upstream("").await;
    let moved =
        format!("HTTP/1.1 303 See Other\r\nlocation: http://{other}\r\ncontent-length: 0\r\n\r\n");
    let (address, _asks) = upstream(moved.leak()).await;

    let answer = ask(&Run::open(), address).await.unwrap();

    assert_eq!(answer.status(), 303);
    assert!(asks.try_recv().is_err());
}

#[tokio::test]
async fn a_refused_connection_is_a_failure_of_the_transport_and_names_no_url() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);

    let error = ask(&Run::open(), address).await.unwrap_err();

    let tries = FailedAttempts::find(&*error).unwrap().all();
    assert!(tries.iter().all(|it| it.class == Some(FailureClass::Transport)));
    let causes = std::iter::successors(error.source(), |it| it.source());
    assert!(
        causes
            .map(ToString::to_string)
            .all(|it| !it.contains("/v1/chat"))
    );
}

#[tokio::test]
async fn an_ended_run_sends_nothing() {
    let (address, mut asks) = upstream("").await;
    let run = Run::open();
    run.end(TerminalReason::Aborted);

    let error = ask(&run, address).await.unwrap_err();

    assert_eq!(
        TerminalReason::find(&*error),
        Some(&TerminalReason::Aborted)
    );
    assert!(asks.try_recv().is_err());
}

#[tokio::test]
async fn the_service_alone_hands_on_the_run() {
    let (address, _asks) = upstream("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await;
    let run = Run::open();
    let model = service(reqwest::Client::builder().no_proxy()).unwrap();
    let request = Request::get(format!("http://{address}/")).body(String::new());

    let answer = model.oneshot(run.attach(request.unwrap())).await.unwrap();

    assert_eq!(answer.extensions().get::<Run>().unwrap().id(), run.id());
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "hi");
}
