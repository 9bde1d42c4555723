//! What a program that calls async-openai learns of a cut, on sockets.

use std::{net::SocketAddr, time::Duration};

use async_openai::{
    config::OpenAIConfig,
    error::OpenAIError,
    types::chat::{
        ChatCompletionRequestUserMessageArgs, CreateChatCompletionRequest,
        CreateChatCompletionRequestArgs,
    },
};
use futures_util::StreamExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::timeout,
};
use tower::ServiceBuilder;
use tower_agent::{
    Run, StepTimeoutLayer, TerminalReason, TerminalResponseLayer, TurnCapLayer,
};
use tower_agent_reqwest::ReqwestService;
use tower_agent_async_openai::{client, reason_of};

const WINDOW: Duration = Duration::from_millis(500);

const ANSWER: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 222\r\n\r\n";
const DOCUMENT: &str = r#"{"id":"c","object":"chat.completion","created":0,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}"#;
const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n\
    data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"m\",\
    \"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n\n";

/// An upstream that sends these bytes to each request and then nothing; tells each connection
/// that the client has closed.
async fn upstream(sent: String) -> (SocketAddr, mpsc::UnboundedReceiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (closed, closes) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (closed, sent) = (closed.clone(), sent.clone());
            tokio::spawn(async move {
                answer(socket, &sent).await;
                let _ = closed.send(());
            });
        }
    });
    (address, closes)
}

async fn answer(mut socket: TcpStream, sent: &str) {
    let mut read = vec![0; 16 * 1024];
    let _ = socket.read(&mut read).await;
    let _ = socket.write_all(sent.as_bytes()).await;
    while socket.read(&mut read).await.is_ok_and(|count| count > 0) {}
}

fn model(address: SocketAddr) -> async_openai::Client<OpenAIConfig> {
    let config = OpenAIConfig::new().with_api_base(format!("http://{address}/v1"));
    let stack = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(TurnCapLayer::new(1))
        .layer(StepTimeoutLayer::new(WINDOW))
        .service(ReqwestService::new(reqwest::Client::builder().no_proxy()).unwrap());
    client(config.with_api_key("none"), stack)
}

fn ask() -> CreateChatCompletionRequest {
    let message = ChatCompletionRequestUserMessageArgs::default()
        .content("hi")
        .build()
        .unwrap();
    CreateChatCompletionRequestArgs::default()
        .model("m")
        .messages([message.into()])
        .build()
        .unwrap()
}

fn whole() -> String {
    ANSWER.replace("222", &DOCUMENT.len().to_string()) + DOCUMENT
}

#[tokio::test]
async fn a_turn_beyond_the_cap_of_the_run_says_so() {
    let (address, _closes) = upstream(whole()).await;
    let (model, run) = (model(address), Run::open());
    let chat = model.chat();

    let first = run.scope(chat.create(ask())).await.unwrap();
    let second = run.scope(chat.create(ask())).await.unwrap_err();

    assert_eq!(first.choices[0].message.content.as_deref(), Some("hi"));
    assert_eq!(
        reason_of(&second),
        Some(TerminalReason::TurnCap),
        "{second}"
    );
    assert_eq!(run.terminal_reason(), Some(TerminalReason::TurnCap));
}

#[tokio::test]
async fn a_silent_upstream_is_a_step_timeout_and_is_asked_once() {
    let (address, mut closes) = upstream(String::new()).await;
    let (model, run) = (model(address), Run::open());

    let error = run.scope(model.chat().create(ask())).await.unwrap_err();

    assert!(
        matches!(&error, OpenAIError::ApiError(it) if it.status_code == 504),
        "{error}"
    );
    assert_eq!(reason_of(&error), Some(TerminalReason::StepTimeout));
    assert_eq!(run.last_end(), Some(TerminalReason::StepTimeout));
    closes.recv().await.unwrap();
    assert!(
        closes.try_recv().is_err(),
        "the client has no retries of its own"
    );
}

#[tokio::test]
async fn a_stream_that_falls_silent_ends_with_the_reason() {
    let (address, mut closes) = upstream(STREAM.to_owned()).await;
    let (model, run) = (model(address), Run::open());
    let chat = model.chat();

    let mut stream = run.scope(chat.create_stream(ask())).await.unwrap();
    let token = stream.next().await.unwrap().unwrap();
    let error = stream.next().await.unwrap().unwrap_err();

    assert_eq!(token.choices[0].delta.content.as_deref(), Some("hi"));
    assert_eq!(
        reason_of(&error),
        Some(TerminalReason::StepTimeout),
        "{error}"
    );
    assert_eq!(run.last_end(), Some(TerminalReason::StepTimeout));
    closes.recv().await.unwrap();
}

#[tokio::test]
async fn a_dropped_stream_frees_the_upstream() {
    let (address, mut closes) = upstream(STREAM.to_owned()).await;
    let model = model(address);
    let chat = model.chat();
    let mut stream = chat.create_stream(ask()).await.unwrap();
    stream.next().await.unwrap().unwrap();

    drop(stream);

    timeout(WINDOW / 2, closes.recv())
        .await
        .expect("in less than the window");
}
